"""The configurations for several GPUs: FSDP2 really runs (on two CPU ranks), the others are loaded."""

import contextlib
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from coterie.training.losses import DPO, DPOSettings
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import train
from tests.helpers.compare_weights import assert_same_weights, weight_bounds
from tests.helpers.launch_ranks import CONFIGS, launch
from tests.helpers.training_models import SETTINGS, referenced_pairs, tiny_llama

OBJECTIVE = DPOSettings(beta=0.5, nll_coef=0.2)


class Stop(Exception):
    pass


class Stopping(DPO):
    """DPO that ends the training, on all ranks, at some micro-batch."""

    left: int

    def losses(self, items, logprobs):
        self.left -= 1
        if self.left == 0:
            raise Stop
        return super().losses(items, logprobs)


def settings_of(method: str) -> TrainingSettings:
    changes = {"method": method, "save_every_steps": 1, "lora_r": 4 if method == "lora" else None}
    return TrainingSettings(**{**SETTINGS.model_dump(), **changes})


@pytest.mark.ranks
@pytest.mark.parametrize("method", ["full", "lora"])
def test_two_sharded_ranks_stop_resume_and_end_with_the_weights_of_one(method, tmp_path):
    file = "model.safetensors" if method == "full" else "adapter_model.safetensors"
    side = "tests.training.test_accelerate_configs"
    launch("fsdp2.yaml", 2, side, method, tmp_path / "two", 4)
    assert not (tmp_path / "two" / "final").exists()
    assert len(list((tmp_path / "two").glob("checkpoint-*"))) == 1, "stopped between two steps"
    launch("fsdp2.yaml", 2, side, method, tmp_path / "two", 0)
    assert "layers.0.self_attn.q_proj" in (tmp_path / "two" / "sharded.txt").read_text()
    settings, pairs, model = settings_of(method), referenced_pairs(), tiny_llama()
    with weight_bounds(model) as bounds:
        train(model, pairs, settings, tmp_path / "one", objective=DPO(OBJECTIVE))
    if method == "lora":
        bounds = {
            f"base_model.model.{name}".replace(".default.", "."): bound
            for name, bound in bounds.items()
        }
    one, two = (load_file(tmp_path / name / "final" / file) for name in ("one", "two"))
    assert_same_weights(one, two, bounds)


def main(method: str, folder: Path, stop_at: int) -> None:
    """Train on one of the ranks, to the end or not, and write the names of the sharded weights."""
    model, objective = tiny_llama(), Stopping(OBJECTIVE)
    objective.left = stop_at
    with contextlib.suppress(Stop):
        train(model, referenced_pairs(), settings_of(method), folder, objective=objective)
    sharded = [name for name, weight in model.named_parameters() if isinstance(weight, DTensor)]
    (folder / "sharded.txt").write_text("\n".join(sharded))


def test_configurations_are_what_accelerate_reads():
    for name, kind in (("ddp", "MULTI_GPU"), ("fsdp2", "FSDP")):
        config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
        assert config.distributed_type == kind
        assert (config.num_processes, config.mixed_precision) == (8, "no")
    assert config.fsdp_config["fsdp_version"] == 2


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
