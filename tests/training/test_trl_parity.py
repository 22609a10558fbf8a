"""On equal rows TRL and coterie take the same steps: losses, first gradients and weights differ by rounding in float32.

SFT, DPO, its length-normalised form and with the NLL term, IPO, KTO, GRPO, DAPO, Dr. GRPO, GSPO and CISPO on paths of
one turn and of several, on one rank and on two (gloo), all started by ``accelerate launch``. SimPO and ORPO, whose
trainers in TRL tokenize text, are compared as functions of log-probs.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl")
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

from coterie.training.losses import DPO, DPOSettings
from tests.helpers.compare_weights import ROUNDING, assert_same_weights
from tests.helpers.launch_ranks import launch
from tests.helpers.training_models import make_pairs
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


def trl_loss(settings: DPOSettings, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Return TRL's loss of pairs, given the mean log-probs of their sides."""
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu"), alpha=0.0, beta=settings.beta,
        loss_type="simpo", simpo_gamma=settings.simpo_gamma, label_smoothing=settings.label_smoothing,
    )  # fmt: skip
    if settings.kind == "simpo":
        return CPOTrainer.cpo_loss(trainer, chosen, rejected)[0]
    # TRL's NLL term also covers the prompt, so it is added here.
    return -chosen - ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)[0]


@pytest.mark.parametrize(
    "settings",
    [
        DPOSettings(kind="simpo", beta=2.0, reduction="tokens", label_smoothing=0.1),
        DPOSettings(kind="simpo", beta=10.0, simpo_gamma=3.0, reduction="tokens"),
        DPOSettings(kind="orpo", beta=0.25, reduction="tokens", nll_coef=1.0),
    ],
    ids=["simpo", "simpo-10", "orpo"],
)
def test_losses_without_a_reference_and_their_gradients_are_those_of_trl(settings):
    objective, random = DPO(settings), torch.Generator().manual_seed(0)
    for pair in make_pairs():
        rows = objective.rows(pair)
        sizes = [sum(map(len, row.predicted)) for row in rows]
        read = [(-3 * torch.rand(size, generator=random)).requires_grad_() for size in sizes]
        loss = objective.loss(pair, read)
        means = (values.mean()[None] for values in read)
        expected = pair.weight * trl_loss(settings, *means).sum()
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        gradients = (torch.autograd.grad(value, read) for value in (loss, expected))
        for gradient, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(gradient, theirs, rtol=1e-5, atol=1e-6)
