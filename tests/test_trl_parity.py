"""On equal rows TRL and we take the same steps: losses and weights within 1e-5 in float32.

SFT, DPO, its length-normalised form and with the NLL term, on one rank and on two (gloo), all
started by ``accelerate launch``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytest.importorskip("trl")
from tests.trl_parity import KINDS, start_model

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "accelerate" / "ddp.yaml"


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def trained(request, tmp_path_factory) -> Path:
    """The folder in which both sides trained everything."""
    folder = tmp_path_factory.mktemp("parity")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIG)]
    launch += ["--num_processes", str(request.param), "--main_process_port", "0"]
    launch += ["--num_cpu_threads_per_process", "1", "--module", "tests.trl_parity"]
    for side in ("ours", "trl"):
        ended = subprocess.run(
            [*launch, side, str(folder / side)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "OMP_WAIT_POLICY": "PASSIVE",
                "ACCELERATE_USE_CPU": "true",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr
        assert (folder / side / "ranks.txt").read_text() == str(request.param)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_five_steps_are_those_of_trl(kind, trained):
    ours, theirs = (load_file(trained / s / kind / "model.safetensors") for s in ("ours", "trl"))
    start = {name: w.detach() for name, w in start_model().model.named_parameters()}
    for name, weight in theirs.items():
        assert float((weight - ours[name]).abs().max()) < 1e-5, name
        assert float((weight - start[name]).abs().max()) > 1e-4, f"{name} was not trained"
    losses = [json.loads((trained / s / kind / "losses.json").read_text()) for s in ("ours", "trl")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
