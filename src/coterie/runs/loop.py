"""The loop over the stages of a recipe: run, resume, refuse, fork.

A recipe gives its stages (:class:`~coterie.runs.stage.Stage`). One that is finished is never done again; one that was
cut off is taken up where it was. A finished one whose settings have changed is refused, or kept out of a fork.
"""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from coterie.config.settings import Settings
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.runs.folder import Run, Step, differences, new_run, open_run, read_config, write_config
from coterie.runs.place import place_of
from coterie.runs.stage import Stage, check_stages
from coterie.trajectories.jsonl import copy

UNSEEN = "(files that the settings name have changed, or engine.device=auto is another device here)"


class Staged(Protocol):
    """What the loop needs of a recipe."""

    name: str

    def stages(self) -> list[Stage]: ...

    def at(self, step: Step) -> Stage: ...

    def fingerprint(self, step: Step) -> str:
        """Hash of the settings that this step's results depend on."""
        ...

    def check(self) -> None:
        """Refuse, with :class:`UserError`, what can't work, before anything expensive."""
        ...

    def close(self) -> None:
        """End what its stages have started and kept for the next ones, such as servers."""
        ...


def command_line(words: Sequence[str]) -> str:
    """Return a command of ``coterie`` as it can be typed again; empty where other code was called."""
    program = Path(words[0]).parts if words else ()
    called = program[-1:] == ("coterie",) or program[-2:] == ("coterie", "__main__.py")
    return shlex.join(["coterie", *words[1:]]) if called else ""


def run_steps(
    recipe: Staged,
    run: Run,
    progress: Progress,
    steps: Sequence[Step] | None = None,
    *,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Do the given steps (default: all), skipping those that are finished; ``after`` follows each.

    Raises :class:`UserError` if a finished step's settings have changed, or if a step is asked for
    whose input is missing.
    """
    stages = {stage.step: stage for stage in recipe.stages()}
    check_stages(recipe.name, list(stages.values()))
    check_finished(recipe, run)
    write_config(run)
    run.note_command(command_line(sys.argv))
    try:
        for step in stages if steps is None else steps:
            if not run.is_finished(step):
                progress.stage(place_of(run, list(stages.values()), stages[step]))
                _run_stage(recipe, run, stages[step], progress)
                after()
    finally:
        recipe.close()


def _run_stage(recipe: Staged, run: Run, stage: Stage, progress: Progress) -> None:
    step = stage.step
    for needed in stage.after:
        if not run.is_finished(needed):
            raise UserError(
                f"the {step} needs the {needed}, which is not finished",
                f"run `coterie stage {needed.stage} {run.folder} --iteration {needed.iteration}` first, "
                "or `coterie run` for all",
            )
    run.begin(step, recipe.fingerprint(step))
    began = time.monotonic()
    metrics = stage.do(run, step.iteration, progress)
    seconds = round(time.monotonic() - began, 3)
    run.finish(step, recipe.fingerprint(step), {**metrics, "seconds": seconds})


def check_finished(recipe: Staged, run: Run) -> None:
    """Refuse changed settings on a step that is finished or begun, naming them."""
    for step in [stage.step for stage in recipe.stages()]:
        begun = run.begun_under(step)
        if begun is not None and begun != recipe.fingerprint(step):
            changed = differences(read_config(run.folder)[1], run.settings)
            done = "finished" if run.is_finished(step) else "begun"
            raise UserError(
                f"the {step} in {run.folder} was {done} under other settings:\n    "
                + "\n    ".join(changed or [UNSEEN]),
                "keep the settings, or add --fork FOLDER for a new run that keeps the steps that "
                "these settings do not touch",
            )


def fork(recipe: Staged, source: Path, target: Path, settings: Settings) -> list[Step]:
    """Make a run at ``target`` with the finished steps of ``source`` that ``settings`` leave valid.

    The source may be a run of another recipe: steps that are the same in both are kept. Returns the
    steps kept. The folder appears when it is whole. Raises :class:`UserError` if
    ``target`` exists.
    """
    with (
        open_run(source, read_config(source)[0], settings, write=False) as old,
        new_run(target, recipe.name, settings, "give --fork a folder that does not exist") as new,
    ):
        kept = _kept(recipe, old)
        copy(old.store, new.store, {(step.iteration, step.stage) for step in kept})
        for step in kept:
            for role in recipe.at(step).trains:
                if (trained := old.training_folder(step.iteration, role)).exists():
                    shutil.copytree(trained, new.training_folder(step.iteration, role))
    return kept


def _kept(recipe: Staged, run: Run) -> list[Step]:
    kept: list[Step] = []
    for stage in recipe.stages():
        step, whole = stage.step, all(needed in kept for needed in stage.after)
        if whole and run.is_finished(step) and _is_current(recipe, run, step):
            kept.append(step)
    return kept


def _is_current(recipe: Staged, run: Run, step: Step) -> bool:
    return run.begun_under(step) == recipe.fingerprint(step)
