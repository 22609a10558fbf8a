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
        n = row.target_count
        skipped = [0.0] if row.targets[0].start == 0 else []
        own = [*skipped, *own_logprobs(model, row).tolist()]
        old = [
            value + shift for value, shift in zip(own, (torch.randn(n) * 0.4).tolist(), strict=True)
        ]
        reference = [value + 0.3 for value in own]
        advantages = tuple(torch.randn(n).tolist())
        rows.append(
            replace(row, logprobs=tuple(old), advantages=advantages, reference=tuple(reference))
        )
    return rows


@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_the_loss_is_that_of_the_formula(kl):
    model = tiny_llama()
    rows = sampled_rows(model)
    low, high = 0.2, 0.28
    objective = PolicyGradient(PolicyGradientSettings(clip_low=low, clip_high=high, kl=kl))
    found = LossModule(model, objective)(rows)
    clipped = 0
    for row, loss in zip(rows, found, strict=True):
        first = row.targets[0].start == 0
        total = 0.0
        for p, old, reference, a in zip(
            own_logprobs(model, row).tolist(),
            row.logprobs[first:], row.reference[first:], row.advantages[first:],
            strict=True,
        ):  # fmt: skip
            ratio = torch.tensor(p - old).exp().item()
            near = min(max(ratio, 1 - low), 1 + high)
            clipped += ratio * a > near * a
            away = reference - p
            total -= min(ratio * a, near * a)
            total += kl * ratio * (torch.tensor(away).exp().item() - away - 1)
        assert loss.item() == pytest.approx(row.weight * total, rel=1e-4, abs=1e-5)
    assert clipped > 5


def test_where_the_policy_has_not_moved_it_is_the_plain_policy_gradient():
    model = tiny_llama()
    rows = [
        replace(row, logprobs=tuple(own_logprobs(model, row).tolist()), advantages=(2.0,) * 7)
        for row in some_rows(4)
    ]
    LossModule(model, PolicyGradient())(rows).sum().backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    sum(-2.0 * row.weight * own_logprobs(model, row).sum() for row in rows).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-5)


def test_what_has_gone_far_enough_gets_no_gradient():
    model, row = tiny_llama(), some_rows(1)[0]
    own = own_logprobs(model, row).tolist()
    for shift, advantage, moves in (
        (-1, 1.0, False),
        (1, -1.0, False),
        (-1, -1.0, True),
        (1, 1.0, True),
    ):
        model.zero_grad()
        old = tuple(value + shift for value in own)
        LossModule(model, PolicyGradient())(
            [replace(row, logprobs=old, advantages=(advantage,) * 7)]
        ).sum().backward()
        assert (
            any(w.grad is not None and w.grad.abs().max() > 0 for w in model.parameters()) == moves
        )
