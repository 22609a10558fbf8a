"""``coterie merge``: merge the parts of a run that several machines have sampled.

Copies the items of single tasks (``Recipe.by_task``) of the first iteration.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from coterie.config.resolve import flatten
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.recipes.sweep import shared_steps
from coterie.record.store import copy_step
from coterie.runs.folder import Run, Step, differences, new_run, open_run, read_config
from coterie.runs.loop import EVALUATION, check_finished, run_steps

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
        """Open the run to read it."""
        return open_run(self.folder, self.recipe.name, self.recipe.settings, write=False)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of a merge."""

    recipe: str
    tasks: int
    missing: list[int]
    """Parts without a run; the merged run does their tasks."""


def merge(
    folders: Sequence[Path],
    target: Path,
    say: Callable[[str], None],
    progress: Progress,
    *,
    partial: bool = False,
) -> MergeResult:
    """Merge the parts of a run into a new run at ``target``, which appears when it is complete.

    Raises:
        UserError: If the runs have different settings, unfinished rollouts or tasks in common, if a part is missing
            (unless ``partial``), or if ``target`` exists.
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
    steps = [step for step in full.steps() if step.stage in full.by_task]
    steps = [step for step in steps if step.iteration == steps[0].iteration]
    for part in parts:
        _check_sampled(part, steps[0])
    todo = "give --folder a folder that does not exist"
    with parts[0].open(), new_run(target, full.name, full.settings, todo) as run:
        for part in parts:
            say(f"copying {part.folder}")
            _copy(part, steps, run)
        for step in steps:
            run.begin(step, full.fingerprint(step))
        if not missing:
            run_steps(full, run, progress, steps)
        tasks = run.store.tasks_of(steps[0].iteration, steps[0].stage)
        return MergeResult(full.name, len(tasks), missing)


def _part(folder: Path) -> Part:
    name, stored = read_config(folder)
    own = settings(name, (), stored)
    recipe = recipe_of(own)
    if not recipe.by_task or SHARD not in flatten(own.model_dump()):
        raise UserError(
            f"{folder} is a run of {name}, whose runs cannot be merged",
            f"merge runs of a recipe with the key {SHARD}",
        )
    return Part(folder, recipe, recipe_of(settings(name, [f"{SHARD}=[0,1]"], stored)))


def _check_same_run(first: Part, part: Part) -> None:
    """Check that two parts have the same settings, ignoring settings that no stage depends on."""
    alike = first.shard[1] == part.shard[1]
    one, other = (first.full, part.full) if alike else (first.recipe, part.recipe)
    if one.name == other.name and alike and shared_steps(one, other) == one.steps():
        return
    lines = differences(one.settings.model_dump(mode="json"), other.settings)
    if one.name != other.name:
        lines.insert(0, f"recipe: {one.name} -> {other.name}")
    raise UserError(
        "\n    ".join([f"{first.folder} and {part.folder} have different settings:", *lines]),
        f"merge parts of one run, which differ only in {SHARD}",
    )


def _check_sampled(part: Part, step: Step) -> None:
    with part.open() as run:
        check_finished(part.recipe, run)
        if not run.is_finished(step):
            raise UserError(
                f"the {step} of {part.folder} is not finished",
                f"finish it with: coterie stage {step.stage} {part.folder}",
            )


def _copy(part: Part, steps: Sequence[Step], run: Run) -> None:
    """Copy the items of single tasks, and the evaluation of the base if no earlier part has it."""
    stages, iteration = part.recipe.by_task, steps[0].iteration
    renamed = {part.recipe.fingerprint(step): part.full.fingerprint(step) for step in steps}
    first = [stage.step for stage in part.full.stages() if not stage.after]
    same = [step for step in shared_steps(part.full, part.recipe) if step in first]
    with part.open() as old:
        common = set[str]()
        for stage in stages:
            tasks = (set(one.store.tasks_of(iteration, stage)) for one in (old, run))
            common |= set.intersection(*tasks)
        if common:
            more = f" and {len(common) - MAX_NAMED} more" if len(common) > MAX_NAMED else ""
            raise UserError(
                f"{part.folder} and an earlier run have the same tasks: "
                + ", ".join(sorted(common)[:MAX_NAMED])
                + more,
                "give runs with different tasks",
            )
        bases = [
            step
            for step in same
            if step.stage == EVALUATION and old.is_finished(step) and not run.is_finished(step)
        ]
        with run.store.beside(old.store.path) as db:
            for stage in stages:
                copy_step(db, iteration, stage, renamed)
            for step in bases:
                copy_step(db, step.iteration, step.stage, {}, marks=True)
