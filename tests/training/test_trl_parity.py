"""On equal rows TRL and coterie take the same steps: losses, first gradients and weights differ by rounding in float32.

SFT, DPO, its length-normalised form and with the NLL term, GRPO, DAPO and Dr. GRPO on paths of one turn and of several,
on one rank and on two (gloo), all started by ``accelerate launch``.
"""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytest.importorskip("trl")
from tests.helpers.compare_weights import ROUNDING, assert_same_weights
from tests.helpers.launch_ranks import launch
from tests.helpers.trl_parity import KINDS, start_model

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def trained(request, tmp_path_factory) -> Path:
    """The folder in which both sides trained everything."""
    folder = tmp_path_factory.mktemp("parity")
    for side in ("ours", "trl"):
        launch("ddp.yaml", request.param, "tests.helpers.trl_parity", side, folder / side)
        assert (folder / side / "ranks.txt").read_text() == str(request.param)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_five_steps_are_those_of_trl(kind, trained):
    sides = [trained / side / kind for side in ("ours", "trl")]
    ours, theirs = (load_file(side / "model.safetensors") for side in sides)
    assert_same_weights(theirs, ours, load_file(sides[1] / "bounds.safetensors"))
    for name, weight in start_model().model.named_parameters():
        assert float((theirs[name] - weight.detach()).abs().max()) > 1e-4, f"{name} was not trained"
    ours, theirs = (load_file(side / "gradients.safetensors") for side in sides)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert float((gradient - ours[name]).abs().max()) < ROUNDING * gradient.abs().max(), name
    losses = [json.loads((side / "losses.json").read_text()) for side in sides]
    # Losses are means of terms of about 1, with both signs in policy gradients.
    assert losses[0] == pytest.approx(losses[1], rel=ROUNDING, abs=ROUNDING)
