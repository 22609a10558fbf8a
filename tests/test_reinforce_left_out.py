"""What a step of reinforcement learning trains on and leaves out: all of it counted, and said."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.record.rows import Row, Target
from coterie.record.tree import Ending, Outcome
from coterie.rewards.advantages import SampledPath
from coterie.runs.reinforce import describe_step, update
from coterie.runs.reinforce_batch import AgentPath, StepSamples, prepare
from coterie.runs.reinforce_settings import (
    GroupSettings,
    ReinforceSettings,
    StepSettings,
)
from coterie.training import checkpoint
from coterie.training.reference import with_old
from coterie.training.settings import PolicyLossSettings, TrainingSettings
from coterie.training.trainer import Trainer
from tests.reinforcing import Killed, Killing, made, run_whole, telling_words


def path(task: str, leaf: str, reward: float | None, *writers: str, length: int = 9) -> AgentPath:
    """One agent's path of a turn by each of these weights, each a row of its own."""
    rows = tuple(
        Row(tuple(range(1, length + 1)), (Target(2, 4, writer, f"{leaf}/{number}"),))
        for number, writer in enumerate(writers)
    )
    outcome = Outcome(leaf, 0, Ending("answered"), None, reward)
    return AgentPath(
        task, "Ann", outcome, len(rows), rows, SampledPath(task, leaf, reward, (), "Ann")
    )


BONUS = PolicyLossSettings(entropy=0.01)
"""All rows have a gradient."""


class Policy:
    """A learner without a model: which weights it has, and what it was trained on."""

    def __init__(self, version: str, longest: int = 9) -> None:
        self.role, self.version, self.has_moved = "policy", version, False
        self.config = SimpleNamespace(agents=("Ann",), like=None)
        self.trainer = self
        self.longest = longest
        self.steps: list[list[Row]] = []
        self.left_out = 0

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        self.steps.append([*rows])
        return {"loss": 1.0}

    def leave_out(self, too_long: int, empty: int) -> None:
        self.left_out += too_long + empty


def prepared(paths: Sequence[AgentPath], version: str, groups: GroupSettings | None = None) -> Any:
    policy: Any = Policy(version)
    rules = ReinforceSettings(rollout=groups or GroupSettings())
    return prepare(StepSamples(1, paths=[*paths]), [policy], None, rules)


def test_a_path_of_which_one_turn_is_of_other_weights_is_dropped_whole_and_counted() -> None:
    paths = [
        path("a", "1", 1.0, "policy@0.1", "policy@0.1"),
        path("a", "2", 0.0, "policy@0.1"),
        path("a", "3", 5.0, "policy@0", "policy@0.1"),
        path("a", "6", 5.0, "policy@0.1", "policy@0"),
        path("b", "4", 1.0, "policy@0.1"),
        path("b", "5", 0.0, "critic@0.1"),
    ]
    found = prepared(paths, "0.1")
    assert [one.outcome.leaf for one in found.paths] == ["1", "2"]
    assert [one.rows[0].advantages for one in found.paths] == [(0.5, 0.5), (-0.5, -0.5)], (
        "nothing is compared with them"
    )
    assert found.counts["paths_stale"] == 3
    assert found.counts["groups_small"] == 1, "what they leave alone has nothing to compare with"
    assert prepared(paths, "0.2").counts["paths_stale"] == 6


def test_dynamic_sampling_counts_all_groups_and_trains_on_those_that_tell_something() -> None:
    own = "policy@0.1"
    paths = [
        path("flat", "1", 1.0, own), path("flat", "2", 1.0, own),
        path("stale", "3", 1.0, "policy@0"), path("stale", "4", 0.0, own),
        path("first", "5", 1.0, own), path("first", "6", 0.0, own), path("first", "7", None, own),
        path("second", "8", 1.0, own), path("second", "9", 0.0, own),
    ]  # fmt: skip
    found = prepared(paths, "0.1", GroupSettings(tasks=1, rounds=3))
    assert {one.task for one in found.paths} == {"first"} == found.informative
    names = ("groups", "groups_flat", "groups_small", "paths_failed", "paths_stale")
    assert [found.counts[name] for name in names] == [3, 1, 1, 1, 1]


def _rules(**steps: int) -> ReinforceSettings:
    return ReinforceSettings(steps=StepSettings(**steps), loss=BONUS)


def updated(paths: Sequence[AgentPath], policy: Policy, minibatches: int = 1) -> Any:
    learner: Any = policy
    return update(paths, [learner], _rules(minibatches=minibatches), "seed")


def test_rows_that_are_too_long_are_left_out_and_counted_and_the_others_are_trained_on() -> None:
    paths = [path("a", "1", 1.0, "p@0"), path("b", "2", 1.0, "p@0", length=10)]
    together = Policy("0")
    found = updated(paths, together)
    assert (found["rows_too_long"], together.left_out) == (1, 1)
    assert together.steps == [[*paths[0].rows]]
    apart = Policy("0")
    found = updated(paths, apart, minibatches=2)
    assert (found["rows_too_long"], apart.left_out) == (1, 1)
    assert apart.steps == [[*paths[0].rows]]


def test_trained_tokens_are_targets_of_policies_in_all_epochs_and_not_prompts_or_a_critics() -> (
    None
):
    paths = [
        path("a", "1", 1.0, "p@0", "p@0"),
        path("b", "2", 1.0, "p@0"),
        path("c", "3", 0.0, "p@0", length=10),
    ]
    critic = Policy("0")
    critic.role, critic.config.like = "critic", "policy"
    learners: Any = [Policy("0"), critic]
    assert update(paths, learners, _rules(epochs=2), "seed")["trained_tokens"] == 2 * 3 * 2


def test_a_step_of_which_every_row_is_too_long_is_refused_with_what_to_do() -> None:
    paths = [path(task, task, 1.0, "p@0", length=99) for task in "abc"]
    with pytest.raises(UserError, match=r"all 3 rows of a step are longer than .* 9 tokens") as e:
        updated(paths, Policy("0"), minibatches=2)
    assert "raise update.max_length" in str(e.value)


def test_what_was_left_out_of_a_step_is_said_in_its_line() -> None:
    known = {"reward": 0.5, "score": 0.5, "tokens": 9.0, "groups_telling": 1}
    none = {"paths_failed": 0, "paths_stale": 0, "rows_too_long": 0}
    assert "left out" not in describe_step(1, 2, {**known, **none})
    said = describe_step(
        1, 2, {**known, **none, "paths_stale": 3, "rows_too_long": 2, "groups_small": 1}
    )
    assert said.endswith(
        "left out: 3 paths of other weights, 2 rows that are too long, 1 groups with fewer than two paths"
    )


@pytest.mark.slow
def test_all_updates_of_a_step_learn_from_what_the_step_sampled_and_compare_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second update is by weights that are newer than its samples, which is what ratios are for."""
    moved: list[list[float]] = []
    step = Trainer.step

    def watched(self: Any, items: Sequence[Row]) -> dict[str, float]:
        plain = [replace(row, old=None) for row in items]
        now = with_old(self.model, plain, TrainingSettings(), temperature=1.0)
        moved.append([_apart(row.old, then.old) for row, then in zip(now, items, strict=True)])
        assert max(_apart(row.old, row.logprobs) for row in items) < 1e-4, "old is what sampled"
        return step(self, items)

    monkeypatch.setattr(Trainer, "step", watched)
    words = [*telling_words(tmp_path), "steps.count=2", "steps.minibatches=2"]
    records = run_whole(made("rl/dapo", [*words, "loss.old=recomputed"]), tmp_path / "run")
    assert [one["policy/updates"] for one in records.values()] == [2, 4]
    assert all(one["paths_stale"] == 0 for one in records.values())
    assert sum(map(len, moved)) == sum(int(one["paths"]) for one in records.values())
    for first, second in zip(moved[::2], moved[1::2], strict=True):
        assert max(first) == 0 < 1e-4 < max(second)


def _apart(one: Sequence[float] | None, other: Sequence[float] | None) -> float:
    assert one and other
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_checkpoints_are_taken_between_steps_alone_however_long_an_update_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved by the clock, a policy and its critic would keep no step in common."""
    hours = itertools.count(step=3600)
    clock = SimpleNamespace(monotonic=lambda: float(next(hours)))
    monkeypatch.setattr(checkpoint, "time", clock)
    words = [one for one in telling_words(tmp_path) if "save_every" not in one]
    recipe = made("rl/grpo", [*words, "steps.count=4", "steps.save_every=2"])
    with pytest.raises(Killed):
        run_whole(recipe, tmp_path / "run", Killing(2))
    folder = tmp_path / "run/training/policy/iteration-00"
    assert [one.name for one in folder.glob("checkpoint-*")] == ["checkpoint-00000002"]
