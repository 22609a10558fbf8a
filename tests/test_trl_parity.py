"""On equal rows TRL and we take the same steps: losses, first gradients and weights within 1e-5 in float32.

SFT, DPO, its length-normalised form and with the NLL term, GRPO, DAPO and Dr. GRPO on paths of one turn and of several,
on one rank and on two (gloo), all started by ``accelerate launch``.
"""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytest.importorskip("trl")
from tests.launching import launch
from tests.trl_parity import KINDS, start_model

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def trained(request, tmp_path_factory) -> Path:
    """The folder in which both sides trained everything."""
    folder = tmp_path_factory.mktemp("parity")
    for side in ("ours", "trl"):
        launch("ddp.yaml", request.param, "tests.trl_parity", side, folder / side)
        assert (folder / side / "ranks.txt").read_text() == str(request.param)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_five_steps_are_those_of_trl(kind, trained):
    ours, theirs = (load_file(trained / s / kind / "model.safetensors") for s in ("ours", "trl"))
    start = {name: w.detach() for name, w in start_model().model.named_parameters()}
    for name, weight in theirs.items():
        assert float((weight - ours[name]).abs().max()) < 1e-5, name
        assert float((weight - start[name]).abs().max()) > 1e-4, f"{name} was not trained"
    ours, theirs = (
        load_file(trained / s / kind / "gradients.safetensors") for s in ("ours", "trl")
    )
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert float((gradient - ours[name]).abs().max()) < 1e-5, name
    losses = [json.loads((trained / s / kind / "losses.json").read_text()) for s in ("ours", "trl")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
