"""PPO's critic: the clipped value loss against float64 formulas, and where values are read."""

from dataclasses import replace

import pytest
import torch

from coterie.errors import UserError
from coterie.models.adapters import add_head, token_values
from coterie.models.prefix_trie import CostRule
from coterie.record.rows import Row, Target
from coterie.training.batches import make_batch
from coterie.training.losses import ValueLoss, ValueLossSettings
from coterie.training.reference import LossModule, with_values
from coterie.training.settings import TrainingSettings
from tests.training_models import SETTINGS, some_rows, tiny_llama

ONE = TrainingSettings(
    **{**SETTINGS.model_dump(), "schedule": "constant", "warmup_ratio": 0, "epochs": 1}
)


def critic(seed: int = 0):
    """A model with a head that says something."""
    model = tiny_llama(seed)
    torch.nn.init.normal_(add_head(model).weight, generator=torch.Generator().manual_seed(seed))
    return model


def states(model, row: Row) -> torch.Tensor:
    """Values before each target that has something before it, by the model's own forward pass in float64."""
    model = model.double()
    hidden = model.model(torch.tensor([row.ids])).last_hidden_state[0]
    values = hidden @ model.value_head.weight[0].double() + model.value_head.bias.double()
    found = [values[i - 1] for t in row.targets for i in range(t.start, t.stop) if i > 0]
    return torch.stack(found)


def rows_with_returns(model) -> list[Row]:
    """Rows whose values were some way off the model's when they were made; one begins with a target."""
    rows = some_rows(6)
    rows[0] = replace(rows[0], targets=(Target(0, 2, "p@0"), *rows[0].targets))
    torch.manual_seed(1)
    found = []
    for row in with_values(model, rows, ONE)[0]:
        old = torch.tensor(row.values) + torch.randn(row.target_count) * 0.5
        returns = old + torch.randn(row.target_count)
        found.append(replace(row, values=tuple(old.tolist()), returns=tuple(returns.tolist())))
    return found


@pytest.mark.parametrize("rule", [None, CostRule(0.0)], ids=["flat", "packed"])
def test_the_loss_and_its_gradient_are_those_of_the_formula(rule):
    model = critic()
    rows = rows_with_returns(model)
    objective = ValueLoss(ValueLossSettings(clip=0.2))
    count = sum(map(objective.count, rows))
    loss = LossModule(model, objective, rule)(rows).sum() / count
    loss.backward()
    named = {name: w for name, w in model.named_parameters() if "lm_head" not in name}
    gradients = {name: weight.grad.clone() for name, weight in named.items()}
    model.zero_grad()
    total, clipped = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        values, skip = states(model, row), row.unpredicted
        old, returns = (torch.tensor(one[skip:]).double() for one in (row.values, row.returns))
        near = torch.minimum(torch.maximum(values, old - 0.2), old + 0.2)
        errors = torch.stack([(values - returns) ** 2, (near - returns) ** 2])
        clipped += int((errors[1] > errors[0]).sum())
        total = total + row.weight * 0.5 * errors.max(0).values.sum()
    total = total / count
    assert clipped > 5
    assert float(loss.detach()) == pytest.approx(float(total.detach()), rel=1e-5)
    total.backward()
    for name, gradient in gradients.items():
        grad = model.get_parameter(name).grad
        torch.testing.assert_close(gradient.double(), grad, rtol=1e-3, atol=1e-5)


def test_a_value_is_read_before_its_token_and_sees_nothing_after():
    model, (row, *_) = critic(), some_rows(1)
    place = row.targets[0].start
    changed = (*row.ids[:place], (row.ids[place] + 1) % 32, *row.ids[place + 1 :])
    with torch.no_grad():
        (one,) = token_values(model, [row.ids], [[place]], before=True)
        for ids in (changed, row.ids[: place + 1]):
            (same,) = token_values(model, [ids], [[place]], before=True)
            torch.testing.assert_close(one, same)
        (after,) = token_values(model, [row.ids], [[place]])
        (before,) = token_values(model, [row.ids], [[place - 1]])
    torch.testing.assert_close(one, before)
    assert abs(float(one - after)) > 1e-3


def test_values_of_rows_are_those_before_each_token_and_the_one_after_the_last():
    model = critic()
    rows = some_rows(5)
    rows[0] = replace(rows[0], targets=(Target(0, 2, "p@0"), *rows[0].targets))
    rows[1] = replace(rows[1], weight=0.0)
    found, after = with_values(model, rows, ONE)
    assert found[1].values is after[1] is None
    for row, last in [(found[i], after[i]) for i in (0, 2, 3, 4)]:
        assert row.values[row.unpredicted :] == pytest.approx(states(model, row).tolist(), abs=1e-4)
        assert len(row.values) == row.target_count
        model = model.float()
        (own,) = token_values(model, [row.ids], [[row.targets[-1].stop - 1]])
        assert last == pytest.approx(own.item(), abs=1e-4)


def test_values_at_observations_are_never_read():
    """Whatever the head says at them, loss and gradient are the same: contract 3 for the critic."""
    model = critic()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()  # a token's state depends on that token alone
    found = []
    for observed in ((), (9,), (9, 8, 7, 6, 5)):
        ids = (3, 1, 2, *observed, 4, 1)
        stop = 4 + len(observed)
        row = Row(ids, (Target(1, 3, "p@0"), Target(stop, stop + 1, "p@0")))
        row = replace(row, values=(0.0,) * 3, returns=(1.0, 2.0, 3.0))
        loss = LossModule(model, ValueLoss())([row]).sum()
        model.zero_grad()
        loss.backward()
        found.append((loss.detach(), model.value_head.weight.grad.clone()))
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0])
        torch.testing.assert_close(gradient, found[0][1])


def test_what_is_measured_and_what_is_refused():
    row = Row((0,) * 5, (Target(1, 5, "p@0"),), values=(0.0,) * 4, returns=(1.0, 1.0, -1.0, 0.0))
    values = torch.tensor([0.5, 2.0, 3.0, -0.1])
    objective = ValueLoss(ValueLossSettings(clip=0.2))
    found = objective.measures([row], [[values]])
    assert found["value"].values.tolist() == pytest.approx(values.tolist())
    assert found["value_error"].values.tolist() == pytest.approx([0.25, 1.0, 16.0, 0.01])
    assert found["value_clip_share"].values.tolist() == [1, 0, 0, 0]
    losses = objective.losses([replace(row, weight=2.0)], [[values]])
    assert losses.tolist() == pytest.approx([0.64 + 1.0 + 16.0 + 0.01])
    for missing in ("values", "returns"):
        with pytest.raises(UserError, match=f"has no {missing}"):
            make_batch([replace(row, **{missing: None})], objective, 100)
    with pytest.raises(UserError, match="weight >= 0"):
        objective.count(replace(row, weight=-1.0))
