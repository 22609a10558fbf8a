"""Six dialogues read from a file, and the steps of ``sweet_rl`` done with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.models.adapters import find_head
from coterie.models.loading import LoadedModel, load
from coterie.progress import Silent
from coterie.recipes.sweet_rl import SweetRL
from coterie.record.rows import Row
from coterie.record.tree import Task, Tree
from coterie.record.turn import Turn
from coterie.rollout.recorded_turns import candidates
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import run_steps
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import side_statistic
from coterie.training.reference import row_logprobs
from tests.test_sweet_offline import RIGHT, WRONG, made, row, wrote

BASE = "tiny-exchange"
WORDS = ("rollout.tasks=3", "rollout.repeats=2", "candidates.share=1", "candidates.temperature=0.9")
SECRET = "boxes * 12"
"""In the reference alone."""
ROWS = [
    row(0, "Hm. OUTPUT: How many in a box?", RIGHT, reward=1.0),
    row(1, "How many?", WRONG, reward=0.1),
    row(2, "Why?", WRONG, reward=0.5),
    row(0, WRONG, reward=0.1),
    row(1, "Big ones?", "Red?", RIGHT, reward=1),
    row(2, WRONG, reward=0.1),
]
"""Two dialogues of each of three tasks, two of which were solved once."""
SELECT, TRAIN = Step(0, "select"), Step(0, "train")
BRANCH, REWARD, SELECT_TURNS = Step(1, "rollout"), Step(1, "reward"), Step(1, "select")


@cache
def base() -> LoadedModel:
    """The base, to compare with; nothing takes it over."""
    return load(BASE)


def imported(folder: Path) -> SweetRL:
    """A run that has read its dialogues; its recipe."""
    recipe = made(*WORDS, f"offline={wrote(folder / 'theirs.jsonl', ROWS)}")
    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), [Step(0, "rollout")])
    return recipe


def groups(run: Run) -> Iterator[tuple[Task, Tree, list[Turn]]]:
    for tree in run.store.trees(1, "rollout"):
        for group in candidates(tree):
            yield run.store.task(tree.task), tree, group


class Enough(Exception):
    """Nothing more is to be done."""


@dataclass
class Training:
    model: Any
    items: list[Any]
    settings: Any
    objective: Any


def trained(seen: list[Training], run: Run, step: Step, *words: str) -> Training:
    """What a step of a recipe under these settings hands to ``train``."""
    with pytest.raises(Enough):
        made(*WORDS, *words).at(step).do(run, step.iteration, Silent())
    assert weight_hash(bare(seen[-1].model)) == weight_hash(base().model), "begins as the base"
    return seen[-1]


def bare(model: Any) -> Any:
    """A model without its value head."""
    if find_head(model) is None:
        return model
    fresh = load(BASE).model
    fresh.load_state_dict({k: w for k, w in model.state_dict().items() if "value_head" not in k})
    return fresh


def text(ids: Sequence[int]) -> str:
    return base().renderer.decode(ids)


def said(rows: Sequence[Row]) -> list[str]:
    return [text(one.ids[t.start : t.stop]) for one in rows for t in one.targets]


def by_base(rows: Sequence[Row], normalise: Any) -> float:
    """A side's number under the frozen base."""
    with torch.no_grad():
        return float(side_statistic(rows, row_logprobs(base().model, rows), normalise))
