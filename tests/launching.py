"""Starting a module of the tests on CPU ranks by ``accelerate launch``."""

import os
import subprocess
import sys
from pathlib import Path

import coterie

ROOT = Path(__file__).parents[1]
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
