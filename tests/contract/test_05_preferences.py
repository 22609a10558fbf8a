"""Contract 5: multi-turn preference loss covers the agent's own tokens only, in every turn, for any
micro-batch size and any number of ranks."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from coterie.errors import UserError
from coterie.models.check import check
from coterie.record.rows import Pair, Row, Target
from coterie.training.losses import DPO, DPOSettings
from coterie.training.reference import rank_row_values, with_reference
from coterie.training.trainer import train
from tests.helpers.compare_weights import assert_same_weights, weight_bounds
from tests.helpers.training_models import (
    SETTINGS,
    main,
    make_pairs,
    start_ranks,
    statuses,
    tiny_llama,
)

OBJECTIVE = DPOSettings(beta=0.5, label_smoothing=0.1, nll_coef=0.2)


def own_logprobs(model, row: Row) -> list[list[float]]:
    """Of each own turn, by the model's plain forward pass, one row, no packing, no padding."""
    with torch.no_grad():
        logits = model(torch.tensor([row.ids])).logits[0].double().log_softmax(-1)
    return [
        [float(logits[place - 1, row.ids[place]]) for place in range(target.start, target.stop)]
        for target in row.targets
    ]


def reduced(turns: list[list[float]], reduction: str) -> float:
    """A side as one number."""
    if reduction == "turns":
        return sum(sum(turn) / len(turn) for turn in turns)
    tokens = [token for turn in turns for token in turn]
    return sum(tokens) / (len(tokens) if reduction == "tokens" else 1)


def by_hand(policy, reference, pairs: list[Pair], settings: DPOSettings) -> float:
    """The objective as in the papers, for one optimiser step."""
    total = 0.0
    for pair in pairs:
        c, r = (
            reduced(own_logprobs(policy, side[0]), settings.reduction)
            - reduced(own_logprobs(reference, side[0]), settings.reduction)
            for side in (pair.chosen, pair.rejected)
        )
        margin = torch.tensor(settings.beta * (c - r), dtype=torch.float64)
        s = settings.label_smoothing
        loss = -(1 - s) * logsigmoid(margin) - s * logsigmoid(-margin)
        mean = reduced(own_logprobs(policy, pair.chosen[0]), "tokens")
        total += pair.weight * (float(loss) - settings.nll_coef * mean)
    return total / sum(pair.weight for pair in pairs)


@pytest.mark.parametrize(
    "settings",
    [
        OBJECTIVE,
        DPOSettings(beta=2.0, reduction="tokens"),
        DPOSettings(beta=0.5, reduction="turns", nll_coef=0.2),
    ],
    ids=lambda settings: settings.reduction,
)
def test_the_loss_is_that_of_the_own_tokens_of_every_turn(settings, tmp_path):
    policy, reference = tiny_llama(1), tiny_llama(0)
    pairs = with_reference(
        reference, make_pairs(), SETTINGS, tmp_path / "reference", reduction=settings.reduction
    )
    assert all(len(pair.chosen[0].targets) == 3 for pair in pairs), "three own turns a side"
    whole = SETTINGS.model_copy(update={"batch_size": len(pairs), "epochs": 1})
    expected = by_hand(policy, reference, pairs, settings)
    report = train(policy, pairs, whole, tmp_path / "train", objective=DPO(settings))
    assert report.first_loss == pytest.approx(expected, abs=1e-5)
    told = json.loads((report.final / "training.json").read_text())
    assert told["identity"]["objective"] == "dpo"


@pytest.mark.parametrize(
    ("tokens", "packing"), [(65, "auto"), (65, "flat"), (128, "auto"), (4096, "auto")]
)
def test_the_size_of_micro_batches_changes_nothing(tokens, packing, tmp_path):
    settings = SETTINGS.model_copy(update={"tokens_per_microbatch": tokens, "packing": packing})
    assert_trained_alike(settings, tmp_path)


def assert_trained_alike(settings, folder):
    """Same losses and weights as in one flat micro-batch a step."""
    flat = SETTINGS.model_copy(update={"tokens_per_microbatch": 10_000, "packing": "flat"})
    weights, losses = [], []
    for name, own in (("flat", flat), ("other", settings)):
        model = tiny_llama()
        pairs = with_reference(
            model, make_pairs(), own, folder / f"{name}-reference", reduction="none"
        )
        with weight_bounds(model) as bounds:
            report = train(model, pairs, own, folder / name, objective=DPO(OBJECTIVE))
        weights.append(dict(model.named_parameters()))
        losses.append((report.first_loss, report.last_loss))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert_same_weights(weights[0], weights[1], bounds)


def test_two_ranks_give_the_weights_of_one(tmp_path):
    ranks = start_ranks("dpo", tmp_path / "two")
    model = tiny_llama()
    with weight_bounds(model) as bounds:
        main("dpo", tmp_path / "one", model=model)
    assert statuses(ranks) == [0, 0]
    one, two = (
        dict(type(model).from_pretrained(tmp_path / name / "final").named_parameters())
        for name in ("one", "two")
    )
    assert_same_weights(one, two, bounds)


def test_pairs_of_one_tree_are_trained_in_one_step(tmp_path):
    model = tiny_llama()
    pairs = with_reference(model, make_pairs(), SETTINGS, tmp_path / "reference", reduction="none")
    six = SETTINGS.model_copy(update={"batch_size": 6, "epochs": 1})
    report = train(model, pairs, six, tmp_path / "train", objective=DPO(OBJECTIVE))
    assert report.steps == 3
    assert report.computed_tokens < 0.75 * report.tokens


def test_reference_logprobs_are_computed_once_and_used_again(tmp_path):
    model, pairs = tiny_llama(), make_pairs()
    first = with_reference(model, pairs, SETTINGS, tmp_path / "reference", reduction="none")
    model.model.forward = None  # nothing can be computed now
    assert with_reference(model, pairs, SETTINGS, tmp_path / "reference", reduction="none") == first
    with pytest.raises(TypeError):
        with_reference(model, pairs[1:], SETTINGS, tmp_path / "reference", reduction="none")
    other = tiny_llama(3)
    again = with_reference(other, pairs, SETTINGS, tmp_path / "reference", reduction="none")
    assert again != first, "another model has other log-probs"
    means = with_reference(other, pairs, SETTINGS, tmp_path / "reference", reduction="tokens")
    assert means != again, "what is stored is of one reduction"


def test_two_ranks_compute_the_reference_of_a_side_whose_first_row_predicts_nothing(tmp_path):
    model, (pair, *rest) = tiny_llama(), make_pairs()
    # An agent that opened the dialogue, and then saw another context.
    opening = Row((5,), (Target(0, 1, "policy@0"),))
    pairs = [replace(pair, chosen=(opening, *pair.chosen)), *rest]

    class TwoRanks:
        def row_values(self, kind, rows, temperature):
            values: list[tuple[float, ...] | None] = [None] * len(rows)
            for rank in range(2):
                of_rank = rank_row_values(model, kind, rows, SETTINGS, temperature, (rank, 2))
                for i, of_row in of_rank:
                    values[i] = of_row
            return values

    one, two = (
        with_reference(model, pairs, SETTINGS, tmp_path / name, reduction="none", scorer=scorer)
        for name, scorer in (("one", None), ("two", TwoRanks()))
    )
    for pair_of_one, pair_of_two in zip(one, two, strict=True):
        assert pair_of_two.reference == pytest.approx(pair_of_one.reference, abs=1e-4)


def test_pairs_that_cannot_be_trained_are_dropped_and_counted_or_refused(tmp_path):
    model, pairs = tiny_llama(), make_pairs()
    equal = replace(pairs[0], rejected=pairs[0].chosen)
    mute = replace(pairs[1], chosen=(replace(pairs[1].chosen[0], targets=()),))
    long = replace(pairs[2], rejected=(Row((3,) * 65, pairs[2].rejected[0].targets),))
    ready = with_reference(
        model, [*pairs[3:], equal, mute, long], SETTINGS, tmp_path / "reference", reduction="none"
    )
    report = train(model, ready, SETTINGS, tmp_path / "train", objective=DPO(OBJECTIVE))
    assert report.rows == SETTINGS.epochs * (len(pairs) - 3)
    assert (report.dropped_empty, report.dropped_too_long) == (2, 1)
    with pytest.raises(UserError, match="no reference log-probs"):
        train(model, pairs, SETTINGS, tmp_path / "none", objective=DPO(OBJECTIVE))
    check(model)
    damaged = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)
        damaged.lm_head.weight.fill_(math.nan)
    with pytest.raises(UserError, match=r"reference log-prob of pair tree\d.* is nan"):
        with_reference(model, pairs, SETTINGS, tmp_path / "nan", reduction="none")
    with pytest.raises(UserError, match="log-probs are not finite"):
        with_reference(damaged, pairs, SETTINGS, tmp_path / "nan", reduction="none")
