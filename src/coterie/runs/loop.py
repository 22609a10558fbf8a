"""Loop over the stages of a recipe: finished ones are not repeated, and refused if their settings have changed."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coterie.config.resolve import flatten
from coterie.config.settings import Settings
from coterie.errors import UserError
from coterie.progress import Progress, StagePlace
from coterie.record.store_file import copy_step
from coterie.record.tree import Metrics, Selection, Tree
from coterie.runs.interruption import TERMINATED
from coterie.runs.run import (
    Run,
    StageKey,
    differences,
    new_run,
    open_run,
    read_config,
    write_config,
)

Do = Callable[[Run, int, Progress], Metrics]
"""Function that does or resumes a stage of an iteration and returns its metrics."""
W = TypeVar("W", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one iteration."""

    key: StageKey
    do: Do
    after: tuple[StageKey, ...] = ()
    depends: tuple[object, ...] = ()
    """Settings that its results depend on, in addition to the settings of the whole recipe."""
    trains: tuple[str, ...] = ()
    kind: str = ""
    """Name of the work. Stages of one kind in other iterations are used to estimate the remaining time."""


Declared = Sequence[Any] | Callable[[Any, int], Sequence[Any]]
"""Values, or a function of the recipe and the iteration that returns them."""


@dataclass(frozen=True, slots=True)
class StageDeclaration:
    """Arguments of :func:`stage`."""

    name: str
    after: tuple[str, ...]
    uses: Declared
    depends: Declared
    trains: Declared
    alone: bool


def stage(
    name: str,
    *,
    after: str | Sequence[str] = (),
    uses: str | Declared = (),
    depends: Declared = (),
    trains: str | Declared = (),
    alone: bool = False,
) -> Callable[[W], W]:
    """Declare the stage of a method with the arguments ``run``, ``iteration`` and ``progress``.

    A change of what ``uses`` or ``depends`` names, or of a stage in ``after``, makes the results invalid. ``uses``,
    ``depends`` and ``trains`` may be functions of the recipe and the iteration.

    Args:
        name: Name of the stage, unique in its iteration.
        after: Stages of the same iteration whose results it reads.
        uses: Names of the settings and groups that its results depend on, such as ``rollout`` or ``train``.
        depends: Other values that its results depend on, such as the hash of a file.
        trains: Roles that it trains.
        alone: Stop servers first, to free the devices. A stage that trains always does so.
    """

    def declare(method: W) -> W:
        declaration = StageDeclaration(
            name, _names(after), _names(uses), depends, _names(trains), alone
        )
        method.declaration = declaration  # type: ignore[attr-defined]
        return method

    return declare


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Role:
    """A named model."""

    name: str
    model: str
    shares: str | None = None
    """Role to share one base model in memory with; both are then adapters."""
    head: bool = False


def check_roles(roles: Sequence[Role]) -> None:
    """Raise ``UserError`` for equal names, a role without a model, and models that can't share a base."""
    by_name = {role.name: role for role in roles}
    for role in roles:
        if [other_role.name for other_role in roles].count(role.name) > 1:
            raise UserError(f"two roles are called {role.name!r}", "give each a unique name")
        if not role.model:
            raise UserError(f"no model is named for role {role.name!r}", "set model=NAME_OR_PATH")
        if role.shares is None:
            continue
        if role.shares not in by_name:
            raise UserError(
                f"{role.name!r} shares with {role.shares!r}, which is no role", "name one"
            )
        base_role = by_name[role.shares]
        if role.head or base_role.head:
            raise UserError(
                f"{role.name!r} and {base_role.name!r} share a base, and one of them has a value head",
                "give the role with the head its own model",
            )
        # Readers of a run import this module, too, and chat templates take long to import.
        from coterie.models.loading import identity

        if identity(role.model) != identity(base_role.model):
            raise UserError(
                f"{role.name!r} and {base_role.name!r} share a base, but {role.model} and {base_role.model} differ "
                "in their weights or tokenizers",
                "give both the same model, or remove `shares` to give each its own model",
            )


def check_stages(recipe: str, stages: Sequence[Stage]) -> None:
    """Raise ``UserError`` unless stages have unique names and follow the stages that they need."""
    earlier: set[StageKey] = set()
    for stage in stages:
        key = stage.key
        missing = [required for required in stage.after if required not in earlier]
        if key in earlier:
            problem = f"the recipe {recipe} has two stages called {key}"
            raise UserError(problem, "give each a unique name")
        if missing:
            problem = f"the recipe {recipe} has the {key} without the {missing[0]} before it"
            fix = "correct `after`, or put the stages in the order in which they run"
            raise UserError(problem, fix)
        earlier.add(key)


def load_selections(run: Run, iteration: int) -> Iterator[tuple[Tree, Selection]]:
    """Yield each selection of an iteration with its tree."""
    tree: Tree | None = None
    for task, selection in run.store.selections(iteration, "select"):
        # The selections of a task are adjacent, so each tree is read only once.
        if tree is None or tree.task != task:
            tree = run.store.tree(iteration, "rollout", task)
        yield tree, selection


EVALUATION = "evaluate"
"""Name of the evaluation stage, which also follows the last iteration."""
REINFORCE = "reinforce"
"""Stage of many steps, which reports its time left itself."""


def stage_place(run: Run, stages: Sequence[Stage], stage: Stage) -> StagePlace:
    # One more evaluation follows the last iteration, so evaluations don't count as iterations.
    iterations = sorted({s.key.iteration for s in stages if s.key.stage != EVALUATION})
    done = [s for s in stages if run.is_finished(s.key)]
    # The last finished stage of each kind is the estimate for those to come.
    measured = {s.kind: run.metrics(s.key).get("seconds") for s in done}
    seconds = {kind: float(value) for kind, value in measured.items() if value is not None}
    remaining = [s for s in stages[list(stages).index(stage) + 1 :] if not run.is_finished(s.key)]
    later = [seconds.get(s.kind) for s in remaining if s.kind != stage.kind]
    iteration = stage.key.iteration
    number = iterations.index(iteration) + 1 if iteration in iterations else None
    # The remaining time is only shown if every kind of remaining stage has been measured.
    unknown = None in later or stage.key.stage == REINFORCE
    later_seconds = None if unknown else sum(stage_seconds or 0.0 for stage_seconds in later)
    same = sum(s.kind == stage.kind for s in remaining)
    last_seconds = seconds.get(stage.kind)
    return StagePlace(iteration, number, len(iterations), last_seconds, later_seconds, same)


UNSEEN = "(a file named in the settings has changed, or engine.device=auto selects another device)"


def command_line(words: Sequence[str]) -> str:
    """Return a command of ``coterie`` as it can be typed again; empty where other code was called."""
    program = Path(words[0]).parts if words else ()
    called = program[-1:] == ("coterie",) or program[-2:] == ("coterie", "__main__.py")
    return shlex.join(["coterie", *words[1:]]) if called else ""


def run_stages(
    recipe: Any,
    run: Run,
    progress: Progress,
    keys: Sequence[StageKey] | None = None,
    *,
    on_stage_end: Callable[[StageKey], None] = lambda key: None,
) -> None:
    """Run the unfinished stages among ``keys`` (default: all), and call ``on_stage_end`` after each."""
    stages = {stage.key: stage for stage in recipe.stages()}
    # Fail before any file is changed: a mistake in the stages, or settings that have changed.
    check_stages(recipe.name, list(stages.values()))
    check_finished(recipe, run)
    write_config(run)
    run.note_command(command_line(sys.argv))
    try:
        for key in stages if keys is None else keys:
            if not run.is_finished(key):
                if TERMINATED.is_set():
                    raise KeyboardInterrupt
                progress.stage(stage_place(run, list(stages.values()), stages[key]))
                _run_stage(recipe, run, stages[key], progress)
                on_stage_end(key)
    finally:
        recipe.close()


def _run_stage(recipe: Any, run: Run, stage: Stage, progress: Progress) -> None:
    key = stage.key
    for required in stage.after:
        if not run.is_finished(required):
            command = (
                f"coterie stage {required.stage} {run.folder} --iteration {required.iteration}"
            )
            problem = f"the {key} needs the {required}, which is not finished"
            raise UserError(problem, f"run `{command}` first, or `coterie run` for all stages")
    # The start is recorded too, since an interrupted stage must resume with the same settings.
    run.begin(key, recipe.fingerprint(key))
    start = time.monotonic()
    metrics = stage.do(run, key.iteration, progress)
    seconds = round(time.monotonic() - start, 3)
    run.finish(key, recipe.fingerprint(key), {**metrics, "seconds": seconds})


def check_finished(recipe: Any, run: Run) -> None:
    """Raise :class:`UserError` if the settings of a stage that has results have changed."""
    for key in [stage.key for stage in recipe.stages()]:
        fingerprint = run.start_fingerprint(key)
        # A corrected reward or environment may follow a stage that failed before its first result.
        is_changed = fingerprint is not None and fingerprint != recipe.fingerprint(key)
        if is_changed and run.has_results(key):
            changed = differences(read_config(run.folder)[1], run.settings)
            done = "finished" if run.is_finished(key) else "started"
            lines = [f"the {key} in {run.folder} was {done} under other settings:"]
            problem = "\n    ".join([*lines, *(changed or _changed_files(run) or [UNSEEN])])
            fix = "--fork FOLDER for a new run that keeps the steps with equal settings"
            raise UserError(problem, f"add --folder FOLDER for a new run, or {fix}")


def _changed_files(run: Run) -> list[str]:
    """Return the files named by settings that were written after the run was last started."""
    # The configuration is written again at each start of the run.
    started = (run.folder / "config.yaml").stat().st_mtime
    named = []
    for key, value in flatten(run.settings.model_dump(mode="json")).items():
        for text in value if isinstance(value, list) else [value]:
            # Plug-ins are named as FILE:NAME.
            names = (text, text.rpartition(":")[0]) if isinstance(text, str) else ()
            files = [Path(name) for name in names if name and Path(name).is_file()]
            named += [
                f"{key}: {file} has changed" for file in files if file.stat().st_mtime > started
            ]
    return named


def fork(
    recipe: Any, source: Path, target: Path, settings: Settings, from_step: int | None = None
) -> list[StageKey]:
    """Create a run at ``target`` with the finished stages of ``source`` that are valid under ``settings``; return them.

    The source may be a run of another recipe with equal stages. The folder appears when it is complete. ``from_step``
    also keeps that many steps of its reinforcement learning, whose settings may have changed.
    """
    with (
        open_run(source, read_config(source)[0], settings, write=False) as old,
        new_run(target, recipe.name, settings, "give --fork a folder that does not exist") as new,
    ):
        keys = _valid_stages(recipe, old, changed=REINFORCE if from_step else "")
        with new.store.beside(old.store.path) as db:
            for key in keys:
                copy_step(db, key.iteration, key.stage, {}, marks=True)
        # Weights are copied, so either run can be removed without the other.
        for key in keys:
            for role in recipe.find_stage(key).trains:
                if (folder := old.training_folder(key.iteration, role)).exists():
                    shutil.copytree(folder, new.training_folder(key.iteration, role))
        if from_step:
            from coterie.runs.reinforce_record import fork_steps

            fork_steps(old, new, from_step)
    return keys


def _valid_stages(recipe: Any, run: Run, changed: str) -> list[StageKey]:
    """Return the finished stages that do not depend on a changed setting, or on the stage ``changed``."""

    def is_valid(key: StageKey) -> bool:
        is_same = run.start_fingerprint(key) == recipe.fingerprint(key)
        return is_same and key.stage != changed and run.is_finished(key)

    return stages_where(recipe, is_valid)


def stages_where(recipe: Any, is_valid: Callable[[StageKey], bool]) -> list[StageKey]:
    """Return the valid stages of a recipe whose inputs are valid, too, in order."""
    keys: list[StageKey] = []
    for stage in recipe.stages():
        if is_valid(stage.key) and all(required in keys for required in stage.after):
            keys.append(stage.key)
    return keys
