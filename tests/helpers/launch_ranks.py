"""Starting a module of the tests on CPU ranks by ``accelerate launch``, and a training of five steps."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import coterie
from coterie.training import trainer
from coterie.training.trainer import train
from tests.helpers.training_models import SETTINGS, make_rows, tiny_llama

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "accelerate"


def launch(config: str, ranks: int, module: str, *words: object) -> None:
    """Run ``module`` under a configuration on so many gloo ranks; it must end well."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(CONFIGS / config), "--num_processes", str(ranks)]
    command += ["--num_cpu_threads_per_process", "1", "--main_process_port", "0"]
    ended = subprocess.run(
        [*command, "--module", module, *map(str, words)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{Path(coterie.__file__).parents[1]}:{ROOT}",
            "OMP_WAIT_POLICY": "PASSIVE",
            "ACCELERATE_USE_CPU": "true",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr


def train_five_steps(optimizer: str, folder: Path, model: torch.nn.Module) -> None:
    """Take five steps with SGD or AdamW on fixed rows; ranks call it together."""
    settings = SETTINGS.model_copy(update={"epochs": 1, "learning_rate": 1e-3})
    if optimizer == "sgd":
        trainer.make_optimizer = lambda weights, _: torch.optim.SGD(weights.values(), lr=1e-3)
    train(model, make_rows(), settings, folder)


if __name__ == "__main__":
    train_five_steps(sys.argv[1], Path(sys.argv[2]), tiny_llama())
