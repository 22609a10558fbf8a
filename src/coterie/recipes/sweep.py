"""``coterie sweep``: run a recipe with all combinations of the values of some keys.

Each run has its own folder. Runs share stages with equal settings.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from coterie.config.folders import make_folder
from coterie.errors import UserError
from coterie.evaluation.statistics import bootstrap_interval
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import run_report, settings
from coterie.reports.page import write_page
from coterie.runs.evaluation_results import evaluation, held_out_results
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import EVALUATION, check_finished, fork, run_steps


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    value: str
    """Values of the keys as typed, joined by commas."""
    words: str
    """The same with their keys: ``KEY=VALUE KEY=VALUE``."""
    seed: int
    folder: Path
    recipe: Recipe
    source: "Point | None"
    """Earlier run that shares the most stages."""
    shared: list[Step]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Held-out results of the last policies of one run, or of all seeds of a value."""

    value: str
    seed: int | None
    """``None`` for all seeds together."""
    iteration: int
    n: int
    score: float
    low: float
    """Lower end of the score's 95% bootstrap interval over tasks."""
    high: float
    tokens: float
    """Mean tokens of a rollout."""
    folder: str


def split_values(text: str) -> list[str]:
    """Split ``2,5,15`` at its commas, except in brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if character == "," and not depth and not quote:
            values.append("")
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (character in "[{(") - (character in "]})")
        values[-1] += character
    return values


def split_words(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each key that has several, and the other words."""
    keys: dict[str, list[str]] = {}
    others = []
    for word in words:
        key, _, text = word.partition("=")
        values = split_values(text)
        if len(values) == 1:
            others.append(word)
        elif not all(values) or len(set(values)) < len(values):
            raise UserError(f"{key} has an empty or repeated value", "give each value once")
        else:
            keys[key] = values
    if not keys:
        raise UserError(
            "no key has several values",
            "separate the values of a key by commas, such as rollout.samples=2,5,15",
        )
    return keys, others


def plan_sweep(name: str, words: Sequence[str], folder: Path, seeds: int) -> list[Point]:
    """Make and check the runs of every combination of values, for each seed.

    Raises:
        UserError: If no key has several values, two runs are the same, or a run has invalid settings.
    """
    keys, others = split_words(words)
    if "seed" in keys and seeds > 1:
        raise UserError("seeds are given twice, by seed= and by --seeds", "remove one of them")
    points: list[Point] = []
    for number, values in product(range(seeds), product(*keys.values())):
        own_words = [*others, *map("=".join, zip(keys, values, strict=True))]
        own = settings(name, own_words)
        if number:
            seeded = [word for word in own_words if not word.startswith("seed=")]
            own = settings(name, [*seeded, f"seed={own.seed + number}"])
        recipe, text = recipe_of(own), " ".join(own_words[len(others) :])
        _check(recipe, text)
        value = ",".join(values)
        slug = re.sub(r"[^\w.+-]+", "_", value).strip("._") or "_"
        path = folder / f"{slug}-seed-{own.seed}"
        for other in points:
            if other.recipe.settings == own:
                raise UserError(f"{other.words} and {text} are the same", "remove one of them")
            if other.folder == path:
                raise UserError(
                    f"the runs of {other.value!r} and {value!r} have the same folder {path}",
                    "sweep over one of them with another --folder",
                )
        if (path / "config.yaml").is_file():
            with open_run(path, recipe.name, own, write=False) as run:
                check_finished(recipe, run)
        shared = [(other, shared_steps(recipe, other.recipe)) for other in points]
        source, steps = max(shared, key=lambda pair: len(pair[1]), default=(None, []))
        points.append(Point(value, text, own.seed, path, recipe, source if steps else None, steps))
    return points


def _check(recipe: Recipe, text: str) -> None:
    try:
        recipe.check()
    except UserError as error:
        raise UserError(f"{text}: {error.what}", error.todo) from error
    if not any(step.stage == EVALUATION for step in recipe.steps()):
        raise UserError(
            f"{text}: {recipe.title} on {recipe.settings.played} has no evaluation, so its runs cannot be compared",
            f"use data with gradable answers, add a stage `{EVALUATION}` to your own recipe, or use `coterie run` for "
            "each value",
        )


def shared_steps(recipe: Recipe, other: Recipe) -> list[Step]:
    """Return the stages with equal settings in both recipes, including the stages that they read."""
    theirs, common = set(other.steps()), list[Step]()
    for stage in recipe.stages():
        step, has_inputs = stage.step, all(required in common for required in stage.after)
        if has_inputs and step in theirs and recipe.fingerprint(step) == other.fingerprint(step):
            common.append(step)
    return common


def run_sweep(
    points: Sequence[Point], say: Callable[[str], None], progress: Progress
) -> list[SweepRow]:
    """Do or resume all runs, write their reports, and compare their last policies on held-out tasks."""
    rows = []
    scores: dict[str, dict[str, list[float]]] = {}
    for number, point in enumerate(points, 1):
        say(f"run {number} of {len(points)}: {point.words} seed={point.seed}")
        make_folder(point.folder.parent)
        recipe = point.recipe
        if point.source is not None and not point.folder.exists():
            copied = fork(recipe, point.source.folder, point.folder, recipe.settings)
            say(f"kept from {point.source.folder}: {', '.join(map(str, copied))}")
        with open_run(point.folder, recipe.name, recipe.settings) as run:
            run_steps(recipe, run, progress)
            write_page(run_report(recipe, run), run.report)
            last = [step.iteration for step in recipe.steps() if step.stage == EVALUATION][-1]
            one = evaluation(run.store, last)
            score, low, high = (round(number, 4) for number in (one.score, one.low, one.high))
            tokens, folder = round(one.tokens, 2), str(point.folder)
            rows.append(
                SweepRow(point.value, point.seed, last, one.n, score, low, high, tokens, folder)
            )
            for task, result in held_out_results(run.store, last).items():
                scores.setdefault(point.value, {}).setdefault(task, []).append(result.score)
        recipe.close()
    if len(rows) > len(scores):
        rows += [mean_of_seeds(value, rows, tasks) for value, tasks in scores.items()]
    return rows


def mean_of_seeds(value: str, rows: Sequence[SweepRow], scores: dict[str, list[float]]) -> SweepRow:
    """Return one row for all seeds of a value, with the mean score of each task."""
    own = [row for row in rows if row.value == value]
    means = [fmean(scores[task]) for task in sorted(scores)]
    score, low, high = (round(n, 4) for n in (fmean(means), *bootstrap_interval(means, seed=0)))
    tokens = round(fmean(row.tokens for row in own), 2)
    return replace(
        own[-1], seed=None, n=len(means), score=score, low=low, high=high, tokens=tokens, folder=""
    )
