"""``coterie merge``: parts of a run become the run that nobody divided; what does not fit is refused."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from coterie.progress import Silent
from coterie.recipes.base import recorded_run
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.tree import Selection, Tree
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, open_run
from tests.conftest import Cli, refused

LETTER = f"environment={Path(__file__).parents[1]}/helpers/guess.py:Letter"
WORDS = (
    "model=tiny-exchange", LETTER, "rollout.tasks=6", "rollout.max_tokens=4", "search.max_children=4",
    "search.rollouts_per_task=12",
    "evaluate.tasks=4", "engine.device=cpu", "train.max_length=200", "budget.pairs=9",
)  # fmt: skip
METHOD = "dense_tree/tiny"
SAMPLED = ("rollout", "reward")
TRAINED = (*SAMPLED, "select", "train")


def make(folder: Path, *overrides: str, stages: tuple[str, ...] = SAMPLED) -> Path:
    """A run that has done these stages of its first iteration."""
    said = {pair.partition("=")[0]: pair for pair in (*WORDS, *overrides)}
    recipe = recipe_of(settings(METHOD, list(said.values())))
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), [StageKey(0, stage) for stage in stages])
    return folder


class Made(NamedTuple):
    """A run, and the same one in parts."""

    whole: Path
    parts: list[Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("runs")
    parts = [make(folder / f"part-{n}", f"rollout.shard=[{n},3]") for n in range(3)]
    return Made(make(folder / "whole", stages=TRAINED), parts)


class Record(NamedTuple):
    """What a run has of its first iteration up to the selection."""

    tasks: list[str]
    trees: list[Tree]
    credit: dict[str, dict[str, float]]
    items: dict[str, object]
    selected: list[tuple[str, Selection]]


def record(folder: Path) -> Record:
    with recorded_run(folder) as (recipe, run):
        store, known = run.store, recipe.fingerprint(StageKey(0, "reward"))
        kinds = ("value", "visits", "distance")
        credit = {k: store.credit(known, k, iteration=0, stage="rollout") for k in kinds}
        items = {
            f"{key}": metrics
            for stage in recipe.by_task
            for key, metrics in store.metrics(0, stage).items()
            if key.task
        }
        trees = list(store.trees(0, "rollout"))
        tasks = [store.task(id_).id for id_ in store.tasks_of(0, "rollout")]
        return Record(tasks, trees, credit, items, store.selections(0, "select"))


def measured(folder: Path, stage: str) -> dict[str, object]:
    """What was measured of a stage of the first iteration, its time left out."""
    with recorded_run(folder) as (_, run):
        return {k: v for k, v in run.metrics(StageKey(0, stage)).items() if k != "seconds"}


def weights(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.glob("training/*/*/final/*.safetensors")}


def test_parts_of_a_run_become_the_run_that_nobody_divided(made: Made, cli: Cli) -> None:
    before = [(part / "store.sqlite").read_bytes() for part in made.parts]
    said = cli("merge", made.parts[2], made.parts[0], made.parts[1], "--folder", "merged")
    assert said.code == 0, said.err
    assert said.out == "coterie run dense_tree/tiny --folder merged\n"
    assert "6 tasks of 3 runs are in merged" in said.err
    assert [(part / "store.sqlite").read_bytes() for part in made.parts] == before
    merged, whole = record(Path("merged")), record(made.whole)
    assert merged.selected == [], "the budget is over all tasks: this is done anew"
    assert (merged.tasks, merged.items) == (whole.tasks, whole.items)
    assert merged.trees == whole.trees and len(whole.trees) == 6
    assert merged.credit == whole.credit and all(whole.credit.values())
    for stage in SAMPLED:
        assert measured(Path("merged"), stage) == measured(made.whole, stage)
    make(Path("merged"), stages=TRAINED[:3])
    assert record(Path("merged")) == whole
    make(Path("merged"), stages=TRAINED)
    assert len(whole.selected) == 9 < measured(made.whole, "select")["pairs"]
    assert weights(Path("merged")) == weights(made.whole)


def test_a_part_that_is_missing_is_named_and_the_merged_run_can_do_it(made: Made, cli: Cli) -> None:
    two = (made.parts[0], made.parts[2])
    assert "missing: rollout.shard=[1, 3]" in refused(cli, "merge", *two, "--folder", "merged")
    assert not list(Path().iterdir())
    said = cli("merge", *two, "--folder", "merged", "--partial")
    assert said.code == 0 and "the tasks of part 1 are missing" in said.err
    assert len(record(Path("merged")).trees) == 4
    with recorded_run(Path("merged")) as (_, run):
        assert not run.is_finished(StageKey(0, "rollout"))
    make(Path("merged"), stages=TRAINED[:3])
    assert record(Path("merged")) == record(made.whole)


def test_a_part_that_is_given_twice_is_refused(made: Made, cli: Cli) -> None:
    shutil.copytree(made.parts[1], "again")
    error = refused(cli, "merge", *made.parts, "again", "--folder", "merged")
    assert "again and an earlier run have the same tasks: train-2, train-8" in error
    assert [one.name for one in Path().iterdir()] == ["again"]


REFUSED = {
    "model": (("model=tiny-problems", "rollout.shard=[2,3]"), (), "model: tiny-exchange -> tiny-problems"),
    "budget": (("budget.pairs=7", "rollout.shard=[2,3]"), (), "budget.pairs: 9 -> 7"),
    "number of parts": (("rollout.shard=[2,4]",), (), "rollout.shard: [0, 3] -> [2, 4]"),
    "not finished": (("rollout.shard=[2,3]",), (), "rollout of iteration 0 of other is not finished"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_runs_that_are_no_parts_of_one_are_refused(name: str, made: Made, cli: Cli) -> None:
    overrides, stages, says = REFUSED[name]
    make(Path("other"), *overrides, stages=stages)
    said = refused(cli, "merge", *made.parts[:2], "other", "--folder", "merged")
    assert says in said
    assert [one.name for one in Path().iterdir()] == ["other"], "nothing is left behind"
