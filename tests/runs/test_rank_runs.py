"""Runs of reinforcement learning on ranks: samples and weights of one process, ranks that die, runs that resume."""

import json
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from coterie.errors import UserError
from coterie.progress import Silent
from coterie.runs.loop import REINFORCE, run_stages
from coterie.runs.run import StageKey, open_run
from coterie.training import rank_trainer, trainer
from tests.helpers.compare_weights import assert_same_weights, weight_bounds
from tests.helpers.launch_ranks import CONFIGS, launch, train_five_steps
from tests.helpers.run_rl import (
    Killed,
    Killing,
    informative_overrides,
    make_recipe,
    read_record,
    run_to_end,
)
from tests.helpers.training_models import tiny_llama

pytestmark = pytest.mark.ranks
TWO = ("train.processes=2", "train.learning_rate=1e-5", "steps.count=3")
SHARDED = (*TWO, f"train.launch={CONFIGS / 'fsdp2.yaml'}")
ONE = ("train.learning_rate=1e-5", "steps.count=3")
APART = 0.01
"""Maximum difference of steps that differ by rounding. If gradients are normally distributed and rounding is a share r
of them, the steps of AdamW differ by 2 * sqrt(r), which is 0.01 for r = 2e-5 (``tests.helpers.compare_weights``).
"""


def difference(one: Path, two: Path) -> float:
    """Return how far the final weights of two runs are apart, as a share of three steps of AdamW.

    It is the largest root mean square of a role. A single weight or a key's bias says nothing: where the gradient is
    only rounding, AdamW moves a weight as far as others.
    """
    most, length = 0.0, 3 * 1e-5
    files = sorted(one.glob("training/*/iteration-00/final/*.safetensors"))
    assert files
    for file in files:
        first, second = load_file(file), load_file(two / file.relative_to(one))
        assert first.keys() == second.keys()
        apart = torch.cat([(first[name] - second[name]).flatten() for name in first])
        most = max(most, float(apart.square().mean().sqrt()) / length)
    return most


@pytest.mark.parametrize(
    ("ranks", "method", "own"),
    [
        (TWO, "rl/grpo", ()),
        (TWO, "rl/ppo", ()),
        (
            SHARDED,
            "rl/grpo",
            ("train.method=lora", "reward.kl_coef=0.1", "loss.old_logprobs=recomputed"),
        ),
        (SHARDED, "rl/grpo", ("policies.weights=each",)),
        (SHARDED, "rl/ppo", ()),
    ],
    ids=["ddp", "ddp-critic", "fsdp2-lora", "fsdp2-two-policies", "fsdp2-critic"],
)
def test_two_ranks_sample_and_train_as_one_process(
    tmp_path: Path, ranks: Sequence[str], method: str, own: Sequence[str]
) -> None:
    overrides = [*informative_overrides(tmp_path), *own]
    one, two = tmp_path / "one", tmp_path / "two"
    run_to_end(make_recipe(method, [*overrides, *ONE]), one)
    run_to_end(make_recipe(method, [*overrides, *ranks]), two)
    assert read_record(two) == read_record(one)
    losses = 0.0
    for file in one.glob("training/*/iteration-00/metrics.jsonl"):
        lines = (
            one_or_other.read_text().splitlines()
            for one_or_other in (file, two / file.relative_to(one))
        )
        for first, second in zip(*lines, strict=True):
            alone, together = json.loads(first), json.loads(second)
            assert together["loss"] == pytest.approx(alone["loss"], abs=1e-5)
            assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-3)
            losses += abs(alone["loss"])
    assert losses
    assert 0 < difference(one, two) < APART
    alone, together = (trained_logprobs(folder) for folder in (one, two))
    assert together.keys() == alone.keys() and alone
    for key, logprobs in alone.items():
        assert together[key] == pytest.approx(logprobs, rel=2e-3, abs=2e-3)


def trained_logprobs(folder: Path) -> dict[tuple[object, ...], list[float]]:
    """The log-probs of the trained tokens of a run, by what names their row."""
    names = "role, updates, position, step, leaf, agent, segment, turn, tokens"
    joined = "trained JOIN optimizer_step s ON s.key = optimizer_step"
    with closing(sqlite3.connect(folder / "store.sqlite")) as db:
        rows = db.execute(f"SELECT logprob, {names} FROM {joined}").fetchall()
    return {tuple(key): np.frombuffer(blob or b"", "<f2").tolist() for blob, *key in rows}


class KillsRank(Silent):
    """Kills a rank when the run samples a step, or has taken it."""

    def __init__(self, when: str) -> None:
        self.when, self.killed = when, 0

    def start(self, total: int, description: str) -> None:
        self.kill(description)

    def say(self, text: str) -> None:
        self.kill(text)

    def kill(self, event: str) -> None:
        if event.startswith(self.when) and not self.killed:
            children = psutil.Process().children(recursive=True)
            ranks = [one for one in children if one.cmdline()[-1:] == ["coterie.training.rank"]]
            ranks = [one for one in ranks if one.environ().get("RANK") == "1"]
            ranks[-1].send_signal(signal.SIGKILL)
            self.killed = len(ranks)


@pytest.mark.parametrize("when", [f"{REINFORCE}/00002", "step 2 of"], ids=["sampling", "between"])
def test_a_run_goes_on_if_a_rank_dies(tmp_path: Path, when: str) -> None:
    overrides = [*informative_overrides(tmp_path), *TWO, "steps.save_every=2"]
    run_to_end(make_recipe("rl/ppo", overrides), tmp_path / "whole")
    kills = KillsRank(when)
    run_to_end(make_recipe("rl/ppo", overrides), tmp_path / "run", kills)
    assert kills.killed
    assert read_record(tmp_path / "run") == read_record(tmp_path / "whole")
    assert difference(tmp_path / "whole", tmp_path / "run") == 0


def test_a_killed_run_on_ranks_resumes_in_one_process(tmp_path: Path) -> None:
    overrides = [*informative_overrides(tmp_path), *TWO]
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "whole")
    with pytest.raises(Killed):
        run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run", Killing(1))
    alone = [pair for pair in overrides if not pair.startswith("train.processes")]
    run_to_end(make_recipe("rl/grpo", alone), tmp_path / "run")
    assert read_record(tmp_path / "run") == read_record(tmp_path / "whole")
    assert difference(tmp_path / "whole", tmp_path / "run") < APART


def test_a_refusal_of_ranks_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    overrides = [*informative_overrides(tmp_path), *TWO, "train.max_length=16"]
    with pytest.raises(UserError, match="longer than"):
        run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")


@pytest.mark.parametrize("config", ["ddp.yaml", "fsdp2.yaml"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_five_steps_on_recorded_rows_end_with_the_weights_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, optimizer: str
) -> None:
    one, two, model = tmp_path / "one", tmp_path / "two", tiny_llama()
    monkeypatch.setattr(trainer, "make_optimizer", trainer.make_optimizer)  # restores it
    with weight_bounds(model) as bounds:
        train_five_steps(optimizer, one, model)
    launch(config, 2, "tests.helpers.launch_ranks", optimizer, two)
    first, second = (load_file(folder / "final" / "model.safetensors") for folder in (one, two))
    if optimizer == "sgd":  # its steps are no larger than the gradients
        bounds = dict.fromkeys(bounds, torch.tensor(1e-6))
    assert_same_weights(first, second, bounds)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    lines = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (one, two)]
    assert [len(own) for own in lines] == [5, 5]
    assert all(json.loads(line)["grad_norm"] > 0 for line in lines[0])


PLANS = (
    "engine.device=cpu", "start.enabled=false", "iterations=1", "rollout.tasks=8", "rollout.rollouts_per_task=4",
)  # fmt: skip


@pytest.mark.parametrize("config", ["ddp.yaml", "fsdp2.yaml"])
def test_two_ranks_share_the_plans_of_moat_and_score_them_as_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    merge, shares = rank_trainer._merge, []

    def counting(parts: Sequence[list[object]], count: int) -> object:
        shares.append([len(part) for part in parts])
        return merge(parts, count)

    def scores(folder: Path, *ranks: str) -> dict[str, float]:
        recipe, steps = (
            make_recipe("moat/maths", [*PLANS, *ranks]),
            [StageKey(0, "rollout"), StageKey(0, "reward")],
        )
        with open_run(folder, recipe.name, recipe.settings) as run:
            run_stages(recipe, run, Silent(), steps)
            key = recipe.fingerprint(steps[-1])
            return run.store.credit(key, "reward", iteration=0, stage="rollout")

    monkeypatch.setattr(rank_trainer, "_merge", counting)
    alone = scores(tmp_path / "one")
    assert len(alone) > 16 and not shares
    ranks = (f"train.launch={CONFIGS / config}", "train.processes=2")
    together = scores(tmp_path / "two", *ranks)
    assert together == pytest.approx(alone, abs=1e-5)
    assert shares and min(map(min, shares)) > 0
    assert not (tmp_path / "two" / "scoring").exists()


def test_sampling_goes_on_while_ranks_train(tmp_path: Path) -> None:
    overrides = [
        *informative_overrides(tmp_path),
        *TWO,
        "rollout.max_staleness=1",
        "train.method=lora",
    ]
    records = run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    versions = {row[5] for row in read_record(tmp_path / "run")["turn"] if row[4] == "policy"}
    plain = {version for version in versions if version and not str(version).startswith("[")}
    assert plain <= {"0", "0.1", "0.2", "0.3", "1"} and len(versions) > 1
    assert sorted(records) == [0, 1, 2]
    assert any(float(record["staleness"]) > 0 for record in records.values())
    assert all(0 <= float(record["staleness"]) <= 1 for record in records.values())
