"""Runs of reinforcement learning that take seconds, and what kills them."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from coterie.progress import Silent
from coterie.recipes.base import Recipe
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.tree import Metrics
from coterie.runs.loop import REINFORCE, run_stages
from coterie.runs.reinforce_record import step_records
from coterie.runs.run import open_run
from coterie.training.checkpoint import weight_hash

SMALL = (
    "rollout.tasks=2", "rollout.rollouts_per_task=3", "rollout.max_tokens=96", "evaluate.tasks=2", "steps.save_every=1",
    "engine.device=cpu", "train.learning_rate=1e-3",
)  # fmt: skip
"""Settings of a run of seconds."""
SHORT = "def short(dialogue):\n    return -dialogue.tokens / 100\n"


def informative_overrides(folder: Path) -> tuple[str, ...]:
    """As :data:`SMALL`, with a reward that differs wherever dialogues have other lengths."""
    (folder / "own.py").write_text(SHORT)
    return (*SMALL, f"reward.terms={{{folder / 'own.py'}:short: 1}}")


class Killed(BaseException):
    """What a test ends a run with."""


class Killing(Silent):
    """Ends the run when a step of this number has been taken, or when so much of it has been sampled."""

    def __init__(self, step: int, sampled: int | None = None) -> None:
        self.step, self.sampled = step, sampled
        self.stage_, self.count = "", 0

    def start(self, total: int, description: str) -> None:
        self.stage_, self.count = description, 0

    def advance(self, n: int, **fields: float) -> None:
        self.count += n
        here = self.stage_.startswith(f"{REINFORCE}/{self.step:05d}")
        if here and self.sampled is not None and self.count >= self.sampled:
            raise Killed

    def say(self, text: str) -> None:
        if self.sampled is None and text.startswith(f"step {self.step + 1} of"):
            raise Killed


def make_recipe(method: str, overrides: Sequence[str]) -> Recipe:
    """The recipe of these settings; the last value of a key counts."""
    return recipe_of(
        settings(method, [*{pair.partition("=")[0]: pair for pair in overrides}.values()])
    )


def run_to_end(recipe: Recipe, folder: Path, progress: Silent | None = None) -> dict[int, Metrics]:
    with open_run(folder, recipe.name, recipe.settings) as run:
        try:
            run_stages(recipe, run, progress or Silent())
        finally:
            recipe.close()
        return step_records(run.store, 0, REINFORCE)


def final_weights(folder: Path, role: str = "policy") -> str:
    return weight_hash(folder / f"training/{role}/iteration-00/final")


def read_record(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """The items of a run in order, and its turns: all but what may differ by rounding."""
    columns = {
        "item": "iteration, stage, task, sample, failure",
        "turn": "id, parent, ids, request, policy, version, seed, temperature",
        "outcome": "leaf, sample, reason, answer, score",
    }
    with closing(sqlite3.connect(folder / "store.sqlite")) as store:
        return {
            table: sorted(map(tuple, store.execute(f"SELECT {what} FROM {table}")), key=repr)
            for table, what in columns.items()
        }
