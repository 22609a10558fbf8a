"""What reinforcement learning can't learn from: refused before the run, or counted and said, never passed over."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.tree import Metrics
from coterie.runs.folder import open_run
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce import step_records
from tests.reinforcing import SMALL, made, run_whole

GRADES = '''
from dataclasses import replace
from coterie.environments.exchange import Exchange

class Graded(Exchange):
    """Of four training dialogues of a task the first fails, the second can't be graded, the third is right."""
    name = "graded"
    seen = {}

    async def grade(self, state, live):
        found = await super().grade(state, live)
        if state.task.id.startswith("heldout"):
            return found
        place = self.seen[state.task.id] = self.seen.get(state.task.id, 0) + 1
        if place % 4 == 1:
            raise RuntimeError("no grader today")
        return replace(found, score=None if place % 4 == 2 else float(place % 4 == 3))

class Again(Exchange):
    """Gives one task twice when it is asked for more."""
    name = "again"

    def tasks(self, split, count, seed, after=()):
        found = super().tasks(split, count, seed, after)
        return [found[0]] * count if after else found

class Ended(Exchange):
    name = "ended"

    def tasks(self, split, count, seed, after=()):
        return [] if after else super().tasks(split, count, seed)

class Ungraded(Exchange):
    name = "ungraded"

    async def grade(self, state, live):
        return replace(await super().grade(state, live), score=None)
'''
TERMS = """
def flat(dialogue):
    return -dialogue.outcome.score

def short(dialogue):
    return -dialogue.tokens / 100

def one(dialogue):
    return 1 - dialogue.outcome.score

def fluent(dialogue):
    return -dialogue.loss

def lost(dialogue):
    return float("nan")
"""


def words(folder: Path, *own: str, environment: str | None = None) -> list[str]:
    """A small run, of an environment that is written beside it."""
    (folder / "grades.py").write_text(GRADES)
    (folder / "own.py").write_text(TERMS)
    played = [f"environment={folder / 'grades.py'}:{environment}", "model=tiny-exchange"]
    room = ["update.max_length=1024", "update.tokens_per_microbatch=4096"]
    every = [*SMALL, "loss.kl=0", *(played + room if environment else ()), *own]
    return [*{word.partition("=")[0]: word for word in every}.values()]


def stopped(folder: Path, method: str, given: Sequence[str]) -> tuple[str, list[Metrics]]:
    """What a run says that stops, and its steps."""
    recipe = made(method, given)
    with pytest.raises(UserError) as error:
        run_whole(recipe, folder)
    with open_run(folder, recipe.name, recipe.settings) as run:
        records = step_records(run.store, 0, REINFORCE)
    return str(error.value), [records[step] for step in sorted(records)]


@pytest.mark.slow
def test_dialogues_that_failed_or_were_not_graded_leave_their_groups_and_are_counted(
    tmp_path: Path,
) -> None:
    own = words(tmp_path, "steps.count=1", "rollout.samples=4", environment="Graded")
    (record,) = run_whole(made("rl/grpo", own), tmp_path / "run").values()
    assert (record["samples"], record["samples_failed"]) == (8, 2), "of two tasks one each"
    assert record["paths_failed"] == 4, "of two agents"
    assert record["paths"] == 8 and record["groups"] == record["groups_telling"] * 2 == 4
    own = words(tmp_path, "steps.count=1", "steps.patience=1", environment="Graded")
    said, (record,) = stopped(tmp_path / "small", "rl/grpo", own)
    assert (record["groups_small"], record["groups"], record["paths"]) == (4, 0, 0)
    assert "had no path to train on; left out: 4 paths without a reward" in said


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rl/grpo", "rl/dapo"])
def test_a_run_without_any_reward_stops_and_says_that_it_had_none(
    tmp_path: Path, method: str
) -> None:
    own = words(
        *(tmp_path, "steps.count=5", "steps.patience=2", "rollout.rounds=2", "rollout.draw=2"),
        environment="Ungraded",
    )
    said, records = stopped(tmp_path / "run", method, own)
    paths = sum(int(record["paths_failed"]) for record in records)
    assert len(records) == 2 and paths == 2 * 2 * 12, (
        "of two steps, two rounds, six dialogues by two"
    )
    assert f"left out: {paths} paths without a reward" in said
    assert "Paths without a reward were not graded" in said


@pytest.mark.slow
def test_measures_that_no_dialogue_has_are_counted_and_named(tmp_path: Path) -> None:
    class Heard(Silent):
        said: ClassVar[list[str]] = []

        def say(self, text: str) -> None:
            self.said.append(text)

    term = f"reward.terms={{{tmp_path / 'own.py'}:short: 1}}"
    weighed = "reward.measures={well_formed: 0.1, roudns: -0.05}"
    own = words(tmp_path, term, weighed, "steps.count=1")
    (record,) = run_whole(made("rl/grpo", own), tmp_path / "run", Heard()).values()
    assert record["measures_missing"] == 1
    (said,) = (text for text in Heard.said if text.startswith("reward.measures"))
    assert "weighs roudns, which no dialogue of this step has" in said


def test_a_length_that_leaves_no_row_is_refused_before_the_run(tmp_path: Path) -> None:
    for method, key, more in (
        ("rl/grpo", "update", ()),
        ("rl/ppo", "critic.train", ("rollout.samples=1",)),
    ):
        own = words(tmp_path, f"{key}.max_length=40", *more)
        with pytest.raises(UserError, match=f"{key}.max_length=40 leaves nothing to train on"):
            made(method, own).check()
        made(method, words(tmp_path, *more)).check()
    values = [
        "method=rl",
        "advantage.baseline=values",
        "rollout.rounds=1",
        "evaluate.tasks=2",
    ]
    made("gap/tiny", values).check()
    with pytest.raises(UserError, match=r"critic\.train\.max_length=12 leaves nothing"):
        made("gap/tiny", [*values, "critic.train.max_length=12"]).check()
