"""Merge the parts of a run that several machines have sampled. ``coterie merge`` is the command.

Copies what a recipe declares to be the work of single tasks (``Recipe.by_task``), in the first iteration.
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
from coterie.recipes.sweeping import in_common
from coterie.runs.folder import Run, Step, differences, new_run, open_run, read_config
from coterie.runs.loop import check_finished, run_steps
from coterie.runs.place import EVALUATION
from coterie.trajectories.store_copy import copy_step

SHARD = "rollout.shard"
"""Key of the part of the tasks that a run has: [i, n]."""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One run folder of a merge."""

    folder: Path
    recipe: Recipe
    whole: Recipe
    """Under the same settings, but with all tasks."""

    @property
    def shard(self) -> tuple[int, int]:
        """Number of the part, and of how many."""
        part, count = flatten(self.recipe.settings.model_dump())[SHARD]
        return part, count

    def open(self) -> AbstractContextManager[Run]:
        """Open the run to read it."""
        return open_run(self.folder, self.recipe.name, self.recipe.settings, write=False)


@dataclass(frozen=True, slots=True)
class Merged:
    """Result of a merge."""

    recipe: str
    tasks: int
    missing: list[int]
    """Parts without a run, whose tasks are left to the merged run."""


def merge(
    folders: Sequence[Path],
    target: Path,
    say: Callable[[str], None],
    progress: Progress,
    *,
    partial: bool = False,
) -> Merged:
    """Merge the parts of a run into a new run at ``target``, which appears when it is complete.

    Raises:
        UserError: If the runs have different settings, unfinished rollouts or tasks in common, if a part is missing
            (unless ``partial``), or if ``target`` exists.
    """
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("one run is not merged with itself", "give two or more run folders")
    parts = list(map(_part, folders))
    whole, count = parts[0].whole, parts[0].shard[1]
    for part in parts[1:]:
        _check_same_run(parts[0], part)
    missing = sorted(set(range(count)) - {part.shard[0] for part in parts})
    if missing and not partial:
        raise UserError(
            f"parts of the run are missing: {SHARD}="
            + ", ".join(f"[{part}, {count}]" for part in missing),
            "give their folders, too; with --partial the merged run does their tasks itself",
        )
    steps = [step for step in whole.steps() if step.stage in whole.by_task]
    steps = [step for step in steps if step.iteration == steps[0].iteration]
    for part in parts:
        _check_sampled(part, steps[0])
    todo = "give --folder a folder that does not exist"
    with parts[0].open(), new_run(target, whole.name, whole.settings, todo) as run:
        for part in parts:
            say(f"copying {part.folder}")
            _copy(part, steps, run)
        for step in steps:
            run.begin(step, whole.fingerprint(step))
        if not missing:
            run_steps(whole, run, progress, steps)
        tasks = run.store.tasks_of(steps[0].iteration, steps[0].stage)
        return Merged(whole.name, len(tasks), missing)


def _part(folder: Path) -> Part:
    name, stored = read_config(folder)
    own = settings(name, (), stored)
    recipe = recipe_of(own)
    if not recipe.by_task or SHARD not in flatten(own.model_dump()):
        raise UserError(
            f"{folder} is a run of {name}, whose runs can't be merged",
            f"merge runs of a recipe whose tasks can be divided: one that has the key {SHARD}",
        )
    return Part(folder, recipe, recipe_of(settings(name, [f"{SHARD}=[0,1]"], stored)))


def _check_same_run(first: Part, part: Part) -> None:
    """Refuse other settings, except those that no stage depends on."""
    alike = first.shard[1] == part.shard[1]
    one, other = (first.whole, part.whole) if alike else (first.recipe, part.recipe)
    if one.name == other.name and alike and in_common(one, other) == one.steps():
        return
    lines = differences(one.settings.model_dump(mode="json"), other.settings)
    if one.name != other.name:
        lines.insert(0, f"recipe: {one.name} -> {other.name}")
    raise UserError(
        "\n    ".join([f"{first.folder} and {part.folder} do not fit together:", *lines]),
        f"parts of one run differ in the place of {SHARD} alone",
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
    """Copy the results of single tasks, and the evaluation of the base if only this part has it."""
    stages, iteration = part.recipe.by_task, steps[0].iteration
    renamed = {part.recipe.fingerprint(step): part.whole.fingerprint(step) for step in steps}
    first = [stage.step for stage in part.whole.stages() if not stage.after]
    same = [step for step in in_common(part.whole, part.recipe) if step in first]
    with part.open() as old:
        twice = set[str]()
        for stage in stages:
            tasks = (set(one.store.tasks_of(iteration, stage)) for one in (old, run))
            twice |= set.intersection(*tasks)
        if twice:
            more = f" and {len(twice) - MAX_NAMED} more" if len(twice) > MAX_NAMED else ""
            raise UserError(
                f"{part.folder} has tasks that a run before it has, too: "
                + ", ".join(sorted(twice)[:MAX_NAMED])
                + more,
                "give runs with different tasks, each once",
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
