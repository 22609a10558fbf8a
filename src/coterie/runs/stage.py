"""A stage of a recipe as an object: what it does, after which others, what it depends on, and which roles it trains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.runs.folder import Run, Step
from coterie.trajectories.item import Metrics

Do = Callable[[Run, int, Progress], Metrics]
"""Does a stage of an iteration, or the rest of it, and returns what to remember of it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one iteration."""

    step: Step
    do: Do
    after: tuple[Step, ...] = ()
    depends: tuple[object, ...] = ()
    """The settings that its results depend on, besides those of the whole recipe."""
    trains: tuple[str, ...] = ()
    kind: str = ""
    """What it does. Stages of one kind do the same in other iterations: how long one took tells of the next."""


def check_stages(recipe: str, stages: Sequence[Stage]) -> None:
    """Refuse, with :class:`UserError`, what is not a list of stages, and stages that can't run in this order."""
    given: object = stages
    if not isinstance(given, (list, tuple)) or not all(isinstance(stage, Stage) for stage in given):
        raise _refused(
            recipe, "stages() that do not give a list of Stage", "make each by self.stage"
        )
    before: set[Step] = set()
    known = {stage.step for stage in stages}
    for stage in stages:
        if stage.step in before:
            raise _refused(recipe, f"two stages called {stage.step}", "give each a name of its own")
        for needed in stage.after:
            if needed == stage.step:
                raise _refused(recipe, f"a stage after itself: the {stage.step}", "correct `after`")
            if needed not in known:
                what = f"the {stage.step} after the {needed}, which it does not have"
                raise _refused(recipe, what, "add that stage, or correct `after`")
            if needed not in before:
                what = f"the {stage.step} before the {needed}, which it needs"
                raise _refused(recipe, what, "put them in the order in which they run")
        before.add(stage.step)


def _refused(recipe: str, what: str, do: str) -> UserError:
    return UserError(f"the recipe {recipe} has {what}", do)
