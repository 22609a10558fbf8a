"""Sweeps over values of keys, and merging the parts of a run.

A sweep (:func:`plan_sweep`, :func:`run_sweep`) has a run, in its own folder, for each combination of values and each
seed. Stages with equal settings are copied from an earlier run instead of done again.

A merge (:func:`merge`) makes one run of several that each sampled a part of the tasks (``rollout.shard``). It copies
the items of single tasks (``Recipe.by_task``) of the first iteration; the merged run continues from there.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from coterie.config.folders import make_folder
from coterie.config.resolve import flatten
from coterie.errors import UserError
from coterie.evaluation import mean_interval
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.store_file import copy_step
from coterie.runs.evaluation import evaluation
from coterie.runs.loop import EVALUATION, check_finished, fork, run_stages, stages_where
from coterie.runs.run import Run, StageKey, differences, new_run, open_run, read_config


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    value: str
    """Values of the keys as typed, joined by commas."""
    overrides: str
    """Values with their keys: ``KEY=VALUE KEY=VALUE``."""
    seed: int
    folder: Path
    recipe: Recipe
    source: "Point | None"
    """Earlier run that shares the most stages, which are copied from it."""
    shared: list[StageKey]
    """Stages that it shares."""


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
    """Lower end of the score's 95% interval over tasks."""
    high: float
    tokens: float
    """Mean tokens of a rollout."""
    folder: str
    loss: float | None = None
    """Held-out loss, by which runs of recipes that measure one are compared; the score is of a few replies."""
    loss_low: float | None = None
    loss_high: float | None = None


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


def split_overrides(overrides: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each key with several values, and the remaining overrides."""
    keys: dict[str, list[str]] = {}
    rest = []
    for pair in overrides:
        key, _, text = pair.partition("=")
        values = split_values(text)
        if len(values) == 1:
            rest.append(pair)
        elif not all(values) or len(set(values)) < len(values):
            raise UserError(f"{key} has an empty or repeated value", "give each value once")
        else:
            keys[key] = values
    if not keys:
        fix = "separate the values of a key by commas, such as rollout.rollouts_per_task=2,5,15"
        raise UserError("no key has several values", fix)
    return keys, rest


def plan_sweep(name: str, overrides: Sequence[str], folder: Path, seeds: int) -> list[Point]:
    """Make and check the runs of every combination of values, for each seed."""
    keys, rest = split_overrides(overrides)
    if "seed" in keys and seeds > 1:
        raise UserError("seeds are given twice, by seed= and by --seeds", "remove one of them")
    points: list[Point] = []
    # Seeds are the outer loop, so that every value has one run before any has a second.
    for seed_number, values in product(range(seeds), product(*keys.values())):
        value_overrides = [*map("=".join, zip(keys, values, strict=True))]
        point_settings = settings(name, [*rest, *value_overrides])
        # Further seeds are counted up from the seed of the settings.
        if seed_number:
            unseeded = [pair for pair in (*rest, *value_overrides) if not pair.startswith("seed=")]
            seed = point_settings.seed + seed_number
            point_settings = settings(name, [*unseeded, f"seed={seed}"])
        recipe, text = recipe_of(point_settings), " ".join(value_overrides)
        _check(recipe, text)
        value = ",".join(values)
        # Names of folders keep only safe characters; a collision is an error below.
        slug = re.sub(r"[^\w.+-]+", "_", value).strip("._") or "_"
        path = folder / f"{slug}-seed-{point_settings.seed}"
        for point in points:
            if point.recipe.settings == point_settings:
                raise UserError(f"{point.overrides} and {text} are the same", "remove one of them")
            if point.folder == path:
                problem = f"the runs of {point.value!r} and {value!r} have the same folder {path}"
                raise UserError(problem, "sweep over one of them with another --folder")
        # A run that exists must have been made with these settings.
        if (path / "config.yaml").is_file():
            with open_run(path, recipe.name, point_settings, write=False) as run:
                check_finished(recipe, run)
        shared = [(earlier, shared_stages(recipe, earlier.recipe)) for earlier in points]
        # The earlier run with the most equal stages saves the most work.
        source, common = max(shared, key=lambda pair: len(pair[1]), default=(None, []))
        source, seed = source if common else None, point_settings.seed
        points.append(Point(value, text, seed, path, recipe, source, common))
    return points


def _check(recipe: Recipe, text: str) -> None:
    """Raise ``UserError`` with the values of a run (``text``) if it can't work, or could not be compared."""
    try:
        recipe.plan()
    except UserError as error:
        raise UserError(f"{text}: {error.what}", error.todo) from error
    if not any(key.stage == EVALUATION for key in recipe.stage_keys()):
        problem = f"{text}: {recipe.title} on {recipe.settings.benchmark} has no evaluation"
        fix = f"use data with gradable answers, or add a stage `{EVALUATION}` to your own recipe"
        raise UserError(f"{problem}, so its runs cannot be compared", fix)


def shared_stages(recipe: Recipe, other_recipe: Recipe) -> list[StageKey]:
    """Return the stages with equal settings in both recipes, including the stages that they read."""
    theirs = set(other_recipe.stage_keys())
    return stages_where(
        recipe,
        lambda key: key in theirs and recipe.fingerprint(key) == other_recipe.fingerprint(key),
    )


def run_sweep(
    points: Sequence[Point],
    say: Callable[[str], None],
    progress: Progress,
    on_run_end: Callable[[Path], object],
) -> list[SweepRow]:
    """Do or resume all runs, and compare their last policies on held-out tasks. ``on_run_end`` gets each folder."""
    rows = []
    scores: dict[str, dict[str, list[float]]] = {}
    for number, point in enumerate(points, 1):
        say(f"run {number} of {len(points)}: {point.overrides} seed={point.seed}")
        make_folder(point.folder.parent)
        recipe = point.recipe
        # Only a new run copies stages; one that exists is resumed.
        if point.source is not None and not point.folder.exists():
            copied = fork(recipe, point.source.folder, point.folder, recipe.settings)
            say(f"kept from {point.source.folder}: {', '.join(map(str, copied))}")
        with open_run(point.folder, recipe.name, recipe.settings) as run:
            run_stages(recipe, run, progress)
            on_run_end(point.folder)
            last_iteration = recipe.finished(run, EVALUATION)[-1].iteration
            result = evaluation(run.store, last_iteration)
            score, low, high = (round(mean, 4) for mean in (result.score, *result.interval))
            tokens, folder = round(result.tokens, 2), str(point.folder)
            loss = [round(value, 4) for value in recipe.heldout_loss(run, last_iteration) or ()]
            names = (point.value, point.seed, last_iteration, result.n)
            rows.append(SweepRow(*names, score, low, high, tokens, folder, *loss))
            for task, task_score in result.scores.items():
                scores.setdefault(point.value, {}).setdefault(task, []).append(task_score)
        # Frees the devices for the models of the next run.
        recipe.close()
    # With several seeds, each value gets another row over all of them.
    if len(rows) > len(scores):
        rows += [mean_of_seeds(value, rows, tasks) for value, tasks in scores.items()]
    return rows


def mean_of_seeds(value: str, rows: Sequence[SweepRow], scores: dict[str, list[float]]) -> SweepRow:
    """Return the row of a value over all seeds; ``scores`` has one score for each seed by task."""
    seeds = [row for row in rows if row.value == value]
    # Scores are averaged over seeds first, so that the interval is over tasks.
    means = [fmean(scores[task]) for task in sorted(scores)]
    score, low, high = (round(n, 4) for n in (fmean(means), *mean_interval(means, seed=0)))
    tokens = round(fmean(row.tokens for row in seeds), 2)
    losses = zip(*((row.loss, row.loss_low, row.loss_high) for row in seeds), strict=True)
    # All seeds have the same rows, so the mean of their intervals is at least as wide as the interval of the mean.
    loss, loss_low, loss_high = (
        None if None in ends else round(fmean(map(float, ends)), 4) for ends in losses
    )
    return replace(
        seeds[-1], seed=None, n=len(means), score=score, low=low, high=high, tokens=tokens, folder="",
        loss=loss, loss_low=loss_low, loss_high=loss_high,
    )  # fmt: skip


SHARD = "rollout.shard"
"""Key of a run's part of the tasks: [i, n]."""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One run folder of a merge."""

    folder: Path
    recipe: Recipe
    full: Recipe
    """Recipe with the same settings and all tasks."""

    @property
    def shard(self) -> tuple[int, int]:
        """Number of the part and count of all parts."""
        part, count = flatten(self.recipe.settings.model_dump())[SHARD]
        return part, count

    def open(self) -> AbstractContextManager[Run]:
        return open_run(self.folder, self.recipe.name, self.recipe.settings, write=False)


def merge(
    folders: Sequence[Path],
    target: Path,
    say: Callable[[str], None],
    progress: Progress,
    *,
    partial: bool = False,
) -> tuple[str, int, list[int]]:
    """Merge the parts of a run into a new run at ``target``, which appears when it is complete.

    Return the recipe's name, the number of tasks, and the missing parts, whose tasks the merged run does. Raises
    ``UserError`` for different settings, unfinished rollouts, tasks in common, and missing parts (unless ``partial``).
    """
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("merging needs two or more different run folders", "give each folder once")
    parts = list(map(_part, folders))
    full, count = parts[0].full, parts[0].shard[1]
    for part in parts[1:]:
        _check_same_run(parts[0], part)
    missing = sorted(set(range(count)) - {part.shard[0] for part in parts})
    if missing and not partial:
        raise UserError(
            f"parts of the run are missing: {SHARD}="
            + ", ".join(f"[{part}, {count}]" for part in missing),
            "give their folders too, or --partial to let the merged run do their tasks",
        )
    keys = [key for key in full.stage_keys() if key.stage in full.by_task]
    # Only the first iteration is merged, because later ones need the policy that it trains.
    keys = [key for key in keys if key.iteration == keys[0].iteration]
    for part in parts:
        _check_sampled(part, keys[0])
    todo = "give --folder a folder that does not exist"
    with parts[0].open(), new_run(target, full.name, full.settings, todo) as run:
        for part in parts:
            say(f"copying {part.folder}")
            _copy(part, keys, run)
        for key in keys:
            run.begin(key, full.fingerprint(key))
        # With missing parts, the merged run still has to sample their tasks.
        if not missing:
            run_stages(full, run, progress, keys)
        tasks = run.store.tasks_of(keys[0].iteration, keys[0].stage)
        return full.name, len(tasks), missing


def _part(folder: Path) -> Part:
    """Read the run in a folder. Raises ``UserError`` if its recipe has no parts."""
    name, stored = read_config(folder)
    part_settings = settings(name, (), stored)
    recipe = recipe_of(part_settings)
    if not recipe.by_task or SHARD not in flatten(part_settings.model_dump()):
        problem = f"{folder} is a run of {name}, whose runs cannot be merged"
        raise UserError(problem, f"merge runs of a recipe with the key {SHARD}")
    # With part 0 of 1, the recipe has the tasks of all parts.
    return Part(folder, recipe, recipe_of(settings(name, [f"{SHARD}=[0,1]"], stored)))


def _check_same_run(first_part: Part, part: Part) -> None:
    """Check that two parts have the same settings, ignoring settings that no stage depends on."""
    # Recipes with all tasks are compared, so that the parts' shards do not count as a difference. Parts
    # of different counts are not parts of one run, and the message then shows their shards.
    alike = first_part.shard[1] == part.shard[1]
    first, second = (first_part.full, part.full) if alike else (first_part.recipe, part.recipe)
    has_same_name = first.name == second.name
    if has_same_name and alike and shared_stages(first, second) == first.stage_keys():
        return
    lines = [f"{first_part.folder} and {part.folder} have different settings:"]
    lines += [] if has_same_name else [f"recipe: {first.name} -> {second.name}"]
    lines += differences(first.settings.model_dump(mode="json"), second.settings)
    problem = "\n    ".join(lines)
    raise UserError(problem, f"merge parts of one run, which differ only in {SHARD}")


def _check_sampled(part: Part, key: StageKey) -> None:
    """Raise ``UserError`` if a part has not sampled all its tasks, or its settings have changed since."""
    with part.open() as run:
        check_finished(part.recipe, run)
        if not run.is_finished(key):
            problem = f"the {key} of {part.folder} is not finished"
            raise UserError(problem, f"finish it with: coterie stage {key.stage} {part.folder}")


def _copy(part: Part, keys: Sequence[StageKey], run: Run) -> None:
    """Copy the items of single tasks, and the evaluation of the base if no earlier part has it."""
    stages, iteration = part.recipe.by_task, keys[0].iteration
    # Credit is stored under the fingerprint of its stage, which depends on the shard: from the part's
    # fingerprint to the whole run's.
    renamed = {part.recipe.fingerprint(key): part.full.fingerprint(key) for key in keys}
    # A stage without inputs, such as the evaluation of the base, is equal in all parts.
    without_inputs = [stage.key for stage in part.full.stages() if not stage.after]
    equal_keys = [key for key in shared_stages(part.full, part.recipe) if key in without_inputs]
    with part.open() as part_run:
        # Parts have different tasks, unless two of them have the same shard.
        common = set[str]()
        for stage in stages:
            tasks = {*part_run.store.tasks_of(iteration, stage)}
            common |= tasks & {*run.store.tasks_of(iteration, stage)}
        if common:
            named = sorted(common)[:MAX_NAMED] + ["..."] * (len(common) > MAX_NAMED)
            problem = f"{part.folder} and an earlier run have the same tasks: {', '.join(named)}"
            raise UserError(problem, "give runs with different tasks")
        missing = [
            key for key in equal_keys if key.stage == EVALUATION and not run.is_finished(key)
        ]
        evaluations = [key for key in missing if part_run.is_finished(key)]
        with run.store.beside(part_run.store.path) as db:
            for stage in stages:
                copy_step(db, iteration, stage, renamed)
            # Whole stages, with the mark that they are finished. The others get theirs in `merge`.
            for key in evaluations:
                copy_step(db, key.iteration, key.stage, {}, marks=True)
