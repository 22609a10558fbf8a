"""The clipped policy gradient, against its formula on a model's own forward pass."""

from dataclasses import replace

import pytest
import torch

from coterie.record.rows import Row, Target
from coterie.training.policy_gradient import PolicyGradient, PolicyGradientSettings
from coterie.training.reference import LossModule
from tests.training_models import some_rows, tiny_llama


def own_logprobs(model, row: Row) -> torch.Tensor:
    """Of the row's targets, by the model's own forward pass; the first token has none."""
    logits = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
    places = [i for target in row.targets for i in range(target.start, target.stop) if i > 0]
    return torch.stack([logits[i - 1, row.ids[i]] for i in places])


def sampled_rows(model, count: int = 6) -> list[Row]:
    """Rows with made-up advantages, whose log-probs are some way off the model's; one begins with a target."""
    torch.manual_seed(0)
    rows = []
    for number, row in enumerate(some_rows(count)):
        if number == 0:
            row = replace(row, targets=(Target(0, 2, "p@0"), *row.targets))
        skipped = [0.0] if row.targets[0].start == 0 else []
        own = torch.tensor([*skipped, *own_logprobs(model, row).tolist()])
        numbers = {"logprobs": own + torch.randn(len(own)) * 0.4, "reference": own + 0.3}
        numbers["advantages"] = torch.randn(len(own))
        rows.append(replace(row, **{name: tuple(n.tolist()) for name, n in numbers.items()}))
    return rows


@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_the_loss_is_that_of_the_formula(kl):
    model, low, high, clipped = tiny_llama(), 0.2, 0.28, 0
    rows = sampled_rows(model)
    objective = PolicyGradient(PolicyGradientSettings(clip_low=low, clip_high=high, kl=kl))
    for row, loss in zip(rows, LossModule(model, objective)(rows), strict=True):
        first = row.targets[0].start == 0
        given = (one[first:] for one in (row.logprobs, row.reference, row.advantages))
        total = 0.0
        for p, old, reference, a in zip(own_logprobs(model, row).tolist(), *given, strict=True):
            ratio = torch.tensor(p - old).exp().item()
            near = min(max(ratio, 1 - low), 1 + high)
            clipped += ratio * a > near * a
            away = reference - p
            total -= min(ratio * a, near * a)
            total += kl * ratio * (torch.tensor(away).exp().item() - away - 1)
        assert loss.item() == pytest.approx(row.weight * total, rel=1e-4, abs=1e-5)
    assert clipped > 5


def test_gradients_are_the_plain_ones_where_the_policy_has_not_moved_and_none_beyond_a_clip():
    model, rows = tiny_llama(), some_rows(4)

    def gradients(shift: float, advantage: float) -> dict[str, torch.Tensor]:
        old = [tuple((own_logprobs(model, row) + shift).tolist()) for row in rows]
        shifted = [
            replace(row, logprobs=one, advantages=(advantage,) * 7)
            for row, one in zip(rows, old, strict=True)
        ]
        model.zero_grad()
        LossModule(model, PolicyGradient())(shifted).sum().backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    for shift, advantage, moves in ((-1, 1, False), (1, -1, False), (-1, -1, True), (1, 1, True)):
        after = gradients(shift, float(advantage)).values()
        assert any(one.abs().max() > 0 for one in after) == moves
    clipped = gradients(0.0, 2.0)
    model.zero_grad()
    sum(-2.0 * row.weight * own_logprobs(model, row).sum() for row in rows).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(clipped[name], weight.grad, rtol=1e-4, atol=1e-5)
