"""The parts of the policy gradient: means over paths, clips, divergences and their gradients, entropy, the engine.

Against numbers worked out by hand, or by sums over a whole small vocabulary.
"""

import math
from dataclasses import replace

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.errors import UserError
from coterie.models.logprobs import entropies, sequence_logprobs, token_entropies
from coterie.models.prefix_trie import CostRule
from coterie.record.rows import Piece, Row, Segment, Target, View, rows, view
from coterie.record.turn import Part, Sample, Speaker, make_turn
from coterie.training.batches import make_batch
from coterie.training.policy_gradient import (
    PolicyGradient,
    PolicyGradientSettings,
    divergence,
    row_count,
)
from coterie.training.reference import (
    LossModule,
    row_logprobs,
    target_positions,
    with_old,
    with_row_reference,
)
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer
from tests.helpers.recorded_dialogues import AGENTS, play_exchange
from tests.helpers.template_models import make_model as templated
from tests.helpers.training_models import SETTINGS, make_rows, tiny_llama

ONE = TrainingSettings(
    **{**SETTINGS.model_dump(), "schedule": "constant", "warmup_ratio": 0, "epochs": 1}
)

LONG = ONE.model_copy(update={"max_length": 512, "tokens_per_microbatch": 512})


def objective(**settings: object) -> PolicyGradient:
    return PolicyGradient(PolicyGradientSettings(**settings))


def one_row(tokens: int, **fields: object) -> Row:
    """A row of some trained tokens after one of a prompt, whose old log-probs are 0."""
    zeros = (0.0,) * tokens
    row = Row((0,) * (tokens + 1), (Target(1, tokens + 1, "p@0"),), logprobs=zeros, old=zeros,
              advantages=(1.0,) * tokens, reference=zeros, path_tokens=tokens, teacher=zeros)  # fmt: skip
    return replace(row, **fields)


def read(*ratios: float) -> torch.Tensor:
    """What an objective reads where the ratios to log-probs of 0 are these; entropies of 1."""
    return torch.stack([torch.tensor(ratios).log(), torch.ones(len(ratios))], -1)


def step_loss(found: PolicyGradient, items: list[Row], values: list[torch.Tensor]) -> float:
    losses = found.losses(items, [[one] for one in values]).detach()
    return float(losses.sum()) / sum(found.count(item) for item in items)


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected"),
    [
        (1, 1.25, -1.25), (1, 2, -1.28), (1, 0.5, -0.5),
        (-1, 0.5, 0.8), (-1, 2, 2.0), (-1, 3, 3.0), (-1, 10, 3.0), (-2, 10, 6.0),
    ],
)  # fmt: skip
def test_each_side_has_its_clip_and_bad_tokens_a_second_one(advantage, ratio, expected):
    clipped = objective(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    row = one_row(1, advantages=(float(advantage),))
    assert step_loss(clipped, [row], [read(ratio)]) == pytest.approx(expected)


def loss_and_gradient(
    settings: dict[str, object], row: Row, *ratios: float
) -> tuple[float, list[float]]:
    """Return the loss of a row whose ratios to log-probs of 0 are these, and its gradient by log-prob."""
    logprobs = torch.tensor(ratios).log().requires_grad_()
    loss = objective(**settings).loss(row, [torch.stack([logprobs, torch.ones(len(ratios))], -1)])
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), gradient.tolist()


GSPO = {"kind": "gspo", "aggregation": "sequence", "clip_low": 0.2, "clip_high": 0.28}


@pytest.mark.parametrize(
    ("ratios", "advantages", "loss", "gradient"),
    [
        # The ratio of the sequence is the geometric mean: 1.1, 2, 0.5. Each token has half of it.
        ((1.21, 1.0), (1.0, 1.0), -1.1, [-0.55, -0.55]),
        ((1.21, 1.0), (3.0, 1.0), -2.2, [-1.65, -0.55]),
        ((4.0, 1.0), (1.0, 1.0), -1.28, [0, 0]),
        ((4.0, 1.0), (-1.0, -1.0), 2.0, [1.0, 1.0]),
        ((0.25, 1.0), (1.0, 1.0), -0.5, [-0.25, -0.25]),
        ((0.25, 1.0), (-1.0, -1.0), 0.8, [0, 0]),
    ],
)
def test_gspo_clips_the_geometric_mean_of_a_rows_ratios(ratios, advantages, loss, gradient):
    result = loss_and_gradient(GSPO, one_row(2, advantages=advantages), *ratios)
    assert result == (pytest.approx(loss), pytest.approx(gradient))


def test_the_ratio_of_gspo_is_of_a_row_and_never_of_a_step():
    items = [one_row(2), one_row(1)]
    values = [read(1.21, 1.0), read(0.9)]
    assert step_loss(objective(**GSPO), items, values) == pytest.approx(-(1.1 + 0.9) / 2)
    # The rows of a path add up to the mean over its tokens.
    items = [replace(row, path_tokens=3) for row in items]
    assert step_loss(objective(**GSPO), items, values) == pytest.approx(-(2 * 1.1 + 0.9) / 3)
    measured = objective(**GSPO, dual_clip=3.0).measures(items, [[one] for one in values])
    assert measured["ratio"].values.tolist() == pytest.approx([1.1, 1.1, 0.9])
    assert measured["policy_kl"].values.tolist() == pytest.approx(
        [0.21 - math.log(1.21), 0, -0.1 - math.log(0.9)], abs=1e-6
    )


@pytest.mark.parametrize(
    ("low", "ratio", "advantage", "weight"),
    [
        (0.2, 1.1, 1, 1.1), (0.2, 2, 1, 1.28), (0.2, 2, -1, 1.28), (0.2, 0.5, -1, 0.8),
        (1.0, 0.5, 1, 0.5), (1.0, 0.5, -1, 0.5), (1.0, 2, 1, 1.28),
    ],
)  # fmt: skip
def test_cispo_clips_a_constant_weight_and_trains_every_token(low, ratio, advantage, weight):
    settings = {"kind": "cispo", "clip_low": low, "clip_high": 0.28}
    row = one_row(1, advantages=(float(advantage),))
    expected = -weight * advantage
    loss, gradient = loss_and_gradient(settings, row, ratio)
    assert loss == pytest.approx(expected * math.log(ratio))
    assert gradient == pytest.approx([expected])
    clips = objective(**settings).measures([row], [[read(ratio)]])["clip_share"]
    assert clips.values.tolist() == [weight != ratio]


@pytest.mark.parametrize("settings", [{}, GSPO, {"kind": "cispo"}], ids=["ppo", "gspo", "cispo"])
def test_distillation_has_the_expected_gradient_of_the_divergence_from_the_teacher(settings):
    logits = logits_of(1).requires_grad_()
    p, teacher = logits.log_softmax(-1), logits_of(2).log_softmax(-1)
    loss_of, total = objective(**settings, distill_coef=0.5), torch.zeros(())
    # The mean over tokens drawn from the policy: each token at its probability.
    for token in range(VOCABULARY):
        old = (float(p[token]),)
        row = one_row(1, advantages=(0.0,), logprobs=old, teacher=(float(teacher[token]),))
        loss = loss_of.loss(row, [torch.stack([p[token], p.new_ones(())])[None]])
        total = total + p[token].exp().detach() * loss
    (gradient,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(gradient, 0.5 * exact_gradient("reverse"), atol=1e-9, rtol=1e-9)
    row = one_row(2, advantages=(1.0, 1.0), teacher=(math.log(2.0), 0.0))
    loss = step_loss(objective(distill_coef=0.5), [row], [read(1.0, 1.0)])
    assert loss == pytest.approx(-(1 + 0.5 * math.log(2) + 1) / 2)


def test_ratios_that_would_overflow_are_held_and_finite():
    row = one_row(2, advantages=(-1.0, -1.0), reference=(300.0, -300.0))
    values = torch.tensor([[500.0, 1.0], [-500.0, 1.0]], requires_grad=True)
    for kind in ("k2", "k3", "k3_forward"):
        loss = objective(kl_coef=0.1, kl_estimator=kind).losses([row], [[values]])
        assert loss.isfinite().all()
        (gradient,) = torch.autograd.grad(loss.sum(), values)
        assert gradient.isfinite().all()
    assert step_loss(objective(), [one_row(1, advantages=(-1.0,))], [values[:1]]) == pytest.approx(
        math.exp(20)
    )


def paths_of_rows() -> tuple[list[Row], list[torch.Tensor]]:
    """A path of two rows (1 and 3 tokens) and one of a single row (2 tokens), each with a loss of its own."""
    rows_ = [
        one_row(1, advantages=(1.0,), path_tokens=4, origin="a/x/0"),
        one_row(3, advantages=(2.0,) * 3, path_tokens=4, origin="a/x/1"),
        one_row(2, advantages=(4.0,) * 2, path_tokens=2, origin="b/x/0"),
    ]
    return rows_, [read(*[1.0] * row.target_count) for row in rows_]


@pytest.mark.parametrize(
    ("mean", "constant", "expected"),
    [
        ("token", None, -(1 + 6 + 8) / 6),
        ("sequence", None, -((1 + 6) / 4 + 8 / 2) / 2),
        ("constant", 10, -((1 + 6) / 10 + 8 / 10) / 2),
    ],
)
def test_means_are_of_tokens_or_of_paths_and_never_of_rows(mean, constant, expected):
    items, values = paths_of_rows()
    named = objective(aggregation=mean, length_constant=constant)
    assert step_loss(named, items, values) == pytest.approx(expected)
    assert sum(map(named.count, items)) == pytest.approx(6 if mean == "token" else 2)
    # An overlong path has weight 0, as if it were not there.
    without = step_loss(named, items[:2], values[:2])
    items[2] = replace(items[2], weight=0.0)
    assert step_loss(named, items, values) == pytest.approx(without)
    assert len(make_batch(items, named, 100).items) == 2


def test_segments_of_a_recorded_path_know_the_path_and_how_it_was_sampled():
    segments = []
    for ids in ((1, 2, 3), (4,)):
        sample = Sample("r", ids, (-1.0,) * len(ids), "end", "p", "0", 0, 0.7, 0.9)
        turn = make_turn("", Speaker("agent", "x"), [Part("text")], sample=sample)
        segments.append(Segment([Piece((8, 9)), Piece(ids, turn)]))
    made = list(rows(View("x", "leaf", tuple(segments))))
    assert [row.path_tokens for row in made] == [4, 4]
    assert [(t.temperature, t.top_p) for row in made for t in row.targets] == [(0.7, 0.9)] * 2
    assert [row_count(row, "sequence") for row in made] == [0.75, 0.25], "together one path"
    for wrong in (None, 2):
        with pytest.raises(UserError, match="path_tokens="):
            objective(aggregation="sequence").count(one_row(3, path_tokens=wrong))
    assert objective().count(one_row(3, path_tokens=None)) == 3


@pytest.mark.parametrize("mean", ["token", "sequence", "constant"])
def test_a_step_is_the_same_however_it_is_split(mean, tmp_path):
    constant = 8 if mean == "constant" else None
    settings = {
        "aggregation": mean,
        "length_constant": constant,
        "kl_coef": 0.1,
        "entropy_coef": 0.01,
    }
    results = []
    for budget in (64, 2000):
        model = tiny_llama()
        items = [
            replace(row, logprobs=(-3.0,) * 7, advantages=(1.0 - index % 3,) * 7,
                    reference=(-3.4,) * 7, path_tokens=7 * (1 + index % 2))
            for index, row in enumerate(make_rows(8))
        ]  # fmt: skip
        few = ONE.model_copy(update={"tokens_per_microbatch": budget})
        with Trainer(model, objective(**settings), few, tmp_path / str(budget)) as trainer:
            metrics = [trainer.step(items) for _ in range(2)][-1]
        results.append((torch.cat([w.detach().flatten() for w in model.parameters()]), metrics))
    (one, metrics), (other, others) = results
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    names = ("loss", "ratio", "ratio_min", "ratio_max", "clip_share", "entropy", "reference_kl")
    for name in names:
        assert metrics[name] == pytest.approx(others[name], abs=1e-4), name
    assert metrics["ratio_min"] < metrics["ratio"] < metrics["ratio_max"]


VOCABULARY = 6


def test_tokens_that_a_model_excludes_add_nothing_to_an_entropy():
    logits = torch.tensor([[1.0, 2.0, -math.inf]], requires_grad=True)
    entropy = entropies(logits.log_softmax(-1))
    torch.testing.assert_close(entropy, entropies(logits[:, :2].log_softmax(-1)))
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert gradient.isfinite().all()


def logits_of(seed: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)).double()


def exact_gradient(direction: str) -> torch.Tensor:
    """Of the divergence itself, by sums over the vocabulary."""
    logits = logits_of(1).requires_grad_()
    p, q = logits.log_softmax(-1), logits_of(2).log_softmax(-1)
    value = (p.exp() * (p - q)).sum() if direction == "reverse" else (q.exp() * (q - p)).sum()
    return torch.autograd.grad(value, logits)[0]


def expected_gradient(kind: str, sampler: torch.Tensor) -> torch.Tensor:
    """The mean gradient of the estimate of tokens drawn by ``sampler``: each token at its probability."""
    logits = logits_of(1).requires_grad_()
    p, old = logits.log_softmax(-1), sampler.log_softmax(-1)
    terms = divergence(kind, p, logits_of(2).log_softmax(-1), (p - old).exp())
    return torch.autograd.grad((old.exp() * terms).sum(), logits)[0]


def test_estimates_have_the_gradients_that_their_names_promise():
    on_policy, off_policy = logits_of(1), logits_of(3)
    close = {"atol": 1e-9, "rtol": 1e-9}
    reverse, forward = exact_gradient("reverse"), exact_gradient("forward")
    assert (reverse - forward).abs().max() > 1e-2
    torch.testing.assert_close(expected_gradient("k3", on_policy), reverse, **close)
    torch.testing.assert_close(expected_gradient("k3", off_policy), reverse, **close)
    torch.testing.assert_close(expected_gradient("k2", on_policy), reverse, **close)
    torch.testing.assert_close(expected_gradient("k3_forward", on_policy), forward, **close)


def test_the_divergence_counts_where_there_is_no_advantage():
    row = one_row(2, advantages=(0.0, 0.0), reference=(-1.0, -2.0))
    loss = step_loss(objective(kl_coef=0.5, kl_estimator="k3_forward"), [row], [read(1.0, 1.0)])
    assert loss == pytest.approx(0.5 * (math.exp(-1) - 1 + 1 + math.exp(-2) - 1 + 2) / 2)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("rule", [None, CostRule(0.0)], ids=["flat", "packed"])
def test_entropies_are_those_of_the_models_own_distributions(temperature, rule):
    model, items = tiny_llama(), make_rows(5)
    found = sequence_logprobs(
        model, [row.ids for row in items], [target_positions(row) for row in items], rule,
        compute=token_entropies, temperature=temperature, gradient=True,
    )  # fmt: skip
    for row, (logprobs, exact) in zip(items, (one.unbind(-1) for one in found), strict=True):
        own = (model(torch.tensor([row.ids])).logits[0] / temperature).log_softmax(-1)
        own = own[[place - 1 for place in target_positions(row)]]
        torch.testing.assert_close(exact, torch.distributions.Categorical(logits=own).entropy())
        chosen = own[range(len(own)), [row.ids[place] for place in target_positions(row)]]
        torch.testing.assert_close(logprobs, chosen, atol=1e-5, rtol=1e-5)


def test_entropy_has_the_gradient_of_entropy_only_where_it_is_in_the_loss():
    model, (row,) = tiny_llama(), make_rows(1)
    items = [replace(row, logprobs=(-3.0,) * 7, advantages=(0.0,) * 7)]
    LossModule(model, objective(entropy_coef=0.5))(items).sum().backward()
    gradient = model.lm_head.weight.grad.clone()
    model.zero_grad()
    own = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
    own = own[[place - 1 for place in target_positions(row)]]
    (0.5 * row.weight * (own.exp() * own).sum()).backward()
    torch.testing.assert_close(gradient, model.lm_head.weight.grad, atol=1e-5, rtol=1e-4)
    assert gradient.abs().max() > 1e-3
    model.zero_grad()
    LossModule(model, objective())(items).sum().backward()
    assert model.lm_head.weight.grad.abs().max() == 0
    logits = torch.tensor([[1.0, 2.0, -math.inf]])  # what a model rules out adds nothing
    two = torch.distributions.Categorical(logits=logits[:, :2]).entropy()
    torch.testing.assert_close(entropies(logits.log_softmax(-1)), two)


def sampled(temperature: float = 1.0, top_p: float = 1.0) -> list[Row]:
    loaded = templated("chatml")
    sampling = Sampling(max_tokens=30, temperature=temperature, top_p=top_p)
    game = play_exchange(InProcessEngine(loaded), lambda _: sampling, turns=4)
    made = [row for agent in AGENTS for row in rows(view(game.tree, game.leaf, agent))]
    return [replace(row, advantages=(1.0,) * row.target_count) for row in made]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ratios_are_one_before_the_first_update_at_the_temperature_of_sampling(
    temperature, tmp_path
):
    """Contract 8, by the loss itself: the engine's log-probs, from its compiled loops, against the trainer's."""
    names, at = ("ratio", "ratio_min", "ratio_max"), {"temperature": temperature}
    items = sampled(temperature)
    with Trainer(templated("chatml").model, objective(**at), LONG, tmp_path / "engine") as trainer:
        metrics = trainer.step(items)
    assert [metrics[name] for name in names] == pytest.approx([1, 1, 1], abs=1e-4)
    assert metrics["clip_share"] == 0
    loss = objective(
        **at, old_logprobs="recomputed", importance_sampling="token_truncate", kl_coef=0.1
    )
    with Trainer(templated("chatml").model, loss, LONG, tmp_path / "recomputed") as trainer:
        items = with_old(trainer.model, items, LONG, temperature=temperature)
        items = with_row_reference(trainer.model, items, LONG, temperature=temperature)
        metrics = trainer.step(items)
        moved = trainer.step(items)
    assert [metrics[name] for name in names] == [1, 1, 1], "exactly"
    assert metrics["reference_kl"] == metrics["policy_kl"] == 0.0
    assert metrics["engine_ratio_max"] == pytest.approx(1, abs=1e-4)
    assert moved["ratio_max"] > 1.0 > moved["ratio_min"] and moved["policy_kl"] > 0


def test_rows_of_another_distribution_are_refused():
    rows_ = sampled(temperature=0.7)
    with pytest.raises(UserError, match=r"sampled at temperature 0\.7"):
        make_batch(rows_, objective(), 1000)
    with pytest.raises(UserError, match=r"top_p=0\.8"):
        make_batch(sampled(top_p=0.8), objective(), 1000)
    assert make_batch(rows_, objective(temperature=0.7), 1000).items


@pytest.mark.parametrize(
    ("importance", "cap", "raw", "weights"),
    [
        ("off", 2.0, [0.5, 2, 8], [1, 1, 1]),
        ("token_truncate", 2.0, [0.5, 2, 8], [0.5, 2, 2]),
        ("token_mask", 2.0, [0.5, 2, 8], [0.5, 2, 0]),
        ("sequence_truncate", 2.0, [8, 8, 8], [2, 2, 2]),
        ("sequence_truncate", 9.0, [8, 8, 8], [8, 8, 8]),
        ("sequence_mask", 2.0, [8, 8, 8], [0, 0, 0]),
        ("sequence_mask", 9.0, [8, 8, 8], [8, 8, 8]),
    ],
)
def test_tokens_weigh_what_the_trainer_says_they_were_likelier_than_the_engine_said(
    importance, cap, raw, weights
):
    """Old log-probs are 0, so the engine's are minus the logs of the ratios 0.5, 2 and 8, whose product is 8."""
    row = one_row(3, logprobs=tuple(-math.log(one) for one in (0.5, 2.0, 8.0)))
    loss = objective(
        old_logprobs="recomputed", importance_sampling=importance, importance_sampling_cap=cap
    )
    values = read(1.0, 1.1, 1.05)
    expected = -sum(w * r for w, r in zip(weights, (1.0, 1.1, 1.05), strict=True)) / 3
    assert step_loss(loss, [row], [values]) == pytest.approx(expected)
    measured = loss.measures([row], [[values]])
    ratios = measured["engine_ratio"]
    assert ratios.extremes and ratios.values.tolist() == pytest.approx(raw), "before any cut"
    estimates = [ratio - 1 - math.log(ratio) for ratio in (0.5, 2.0, 8.0)]
    assert measured["engine_kl"].values.tolist() == pytest.approx(estimates), "of single tokens"
    if importance != "off":
        cut = [ratio > cap for ratio in raw]
        assert measured["engine_cut_share"].values.tolist() == cut
    # The engine's share has no part in divergence or entropy.
    still = one_row(1, advantages=(0.0,), logprobs=(-math.log(2.0),), reference=(-1.0,))
    settings = {"old_logprobs": "recomputed", "kl_coef": 0.5, "entropy_coef": 0.25}
    plain = step_loss(objective(**settings), [still], [read(1.0)])
    weighed = objective(**settings, importance_sampling=importance)
    assert step_loss(weighed, [still], [read(1.0)]) == plain


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, "logprobs"), ({"old_logprobs": "recomputed"}, "old"), ({"kl_coef": 0.1}, "reference"),
        ({"old_logprobs": "recomputed", "importance_sampling": "token_mask"}, "logprobs"),
        ({"distill_coef": 0.1}, "teacher"),
    ],
)  # fmt: skip
def test_what_a_loss_needs_is_asked_for(settings, missing):
    loss, lacking = objective(**settings), one_row(2, **{missing: None})
    assert make_batch([one_row(2)], loss, 100).items
    with pytest.raises(UserError, match=f"has no {missing}"):
        make_batch([lacking], loss, 100)
    with pytest.raises(UserError, match=f"has 1 {missing} for 2 targets"):
        make_batch([one_row(2, **{missing: (0.0,)})], loss, 100)
    # No pass computes anything for a row that is too long, so it is left out and counted.
    batch = make_batch([one_row(1), lacking], loss, len(one_row(1).ids))
    assert (len(batch.items), batch.too_long) == (1, 1)
    assert make_batch([one_row(2, logprobs=None)], objective(old_logprobs="recomputed"), 100).items


def test_recomputed_log_probs_are_the_models_and_leave_first_tokens_out():
    model = tiny_llama()
    rows_ = make_rows(6)
    rows_[0] = replace(rows_[0], targets=(Target(0, 2, "p@0"), *rows_[0].targets))
    rows_[1] = replace(rows_[1], weight=0.0)
    found = with_old(model, rows_, ONE, temperature=0.5)
    assert found[1].old is None
    assert found[0].old[0] == 0.0
    assert len(found[0].old) == rows_[0].target_count
    for row in (found[0], *found[2:]):
        (own,) = row_logprobs(model, [row], None, 0.5)
        assert row.old[row.unpredicted :] == pytest.approx(own.tolist(), abs=1e-4)


def test_clips_are_counted_where_they_keep_a_token_from_moving():
    row = one_row(6, advantages=(1.0, 1.0, 1.0, -1.0, -1.0, -1.0))
    values = read(2.0, 0.5, 1.0, 2.0, 0.5, 20.0)
    measured = objective(dual_clip=10.0).measures([row], [[values]])
    assert measured["clip_share"].values.tolist() == [1, 0, 0, 0, 1, 1]
    assert measured["clip_share_low"].values.tolist() == [0, 0, 0, 0, 1, 0]
    assert measured["clip_share_high"].values.tolist() == [1, 0, 0, 0, 0, 1]
    assert measured["policy_kl"].values[2] == 0
    assert measured["entropy"].values.tolist() == [1] * 6


def own_logprobs(model, row: Row) -> torch.Tensor:
    """Of the row's targets, by the model's own forward pass; the first token has none."""
    logits = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
    places = [i for target in row.targets for i in range(target.start, target.stop) if i > 0]
    return torch.stack([logits[i - 1, row.ids[i]] for i in places])


def sampled_rows(model, count: int = 6) -> list[Row]:
    """Rows with made-up advantages, whose log-probs are some way off the model's; one begins with a target."""
    torch.manual_seed(0)
    rows = []
    for number, row in enumerate(make_rows(count)):
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
    loss_of = objective(clip_low=low, clip_high=high, kl_coef=kl)
    for row, loss in zip(rows, LossModule(model, loss_of)(rows), strict=True):
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
    model, rows = tiny_llama(), make_rows(4)

    def gradients(shift: float, advantage: float) -> dict[str, torch.Tensor]:
        old = [tuple((own_logprobs(model, row) + shift).tolist()) for row in rows]
        shifted = [
            replace(row, logprobs=one, advantages=(advantage,) * 7)
            for row, one in zip(rows, old, strict=True)
        ]
        model.zero_grad()
        LossModule(model, objective())(shifted).sum().backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    for shift, advantage, moves in ((-1, 1, False), (1, -1, False), (-1, -1, True), (1, 1, True)):
        after = gradients(shift, float(advantage)).values()
        assert any(one.abs().max() > 0 for one in after) == moves
    clipped = gradients(0.0, 2.0)
    model.zero_grad()
    sum(-2.0 * row.weight * own_logprobs(model, row).sum() for row in rows).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(clipped[name], weight.grad, rtol=1e-4, atol=1e-5)
