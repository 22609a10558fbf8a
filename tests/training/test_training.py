"""Training on a Llama of some thousand random weights."""

import json
import signal
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from coterie.errors import UserError
from coterie.models.adapters import add_lora
from coterie.models.prefix_trie import CostRule, Splitter, pack
from coterie.record.rows import Row, Target
from coterie.training import checkpoint
from coterie.training.batches import Order, make_batch, rank_microbatches
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import SFT, Regression
from coterie.training.reference import row_logprobs
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import make_optimizer, rate_at, train
from tests.helpers.compare_weights import assert_same_weights, weight_bounds
from tests.helpers.training_models import (
    LOW,
    SETTINGS,
    make_pairs,
    make_rows,
    start_model,
    start_training,
    statuses,
    tiny_llama,
)


def with_(**changes):
    return TrainingSettings(**{**SETTINGS.model_dump(), **changes})


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def largest_difference(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def split(rows, rule=None, budget=128):
    batch = make_batch(rows, SFT(), 64)
    splitter = Splitter(batch.sequences, rule, budget)
    return splitter, splitter.families(range(len(rows)))


# What a step is.


def test_every_row_is_seen_once_per_epoch_and_the_order_is_that_of_the_seed():
    groups = [""] * 43
    steps = list(Order(groups, 0, 8).steps(0, 12))
    assert [len(step) for step in steps] == [8, 8, 8, 8, 8, 3] * 2
    for epoch in (steps[:6], steps[6:]):
        assert sorted(index for step in epoch for index in step) == list(range(43))
    assert steps[:6] != steps[6:]
    assert steps[4:] == list(Order(groups, 0, 8).steps(4, 12))
    assert steps != list(Order(groups, 1, 8).steps(0, 12))


def test_ranks_get_equally_many_micro_batches():
    long = [Row((2,) * 60, (Target(1, 60, "a"),)) for _ in range(3)]
    for rows, ranks, budget in ((make_rows(20), 1, 128), (make_rows(20), 3, 128), (long, 2, 64)):
        splitter, families = split(rows, budget=budget)
        parts = [rank_microbatches(splitter, families, rank, ranks) for rank in range(ranks)]
        assert len({len(own) for own in parts}) == 1
        whole = [part for own in parts for part in own if part]
        assert sorted(i for part in whole for i in part) == list(range(len(rows)))
        assert all(len(part) * max(len(rows[i].ids) for i in part) <= budget for part in whole)


def test_items_of_one_group_are_drawn_into_one_step():
    groups = make_batch(make_pairs(trees=6), Regression(), 64).groups
    for step in Order(groups, seed=0, batch_size=6).steps(0, 6):
        assert len(step) == 6
        assert len({groups[item] for item in step}) == 2, "three pairs of each tree"


def test_a_family_over_the_budget_is_halved():
    beginning = tuple(range(2, 22))
    rows = [Row((*beginning, *range(n, n + 8)), (Target(20, 28, "a"),)) for n in range(2, 18)]
    splitter, families = split(rows, CostRule(0.0))
    assert len(families) > 1
    (parts,) = splitter.microbatches(families)
    assert sorted(item for part in parts for item in part) == list(range(16))
    for part in parts:
        packs = pack([rows[item].ids for item in part], CostRule(0.0))
        assert len(packs) * max(len(one.trie) for one in packs) <= 128


def test_rows_that_cannot_be_trained_are_dropped_and_counted(tmp_path):
    rows = make_rows(8)
    rows[7] = Row((2,) * 64, (Target(3, 64, "script"),))
    long = Row((2,) * 65, (Target(3, 65, "script"),))
    bad = [long, Row((2, 3), ()), replace(rows[0], weight=0.0)]
    report = train(tiny_llama(), [*rows, *bad], with_(epochs=1), tmp_path)
    assert (report.rows, report.dropped_too_long, report.dropped_empty) == (8, 1, 2)
    assert metrics_of(tmp_path)[0]["rows_dropped"] == 3
    assert report.tokens == sum(len(row.ids) for row in rows)
    assert report.targets == sum(row.target_count for row in rows)
    with pytest.raises(UserError, match="1 are longer than 64"):
        train(tiny_llama(), [long], SETTINGS, tmp_path / "none")


# What is learned.


def test_loss_is_one_weighted_mean_over_the_step(tmp_path):
    model, rows = tiny_llama(), make_rows(8)
    with torch.no_grad():
        logprobs = row_logprobs(model, rows)
    total = sum(-row.weight * float(each.sum()) for row, each in zip(rows, logprobs, strict=True))
    count = sum(row.weight * row.target_count for row in rows)
    report = train(model, rows, with_(epochs=1), tmp_path)
    assert report.first_loss == pytest.approx(total / count, rel=1e-6)


def test_a_target_at_the_first_token_is_not_trained():
    row = Row((5, 6, 7), (Target(0, 3, "script"),), weight=2.0)
    assert SFT().count(row) == 4.0
    assert len(row_logprobs(tiny_llama(), [row])[0]) == 2


@pytest.mark.parametrize("max_norm", [1e9, 1e-6])
def test_a_step_is_that_of_adamw_with_decay_of_matrices_only(tmp_path, max_norm):
    """Four steps against torch's own, its rates and counts typed in; a tiny norm is near Adam's epsilon."""
    rows = make_rows(8)
    numbers = {"betas": (0.7, 0.9), "weight_decay": 0.5, "max_grad_norm": max_norm}
    settings = with_(**numbers, epochs=4, schedule="linear", warmup_ratio=0.5)
    trained, model = tiny_llama(), tiny_llama()
    with weight_bounds(trained) as bounds:
        train(trained, rows, settings, tmp_path)
    matrices, vectors = ([w for w in model.parameters() if w.ndim == n] for n in (2, 1))
    parts = [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(parts, betas=(0.7, 0.9))
    for step, rate in zip(metrics_of(tmp_path), (0.005, 0.01, 0.01, 0.005), strict=True):
        adam.zero_grad()
        loss = sum(-row.weight * own_logprobs(model, row).sum() for row in rows)
        loss = loss / sum(row.weight * row.target_count for row in rows)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for part in adam.param_groups:
            part["lr"] = rate
        adam.step()
        assert step["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert step["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert_same_weights(weights_of(model), weights_of(trained), bounds)


def own_logprobs(model, row):
    """Of a row's targets, by the model's plain forward pass."""
    logprobs = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
    places = [place for place, target in enumerate(row.mask) if target]
    return torch.stack([logprobs[place - 1, row.ids[place]] for place in places])


def test_steps_are_those_of_all_epochs_or_as_many_as_were_asked_for(tmp_path):
    for number, (changes, steps) in enumerate(
        (({"epochs": 2}, 4), ({"epochs": 2, "max_steps": 3}, 3), ({"max_steps": 9}, 4))
    ):
        report = train(tiny_llama(), make_rows(10), with_(**changes), tmp_path / str(number))
        assert report.steps == len(metrics_of(tmp_path / str(number))) == steps


def test_gradient_checkpointing_changes_nothing(tmp_path):
    results = []
    for on in (False, True):
        model = tiny_llama()
        train(model, make_rows(), with_(gradient_checkpointing=on, epochs=1), tmp_path / str(on))
        results.append(weights_of(model))
    assert largest_difference(*results) < 1e-6


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("constant", (1, 1, 1, 1, 1, 1, 1, 1)),
        ("linear", (1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125)),
        ("cosine", (1, 0.9619398, 0.8535534, 0.6913417, 0.5, 0.3086583, 0.1464466, 0.0380602)),
    ],
)
def test_the_rate_of_every_schedule(schedule, after):
    settings = with_(warmup_ratio=0.2, learning_rate=1.0, schedule=schedule)
    assert [rate_at(step, 10, settings) for step in range(10)] == pytest.approx([0.5, 1, *after])


# Adapters.


def test_lora_trains_the_adapter_only_and_leaves_the_base_as_it_was(tmp_path):
    model = tiny_llama()
    before = weights_of(model)
    report = train(model, make_rows(), with_(method="lora", lora_r=4), tmp_path)
    assert largest_difference(before, weights_of(model)) == 0
    saved = load_file(report.final / "adapter_model.safetensors")
    assert all("lora_" in name for name in saved)
    assert any("lora_B" in name and weight.abs().max() > 0 for name, weight in saved.items())
    assert report.last_loss < report.first_loss


def test_lora_goes_on_with_the_adapter_that_a_model_has(tmp_path):
    model = add_lora(tiny_llama(), r=2, alpha=4)
    before = weights_of(model)
    report = train(model, make_rows(), with_(method="lora"), tmp_path)
    after = weights_of(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert weight_hash(report.final) == weight_hash(model)
    with pytest.raises(UserError, match="method=full"):
        train(model, make_rows(), SETTINGS, tmp_path / "full")


# Stopping and going on.


@pytest.mark.parametrize("method", ["full", "lora", "bfloat16"])
def test_killed_and_resumed_training_is_bitwise_equal(tmp_path, method):
    model, settings = start_model(method)
    whole = train(model, make_rows(), settings, tmp_path / "whole")
    folder = tmp_path / "killed"
    process = start_training(method, folder)
    while process.is_alive() and not (folder / "checkpoint-00000003").exists():
        time.sleep(0.01)
    process.kill()
    assert statuses([process]) == [-signal.SIGKILL]
    assert 3 <= int(checkpoint.newest_checkpoint(folder).name[-8:]) < whole.steps
    resumed = train(start_model(method)[0], make_rows(), settings, folder)
    assert weight_hash(resumed.final) == weight_hash(whole.final)
    losses, other = (
        [line["loss"] for line in metrics_of(tmp_path / name)] for name in ("whole", "killed")
    )
    assert losses == other
    assert sorted(path.name for path in folder.iterdir()) == ["final", "metrics.jsonl"]


# What is refused.


def test_weights_of_another_dtype_and_bad_row_weights_are_refused(tmp_path):
    for model, settings in ((tiny_llama().bfloat16(), SETTINGS), (tiny_llama(), LOW)):
        with pytest.raises(UserError, match="dtype="):
            train(model, make_rows(), settings, tmp_path)
    for weight in (-1.0, float("nan")):
        with pytest.raises(UserError, match="weight >= 0"):
            train(tiny_llama(), [replace(make_rows(1)[0], weight=weight)], SETTINGS, tmp_path)


def test_the_default_rank_and_scale_of_an_adapter_have_the_identity_of_given_ones():
    settings = TrainingSettings(method="lora")
    described = TrainingSettings(method="lora", lora_r=16, lora_alpha=32)
    assert settings.identity() == described.model_copy(update={"processes": 2}).identity()
    assert settings.identity() != TrainingSettings(method="lora", lora_alpha=16).identity()


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_computes_or_is_the_weights(tmp_path, dtype, method):
    precision = "bf16" if dtype == "float32" else "no"
    settings = with_(dtype=dtype, mixed_precision=precision, method=method, epochs=3)
    model = tiny_llama().to(getattr(torch, dtype))
    report = train(model, make_rows(), settings, tmp_path)
    assert report.last_loss < report.first_loss - 0.05
    file = "model" if method == "full" else "adapter_model"
    kinds = {w.dtype for w in load_file(report.final / f"{file}.safetensors").values()}
    assert kinds == {torch.float32 if method == "lora" else getattr(torch, dtype)}


def test_updates_smaller_than_bfloat16_resolves_count_in_the_mean():
    gradients = torch.randn(30, 20_000, generator=torch.Generator().manual_seed(0)) + 1
    weights = {kind: torch.ones(20_000, dtype=kind) for kind in (torch.float32, torch.bfloat16)}
    for weight in weights.values():
        optimizer = make_optimizer({"w": weight}, with_(learning_rate=1e-5, weight_decay=0))
        torch.manual_seed(0)
        for gradient in gradients:
            weight.grad = gradient.to(weight.dtype)
            optimizer.step()
    exact, low = (1 - weight.double().mean() for weight in weights.values())
    assert 1e-4 < exact < 3e-4 < torch.finfo(torch.bfloat16).eps / 4
    assert low == pytest.approx(float(exact), rel=0.1)
