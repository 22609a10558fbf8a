"""Runs that are put together into one: the parts of a run that several machines have, or families of tasks.

``coterie merge`` is the command. What can be put together is what a recipe says to be the work of single tasks
(``Recipe.by_task``), in the iteration before the first training. The runs are only read. The new run appears when it is
whole.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config.resolve import flatten
from coterie.errors import UserError
from coterie.models.loading import identity
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import content_of
from coterie.recipes.registry import described, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.sweeping import in_common
from coterie.runs.folder import Run, Step, differences, new_run, open_run, read_config
from coterie.runs.loop import check_finished, run_steps
from coterie.runs.place import EVALUATION
from coterie.trajectories.item import ItemKey
from coterie.trajectories.merging import copy_selections, copy_step, other_tasks, tasks_twice

SHARD = "rollout.shard"
"""The key that says which part of a run's tasks it has: [i, n]. Recipes that can be divided have it."""
SELECT = "select"
OF_A_FAMILY = ("dataset", "environment")
"""Groups of settings in which families differ by what they are."""
NAMED = 5
"""So many tasks are named at most."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run that is put together with others."""

    folder: Path
    stored: dict[str, Any]
    """Its settings as they are written."""
    recipe: Recipe
    """Under its settings."""
    whole: Recipe
    """Under the same settings, with all tasks."""

    @property
    def shard(self) -> tuple[int, int]:
        """Which part of the tasks it has, of how many."""
        place, count = flatten(self.recipe.settings.model_dump()).get(SHARD, (0, 1))
        return place, count

    @property
    def steps(self) -> list[Step]:
        """The steps whose results are those of single tasks."""
        steps = [step for step in self.recipe.steps() if step.stage in self.recipe.by_task]
        return [step for step in steps if step.iteration == steps[0].iteration]

    @property
    def select(self) -> Step:
        """The step that selects among their results."""
        return Step(self.steps[0].iteration, SELECT)


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of a merge."""

    recipe: str
    tasks: int
    missing: tuple[int, ...]
    """Parts that there was no run of. Their tasks are left to the merged run."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Runs that fit together."""

    parts: tuple[Part, ...]
    divided: bool
    """Whether they are parts of one run, not families of tasks."""
    missing: tuple[int, ...] = ()

    @property
    def whole(self) -> Recipe:
        """The recipe of the merged run."""
        return self.parts[0].whole


def merge(
    folders: Sequence[Path],
    target: Path,
    say: Callable[[str], None],
    progress: Progress,
    *,
    partial: bool = False,
) -> Merged:
    """Put runs together at ``target``.

    Raises :class:`UserError` for runs that do not fit together, that are not far enough, or that have tasks in common;
    for a part that is missing, unless ``partial``; and if there is something at ``target``.
    """
    plan = plan_merge(folders, partial=partial)
    first, whole = plan.parts[0], plan.whole
    todo = "give --folder a folder that does not exist"
    with _opened(first), new_run(target, whole.name, whole.settings, todo) as run:
        selected: dict[str, float | int] = {}
        for part in plan.parts:
            say(f"copying {part.folder}")
            for name, value in _copy(plan, part, run).items():
                selected[name] = selected.get(name, 0) + value
        _check_held_out(plan, run)
        for step in first.steps:
            run.begin(step, whole.fingerprint(step))
        if not plan.missing:
            run_steps(whole, run, progress, first.steps)
        if not plan.divided:
            runs = {"runs": ", ".join(str(part.folder) for part in plan.parts)}
            run.finish(first.select, whole.fingerprint(first.select), {**selected, **runs})
        tasks = run.store.tasks_of(first.steps[0].iteration, first.steps[0].stage)
        return Merged(whole.name, len(tasks), plan.missing)


def plan_merge(folders: Sequence[Path], *, partial: bool = False) -> Merge:
    """The runs in these folders as a merge. Raises :class:`UserError` if they can't be one."""
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("one run is not merged with itself", "give two or more run folders")
    parts = tuple(map(_part, folders))
    for part in parts[1:]:
        _check_start(parts[0], part)
    if max(part.shard[1] for part in parts) == 1:
        for part in parts[1:]:
            _check_family(parts[0], part)
        plan = Merge(parts, divided=False)
    else:
        for part in parts[1:]:
            _check_same_run(parts[0], part)
        there = {part.shard[0] for part in parts}
        count = parts[0].shard[1]
        plan = Merge(parts, True, tuple(n for n in range(count) if n not in there))
        if plan.missing and not partial:
            raise UserError(
                f"parts of the run are missing: {SHARD}="
                + ", ".join(f"[{n}, {count}]" for n in plan.missing),
                "give their folders, too; with --partial the merged run does their tasks itself",
            )
    for part in parts:
        _check_done(plan, part)
    return plan


def _part(folder: Path) -> Part:
    """The run in a folder."""
    name, stored = read_config(folder)
    own = settings(name, (), stored)
    undivided = [f"{SHARD}=[0,1]"] if SHARD in flatten(own.model_dump()) else []
    part = Part(folder, stored, recipe_of(own), recipe_of(settings(name, undivided, stored)))
    if not part.recipe.by_task:
        raise UserError(
            f"{folder} is a run of {name}, whose runs can't be merged",
            f"merge runs of a recipe whose tasks can be divided: one that has the key {SHARD}",
        )
    return part


# -- what fits together -------------------------------------------------------------------------


def _check_start(first: Part, part: Part) -> None:
    """Refuse runs of different recipes, models or seeds."""
    one, other = first.recipe, part.recipe
    found = []
    if described(one.name) is not described(other.name):
        found.append(f"recipe: {one.name} -> {other.name}")
    if _models(one) != _models(other):
        names = (", ".join(str(role.model) for role in of.roles()) for of in (one, other))
        found.append(f"model: {' -> '.join(names)}")
    if one.settings.seed != other.settings.seed:
        found.append(f"seed: {one.settings.seed} -> {other.settings.seed}")
    if found:
        todo = "merge runs of one recipe that begin with the same model and the same seed"
        raise _apart(first, part, found, todo)


def _models(recipe: Recipe) -> dict[str, str]:
    """What each role begins as."""
    return {role.name: identity(role.model) for role in recipe.roles()}


def _check_same_run(first: Part, part: Part) -> None:
    """Refuse what is not a part of the same run: what differs in a setting that any of its stages depends on."""
    divided_alike = first.shard[1] == part.shard[1]
    one, other = (first.whole, part.whole) if divided_alike else (first.recipe, part.recipe)
    if one.name == other.name and divided_alike and in_common(one, other) == one.steps():
        return
    found = differences(one.settings.model_dump(mode="json"), other.settings)
    if one.name != other.name:
        found.insert(0, f"recipe: {one.name} -> {other.name}")
    raise _apart(first, part, found, f"parts of one run differ in the place of {SHARD} alone")


def _check_family(first: Part, part: Part) -> None:
    """Refuse families that were not made for the same training, and runs of several trainings."""
    one, other = (
        [(stage.step, stage.depends) for stage in of.recipe.stages() if stage.trains]
        for of in (first, part)
    )
    agents = [", ".join(of.recipe.players()) for of in (first, part)]
    if agents[0] != agents[1]:
        todo = "merge families whose agents have the same names"
        raise _apart(first, part, [f"agents: {agents[0]} -> {agents[1]}"], todo)
    if len(one) > 1:
        raise UserError(
            f"{first.folder} trains {len(one)} times, and after the first time it would have no tasks of the others",
            "merge families of tasks in runs with iterations=1",
        )
    if one != other:
        found = differences(first.stored, part.recipe.settings)
        own = tuple(f"{group}." for group in OF_A_FAMILY)
        todo = f"make them for one training: KEY=VALUE after `coterie stage {SELECT} {part.folder}` changes a key"
        raise _apart(first, part, [line for line in found if not line.startswith(own)], todo)


def _apart(first: Part, part: Part, found: Sequence[str], todo: str) -> UserError:
    lines = "\n    ".join(found)
    return UserError(f"{first.folder} and {part.folder} do not fit together:\n    {lines}", todo)


def _check_done(plan: Merge, part: Part) -> None:
    """Refuse a run that is not far enough: parts must have sampled, families must have selected."""
    with _opened(part) as run:
        check_finished(part.recipe, run)
        for step in part.steps[:1] if plan.divided else [*part.steps, part.select]:
            if not run.is_finished(step):
                raise UserError(
                    f"the {step} of {part.folder} is not finished",
                    f"finish it with: coterie stage {step.stage} {part.folder}",
                )


# -- what is copied -----------------------------------------------------------------------------


def _copy(plan: Merge, part: Part, run: Run) -> dict[str, float | int]:
    """Copy what a run has. If that is copied which it selected: gives what adds up of its metrics."""
    iteration, whole = part.steps[0].iteration, plan.whole
    renamed = {part.recipe.fingerprint(step): whole.fingerprint(step) for step in part.steps}
    if not plan.divided:
        run.select(iteration, [])
    with _opened(part) as old:
        bases = [step for step in _bases(plan, part) if _only_there(step, old, run)]
        with run.store.beside(old.store.path) as db:
            _check_tasks(db, part, iteration)
            for stage in part.recipe.by_task:
                copy_step(db, iteration, stage, renamed)
            for step in bases:
                copy_step(db, step.iteration, step.stage, {}, marks=True)
            if plan.divided:
                return {}
            copy_selections(db, ItemKey(iteration, SELECT, ""))
        metrics = old.metrics(part.select).items()
        return {
            name: value
            for name, value in metrics
            if isinstance(value, int) or (name == "seconds" and isinstance(value, float))
        }


def _bases(plan: Merge, part: Part) -> list[Step]:
    """The steps in which what the run begins with is evaluated, and would be alike in the merged run."""
    steps = (stage.step for stage in plan.whole.stages() if not stage.after)
    same = in_common(plan.whole, part.recipe)
    return [step for step in steps if step.stage == EVALUATION and step in same]


def _only_there(step: Step, old: Run, run: Run) -> bool:
    return old.is_finished(step) and not run.is_finished(step)


def _check_tasks(db: sqlite3.Connection, part: Part, iteration: int) -> None:
    """Refuse tasks that another run has, too."""
    twice = (task for stage in part.recipe.by_task for task in tasks_twice(db, iteration, stage))
    found = list(dict.fromkeys([*twice, *other_tasks(db)]))
    if found:
        named = ", ".join(found[:NAMED])
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        raise UserError(
            f"{part.folder} has tasks that a run before it has, too: {named}{more}",
            "give runs with different tasks, each once",
        )


def _check_held_out(plan: Merge, run: Run) -> None:
    """Refuse to train on what the merged run is evaluated on."""
    held_out = {content_of(task) for task in plan.whole.heldout_tasks()}
    step = plan.parts[0].steps[0]
    for id_ in run.store.tasks_of(step.iteration, step.stage):
        if content_of(run.store.task(id_)) in held_out:
            raise UserError(
                f"task {id_} is a held-out task of {plan.parts[0].folder}, on which the merged run would be evaluated",
                "give the run first on whose held-out tasks no run was trained",
            )


def _opened(part: Part) -> AbstractContextManager[Run]:
    return open_run(part.folder, part.recipe.name, part.recipe.settings, write=False)
