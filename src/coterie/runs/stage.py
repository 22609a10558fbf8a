"""Stages of a recipe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.record.tree import Metrics
from coterie.runs.folder import Run, Step

Do = Callable[[Run, int, Progress], Metrics]
"""Function that does or resumes a stage of an iteration and returns its metrics."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one iteration."""

    step: Step
    do: Do
    after: tuple[Step, ...] = ()
    depends: tuple[object, ...] = ()
    """Settings that its results depend on, in addition to the settings of the whole recipe."""
    trains: tuple[str, ...] = ()
    kind: str = ""
    """Name of the work. Stages of one kind in other iterations are used to estimate the remaining time."""


def check_stages(recipe: str, stages: Sequence[Stage]) -> None:
    """Raise :class:`UserError` unless ``stages`` is a list of stages in an order that can run."""
    value: object = stages
    if not isinstance(value, (list, tuple)) or not all(isinstance(stage, Stage) for stage in value):
        raise _refused(
            recipe, "a stages() that does not return a list of Stage", "make each with self.stage"
        )
    before: set[Step] = set()
    known = {stage.step for stage in stages}
    for stage in stages:
        if stage.step in before:
            raise _refused(recipe, f"two stages called {stage.step}", "give each a unique name")
        for required in stage.after:
            if required == stage.step:
                raise _refused(recipe, f"a stage after itself: the {stage.step}", "correct `after`")
            if required not in known:
                what = f"the {stage.step} after the {required}, which it does not have"
                raise _refused(recipe, what, "add that stage, or correct `after`")
            if required not in before:
                what = f"the {stage.step} before the {required}, which it needs"
                raise _refused(recipe, what, "put them in the order in which they run")
        before.add(stage.step)


def _refused(recipe: str, what: str, do: str) -> UserError:
    return UserError(f"the recipe {recipe} has {what}", do)
