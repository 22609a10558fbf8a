"""Losses of critics: preferences by hand, value heads and PPO's value loss on a Llama of some random weights."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid
from transformers import OPTConfig, OPTForCausalLM

from coterie.errors import UserError
from coterie.models.adapters import HEAD_FILE, add_head, load_adapter, load_head, token_values
from coterie.models.prefix_trie import CostRule
from coterie.progress import Silent
from coterie.record.rows import LabeledTrajectory, Pair, Row, Target, mismatched_row, unpair
from coterie.training.batches import make_batch
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import (
    DPO,
    KTO,
    Classifier,
    DPOSettings,
    Regression,
    ValueLoss,
    ValueLossSettings,
    side_statistic,
)
from coterie.training.reference import (
    LossModule,
    row_logprobs,
    unpair_with_reference,
    with_values,
)
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer, train
from tests.helpers.training_models import SETTINGS, make_pairs, make_rows, tiny_llama

ALWAYS = CostRule(0.0)
LORA = TrainingSettings(**{**SETTINGS.model_dump(), "method": "lora", "lora_r": 4})


def with_head(seed: int = 0, **config: object):
    """A model whose head is random, so that its gradients reach the model below."""
    model = tiny_llama(seed, **config)
    head = add_head(model)
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(seed))
        head.bias.fill_(0.25)
    return model


def some_labelled() -> list[LabeledTrajectory]:
    """Trajectories of three own turns; those of one tree share beginnings."""
    pairs = make_pairs()
    chosen = [LabeledTrajectory(p.chosen, True, p.weight, p.group) for p in pairs]
    return chosen + [LabeledTrajectory(p.rejected, False, p.weight, p.group) for p in pairs]


def values_by_hand(model, row: Row) -> list[torch.Tensor]:
    """Values of each own turn's tokens: one row, no packing, no padding."""
    hidden = model.model(torch.tensor([row.ids])).last_hidden_state[0]
    values = hidden @ model.value_head.weight[0] + model.value_head.bias
    return [values[target.start : target.stop] for target in row.targets]


def regression_by_hand(model, pairs: list[Pair]) -> torch.Tensor:
    """A linear head on each side's pooled hidden states."""
    losses = []
    for pair in pairs:
        pooled = []
        for (row,) in (pair.chosen, pair.rejected):
            hidden = model.model(torch.tensor([row.ids])).last_hidden_state[0]
            pooled.append(hidden[torch.tensor(row.mask)].mean(0))
        better, worse = (model.value_head.weight[0] @ one for one in pooled)
        losses.append(-pair.weight * logsigmoid(better - worse))
    return torch.stack(losses).sum() / sum(pair.weight for pair in pairs)


def classifier_by_hand(model, items: list[LabeledTrajectory]) -> torch.Tensor:
    """Cross-entropy at the last token of each turn."""
    total, count = torch.zeros(()), 0.0
    for item in items:
        for row in item.rows:
            for turn in values_by_hand(model, row):
                label = torch.tensor(float(item.success))
                total = total + item.weight * binary_cross_entropy_with_logits(turn[-1], label)
                count += item.weight
    return total / count


KINDS = {
    "regression": (Regression(), make_pairs, regression_by_hand),
    "classifier": (Classifier(), some_labelled, classifier_by_hand),
}


def gradients(model, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
    return torch.cat([one.flatten() for one in grads])


def in_microbatches(model, objective, items, size: int, rule: CostRule | None) -> torch.Tensor:
    module = LossModule(model, objective, rule)
    parts = [module(items[i : i + size]).sum() for i in range(0, len(items), size)]
    return sum(parts) / sum(objective.count(item) for item in items)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_loss_and_gradients_are_the_naive_ones_for_any_micro_batch(kind, size):
    objective, make, by_hand = KINDS[kind]
    model, items = with_head(), make()
    expected = by_hand(model, items)
    wanted = gradients(model, expected)
    for rule in (None, ALWAYS):
        loss = in_microbatches(model, objective, items, size, rule)
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
        assert float((gradients(model, loss) - wanted).norm() / wanted.norm()) < 1e-5


def test_losses_of_given_values_are_those_worked_out_by_hand():
    row = Row((7, 1, 2, 8, 3), (Target(1, 3, "a"), Target(4, 5, "a")))
    values = torch.tensor([1.0, 3.0, -1.0])
    pair = Pair((row,), (replace(row, ids=(7, 4, 5, 8, 6)),), weight=2.0)
    found = Regression().losses([pair], [[values, torch.tensor([0.5, 0.5, 0.5])]])
    assert found.tolist() == pytest.approx([2 * math.log1p(math.exp(-0.5))])
    for success, expected in ((True, (-3, 1)), (False, (3, -1))):
        item = LabeledTrajectory((row,), success, weight=0.5)
        assert Classifier().count(item) == 1.0
        hand = 0.5 * sum(math.log1p(math.exp(x)) for x in expected)
        assert Classifier().losses([item], [[values]]).tolist() == pytest.approx([hand])


class Stop(Exception):
    pass


class Halted(Silent):
    """Progress that raises after three steps."""

    left = 3

    def advance(self, n: int, **fields: float) -> None:
        self.left -= n
        if self.left < 0:
            raise Stop


@pytest.mark.parametrize(("kind", "tied"), [*zip(KINDS, (True, False), strict=True)])
def test_the_head_learns_resumes_bitwise_and_is_saved_beside_the_weights(kind, tied, tmp_path):
    objective, make, _ = KINDS[kind]
    settings = SETTINGS.model_copy(update={"save_every_steps": 1, "epochs": 4})

    def trained(folder: str, **progress: Silent):
        model = with_head(tie_word_embeddings=tied)
        path = tmp_path / folder
        return model, train(model, make(), settings, path, objective=objective, **progress)

    model, whole = trained("whole")
    assert whole.last_loss < 0.8 * whole.first_loss
    with pytest.raises(Stop):
        trained("cut", progress=Halted())
    resumed, report = trained("cut")
    assert weight_hash(report.final) == weight_hash(whole.final) == weight_hash(resumed)
    assert set(load_file(whole.final / HEAD_FILE)) == {"value_head.weight", "value_head.bias"}
    loaded = type(model).from_pretrained(whole.final)
    load_head(loaded, whole.final)
    assert weight_hash(loaded) == weight_hash(model)
    again, _ = trained("whole")
    assert weight_hash(again) == weight_hash(model), "a finished training gives its weights back"


def test_a_bias_that_cancels_is_left_alone(tmp_path):
    """Rounding is all its gradient is, and Adam would walk by that."""
    for kind, moves in (("regression", False), ("classifier", True)):
        objective, make, _ = KINDS[kind]
        model = with_head()
        train(model, make(), SETTINGS, tmp_path / kind, objective=objective)
        assert (float(model.value_head.bias.detach()) != 0.25) is moves
        assert model.value_head.bias.requires_grad, "as it was found"


def test_a_step_beside_an_adapter_moves_the_head_and_leaves_the_model_as_it_was(tmp_path):
    one = LORA.model_copy(update={"max_steps": 1})
    model = with_head()
    before = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    report = train(model, make_pairs(2), one, tmp_path, objective=Regression())
    after = model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    saved = load_file(report.final / HEAD_FILE)
    assert not torch.equal(saved["value_head.weight"], before["value_head.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_trained_beside_an_adapter_and_saved_with_it(kind, tmp_path):
    objective, make, _ = KINDS[kind]
    settings = LORA.model_copy(update={"save_every_steps": 1, "epochs": 4})
    model = with_head()
    whole = train(model, make(), settings, tmp_path / "whole", objective=objective)
    arguments = (make(), settings, tmp_path / "cut")
    with pytest.raises(Stop):
        train(with_head(), *arguments, objective=objective, progress=Halted())
    report = train(with_head(), *arguments, objective=objective)
    assert weight_hash(report.final) == weight_hash(whole.final)
    loaded = load_adapter(tiny_llama(), whole.final)
    load_head(loaded, whole.final)
    assert weight_hash(loaded) == weight_hash(whole.final)
    train(loaded, make(), settings, tmp_path / "on", objective=objective)
    with torch.no_grad():
        losses = [float(in_microbatches(m, objective, make(), 100, None)) for m in (model, loaded)]
    assert losses[1] < 0.8 * losses[0], "both went on from where they were"


def test_a_head_is_as_wide_as_the_states_that_the_vocabulary_is_read_from(tmp_path):
    """OPT's layers may be wider than what they give at the end."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 8, "num_hidden_layers": 2, "ffn_dim": 32}
    more = {"vocab_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
    model = OPTForCausalLM(OPTConfig(**sizes, **more, do_layer_norm_before=False, dropout=0.0))
    assert add_head(model).weight.shape == (1, 8)
    report = train(model, make_pairs(), SETTINGS, tmp_path, objective=Regression())
    load_head(model, report.final)
    (values,) = token_values(model, [(1, 2, 3)], [(1, 2)])
    assert len(values) == 2 and float(values.abs().max()) > 0
    with pytest.raises(UserError, match=r"value head in .* does not fit this model"):
        load_head(tiny_llama(), report.final)


# -- PPO's critic, against float64 formulas ------------------------------------------------------


def states(model, row: Row) -> torch.Tensor:
    """Values before each target that has something before it, by the model's own forward pass in float64."""
    model = model.double()
    hidden = model.model(torch.tensor([row.ids])).last_hidden_state[0]
    values = hidden @ model.value_head.weight[0].double() + model.value_head.bias.double()
    found = [values[i - 1] for t in row.targets for i in range(t.start, t.stop) if i > 0]
    return torch.stack(found)


def rows_with_returns(model) -> list[Row]:
    """Rows whose values were some way off the model's when they were made; one begins with a target."""
    rows = make_rows(6)
    rows[0] = replace(rows[0], targets=(Target(0, 2, "p@0"), *rows[0].targets))
    torch.manual_seed(1)
    found = []
    for row in with_values(model, rows, SETTINGS)[0]:
        old = torch.tensor(row.values) + torch.randn(row.target_count) * 0.5
        returns = old + torch.randn(row.target_count)
        found.append(replace(row, values=tuple(old.tolist()), returns=tuple(returns.tolist())))
    return found


@pytest.mark.parametrize("rule", [None, CostRule(0.0)], ids=["flat", "packed"])
def test_the_loss_and_its_gradient_are_those_of_the_formula(rule):
    model = with_head()
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
    model, (row, *_) = with_head(), make_rows(1)
    place = row.targets[0].start
    changed = (*row.ids[:place], (row.ids[place] + 1) % 32, *row.ids[place + 1 :])
    with torch.no_grad():
        (one,) = token_values(model, [row.ids], [[place]], from_parents=True)
        for ids in (changed, row.ids[: place + 1]):
            (same,) = token_values(model, [ids], [[place]], from_parents=True)
            torch.testing.assert_close(one, same)
        (after,) = token_values(model, [row.ids], [[place]])
        (before,) = token_values(model, [row.ids], [[place - 1]])
    torch.testing.assert_close(one, before)
    assert abs(float(one - after)) > 1e-3


def test_values_of_rows_are_those_before_each_token_and_the_one_after_the_last():
    model = with_head()
    rows = make_rows(5)
    rows[0] = replace(rows[0], targets=(Target(0, 2, "p@0"), *rows[0].targets))
    rows[1] = replace(rows[1], weight=0.0)
    found, after = with_values(model, rows, SETTINGS)
    assert found[1].values is after[1] is None
    for row, last in [(found[i], after[i]) for i in (0, 2, 3, 4)]:
        assert row.values[row.unpredicted :] == pytest.approx(states(model, row).tolist(), abs=1e-4)
        assert len(row.values) == row.target_count
        model = model.float()
        (own,) = token_values(model, [row.ids], [[row.targets[-1].stop - 1]])
        assert last == pytest.approx(own.item(), abs=1e-4)


def test_values_at_observations_are_never_read():
    """Whatever the head says at them, loss and gradient are the same: contract 3 for the critic."""
    model = with_head()
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


# -- preferences: log-probs of two trajectories of two own turns each are given ------------------


def row(ids: list[int], *turns: tuple[int, int]) -> Row:
    return Row(tuple(ids), tuple(Target(*turn, "agent@0") for turn in turns))


BETTER = row([7, 1, 2, 8, 3], (1, 3), (4, 5))
WORSE = row([7, 4, 5, 6, 8, 9, 1], (1, 4), (5, 6))
CHOSEN, CHOSEN_REFERENCE = (-1.0, -3.0, -0.5), (-2.0, -3.0, -1.0)
REJECTED, REJECTED_REFERENCE = (-2.0, -2.0, -5.0, -1.0), (-1.0, -1.0, -4.0, -1.5)
BY_HAND = {
    # reduction: (chosen, rejected, their references, margin)
    "none": (-4.5, -10.0, -6.0, -7.5, 1.5 + 2.5),
    "tokens": (-1.5, -2.5, -2.0, -1.875, 0.5 + 0.625),
    "turns": (-2.0 - 0.5, -3.0 - 1.0, -2.5 - 1.0, -2.0 - 1.5, 1.0 + 0.5),
}


@pytest.mark.parametrize("reduction", BY_HAND)
def test_the_bradley_terry_loss_is_that_of_the_margin(reduction):
    *expected, margin = BY_HAND[reduction]
    sides = ((BETTER, CHOSEN), (WORSE, REJECTED))
    sides += ((BETTER, CHOSEN_REFERENCE), (WORSE, REJECTED_REFERENCE))
    sums = [float(side_statistic([r], [torch.tensor(v)], reduction)) for r, v in sides]
    assert sums == pytest.approx(expected)
    pair = Pair((BETTER,), (WORSE,), tuple(expected[2:]), weight=2.0)
    objective = DPO(DPOSettings(beta=0.1, reduction=reduction))
    losses = objective.losses([pair], [[torch.tensor(CHOSEN), torch.tensor(REJECTED)]])
    assert losses.tolist() == pytest.approx([2.0 * math.log1p(math.exp(-0.1 * margin))])
    measured = objective.measures([pair], [[torch.tensor(CHOSEN), torch.tensor(REJECTED)]])
    assert {name: measure.values.tolist() for name, measure in measured.items()} == {
        "margin": [pytest.approx(0.1 * margin)],
        "accuracy": [margin > 0],
        "chosen_logprob": [pytest.approx(expected[0])],
    }
    assert objective.count(pair) == 2.0


# By hand: the means are -1.5 and -2.5, and 0.5 and -0.625 above the reference (reduction tokens).
ODDS = [math.exp(mean) / (1 - math.exp(mean)) for mean in (-1.5, -2.5)]
PAIR_LOSSES = {
    "ipo": ({"beta": 0.25}, (1.125 - 2.0) ** 2),
    "simpo": ({"beta": 2.0, "simpo_gamma": 0.5}, math.log1p(math.exp(-1.5))),
    "simpo smoothed": (
        {"beta": 2.0, "simpo_gamma": 0.5, "label_smoothing": 0.1, "nll_coef": 0.2},
        0.9 * math.log1p(math.exp(-1.5)) + 0.1 * math.log1p(math.exp(1.5)) + 0.2 * 1.5,
    ),
    "orpo": ({"beta": 0.5, "nll_coef": 1.0}, 1.5 + 0.5 * math.log1p(ODDS[1] / ODDS[0])),
}


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_other_losses_of_pairs_are_those_worked_out_by_hand(name):
    settings, expected = PAIR_LOSSES[name]
    kind = name.split()[0]
    objective = DPO(DPOSettings(kind=kind, reduction="tokens", **settings))
    pair = Pair((BETTER,), (WORSE,), weight=2.0)
    if kind == "ipo":
        with pytest.raises(UserError, match="no reference log-probs"):
            objective.count(pair)
        pair = replace(pair, reference=(-2.0, -1.875))
    losses = objective.losses([pair], [[torch.tensor(CHOSEN), torch.tensor(REJECTED)]])
    assert losses.tolist() == pytest.approx([2.0 * expected])
    assert objective.count(pair) == 2.0


def test_a_side_of_probability_one_has_finite_odds():
    objective = DPO(DPOSettings(kind="orpo", reduction="tokens", nll_coef=1.0))
    read = [torch.zeros(3, requires_grad=True), torch.full((4,), -200.0, requires_grad=True)]
    loss = objective.loss(Pair((BETTER,), (WORSE,)), read)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, read))


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"kind": "ipo"}, "set reduction=tokens"),
        ({"kind": "simpo", "reduction": "turns"}, "set reduction=tokens"),
        ({"kind": "orpo", "reduction": "tokens"}, "set nll_coef=1"),
        ({"kind": "ipo", "reduction": "tokens", "label_smoothing": 0.1}, "set label_smoothing=0"),
        ({"kind": "kto", "reduction": "tokens"}, "leave out reduction"),
        ({"kind": "kto", "nll_coef": 1.0}, "leave out reduction"),
    ],
)
def test_settings_of_pairs_that_would_be_another_loss_are_refused(settings, fix):
    with pytest.raises(ValidationError, match=fix):
        DPOSettings(**settings)


def test_sides_have_the_completion_of_the_nearest_earlier_pair_with_another_prompt():
    def pair(prompt: list[int], chosen: list[int], group: str = "") -> Pair:
        start, rejected = len(prompt), [*prompt, 9]
        sides = (
            row([*prompt, *chosen], (start, start + len(chosen))),
            row(rejected, (start, start + 1)),
        )
        return Pair((sides[0],), (sides[1],), weight=2.0, group=group)

    pairs = [pair([1, 2], [3, 4], "tree"), pair([1, 2], [5]), pair([6], [7, 7, 7]), pair([6], [9])]
    sides = unpair(pairs, 4)
    assert [side.success for side in sides] == [True, False] * 3, "equal sides are left out"
    assert [side.group for side in sides[::2]] == ["tree", "pair 1", "pair 2"]
    completions = [[mismatched.ids for mismatched in side.mismatched] for side in sides]
    # The chosen completion of 7s is too long after a prompt of two tokens.
    assert completions == [[], [(1, 2, 9)], [], [(1, 2, 9)], [(6, 5)], [(6, 9)]]
    assert sides[4].mismatched[0].targets[0].start == 1
    turns = row([1, 2, 3, 8, 4], (2, 3), (4, 5))
    shifted = mismatched_row((row([6, 7], (1, 2)),), (turns,))
    assert shifted and shifted.ids == (6, 3, 8, 4)
    assert [(target.start, target.stop) for target in shifted.targets] == [(1, 2), (3, 4)]
    assert mismatched_row((turns, turns), (turns,)) is None


@pytest.mark.parametrize("tokens", [64, 4096])
def test_kto_compares_with_the_divergence_of_the_whole_step_however_it_is_split(tokens, tmp_path):
    settings = SETTINGS.model_copy(update={"tokens_per_microbatch": tokens, "batch_size": 12})
    model, pairs = tiny_llama(), make_pairs(4)
    sides = unpair_with_reference(tiny_llama(1), pairs, settings, tmp_path, reduction="none")

    def log_ratio(rows: Sequence[Row], reference: float) -> float:
        with torch.no_grad():
            return sum(float(values.sum()) for values in row_logprobs(model, rows)) - reference

    def expected(step: Sequence[LabeledTrajectory]) -> tuple[float, float]:
        """Equations 7 and 8 of the paper, written out."""
        divergences = [log_ratio(side.mismatched, side.reference[1]) for side in step]
        divergence = max(0.0, sum(divergences) / len(divergences))
        loss = weights = 0.0
        for side in step:
            reward = log_ratio(side.rows, side.reference[0]) - divergence
            value = 1 / (1 + math.exp(-0.3 * (reward if side.success else -reward)))
            loss, weights = loss + side.weight * (1 - value), weights + side.weight
        return loss / weights, divergence

    objective = KTO(DPOSettings(kind="kto", beta=0.3))
    with Trainer(model, objective, settings, tmp_path / "train", steps=2) as trainer:
        for step in (sides[:12], sides[12:]):
            loss, divergence = expected(step)
            assert trainer.measure(step) == pytest.approx(loss, rel=1e-5)
            metrics = trainer.step(step)
            assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
            assert metrics["divergence"] == pytest.approx(divergence, rel=1e-4)
    with pytest.raises(UserError, match="use the objective KTO"):
        DPO(objective.settings)


def test_a_target_at_the_first_token_has_no_logprob_and_counts_in_no_length():
    begins = row([1, 2, 3, 8, 4], (0, 3), (4, 5))
    assert begins.predicted == [range(1, 3), range(4, 5)]
    assert len(row_logprobs(tiny_llama(), [begins])[0]) == 3
    assert float(side_statistic([begins], [torch.tensor(CHOSEN)], "turns")) == -2.5
    mute = row([5, 6, 7], (0, 1))
    objective = DPO(DPOSettings(reduction="turns"))
    assert objective.count(Pair((mute,), (WORSE,), (0.0, 0.0))) == 0.0
    both = (mute, BETTER)
    values = [torch.zeros(0), torch.tensor(CHOSEN)]
    assert float(side_statistic(both, values, "turns")) == -2.5
