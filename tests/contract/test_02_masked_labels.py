"""Contract 2: labels at masked positions can hold anything: loss and gradients are the same.

In our rows a label is the row's own id at a target; no other position has one. So what can vary
without being input to a target is what stands after a row's last target, the padding, and which
other rows share the micro-batch. None of it may change the loss or any gradient. And the loss is what
Transformers computes from labels of -100 at masked positions.
"""

from dataclasses import replace

import pytest
import torch

from coterie.models import logprobs
from coterie.record.rows import Row
from coterie.training.losses import SFT
from coterie.training.reference import LossModule
from tests.helpers.training_models import make_rows, tiny_llama


def loss_and_gradients(rows: list[Row], parts: list[slice]) -> tuple[float, list[torch.Tensor]]:
    """Of the SFT loss over rows that go through the model in these micro-batches."""
    model = tiny_llama()
    count = sum(SFT().count(row) for row in rows)
    total = 0.0
    for part in parts:
        loss = LossModule(model, SFT())(rows[part]).sum() / count
        loss.backward()
        total += float(loss.detach())
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    return total, gradients


def assert_same(one, other):
    assert one[0] == pytest.approx(other[0], abs=1e-6)
    for gradient, another in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(gradient, another, atol=1e-6, rtol=1e-4)


ALL = [slice(0, None)]


@pytest.mark.parametrize("junk", [0, 1, 31])
def test_ids_after_the_last_target_change_nothing(junk):
    rows = make_rows(6)
    longer = [replace(row, ids=(*row.ids, *[junk] * (3 + n))) for n, row in enumerate(rows)]
    assert_same(loss_and_gradients(rows, ALL), loss_and_gradients(longer, ALL))


def test_padding_and_company_change_nothing():
    rows = make_rows(6)
    alone = [slice(i, i + 1) for i in range(6)]
    assert len({len(row.ids) for row in rows}) > 1
    assert_same(loss_and_gradients(rows, ALL), loss_and_gradients(rows, alone))


def test_the_id_that_pads_changes_nothing(monkeypatch):
    rows = make_rows(6)
    with_zeros = loss_and_gradients(rows, ALL)
    monkeypatch.setattr(logprobs, "PADDING", 7)
    assert_same(with_zeros, loss_and_gradients(rows, ALL))


def test_only_targets_reach_the_vocabulary():
    model, rows = tiny_llama(), make_rows(3)
    seen: list[torch.Tensor] = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        LossModule(model, SFT())(rows)
    assert sum(hidden.shape[:-1].numel() for hidden in seen) == sum(
        row.target_count for row in rows
    )


def test_the_loss_is_that_of_transformers_with_masked_labels():
    rows = [replace(row, weight=1.0) for row in make_rows(6)]
    model, total, count = tiny_llama(), torch.zeros(()), 0
    for row in rows:
        labels = [i if target else -100 for i, target in zip(row.ids, row.mask, strict=True)]
        output = model(input_ids=torch.tensor([row.ids]), labels=torch.tensor([labels]))
        total = total + output.loss * row.target_count
        count += row.target_count
    (total / count).backward()
    reference = float(total.detach()) / count, [weight.grad for weight in model.parameters()]
    assert_same(reference, loss_and_gradients(rows, ALL))
