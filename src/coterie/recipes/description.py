"""What a recipe says of itself, so that nothing outside its folder need know it.

Each folder ``recipes/NAME`` has a module ``description`` with a :class:`RecipeDescription` called ``DESCRIPTION``, by
which :mod:`coterie.recipes.registry` finds it. Every command reads it, also ``coterie --help``: it imports neither
torch nor the rest of its folder, and the functions in it import what they need when they are called.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from coterie.models.chat import ChatRenderer
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.page import Report
    from coterie.runs.folder import Run
    from coterie.trajectories.task import Task
    from coterie.trajectories.tree import Tree
    from coterie.trajectories.turn import Turn


@dataclass(frozen=True, slots=True)
class OpenCritic:
    """A critic that is ready to score."""

    renderer: "ChatRenderer | None"
    """Of the token ids that it reads; ``None`` if it reads text."""
    score: "Callable[[Task, Tree, Sequence[Turn]], Awaitable[list[float]]]"
    """A number for each candidate of one turn, higher for better."""


class RunCritic(Protocol):
    """The critic that runs of a recipe's settings have. Both methods refuse a run whose critic is not trained."""

    def fingerprint(self, run: "Run") -> str:
        """What its scores depend on: settings and weights."""
        ...

    def open(self, run: "Run") -> AbstractAsyncContextManager[OpenCritic]: ...


@dataclass(frozen=True, slots=True)
class RecipeDescription:
    """A recipe, in terms of what commands ask of it."""

    name: str
    """That of its folder. Its methods are called ``name/method``."""
    package: str
    """Its folder as a package. The values of ``name/method`` are in its file ``presets/method.yaml``."""
    settings: "Callable[[], tuple[type[RecipeSettings], ...]]"
    """The settings of its methods, in the order in which they are listed."""
    recipe: "Callable[[RecipeSettings], Recipe]"
    report: "Callable[[Recipe, Run], Report]"
    """What the report page of a run shows, finished or not."""
    critic: "Callable[[Recipe], RunCritic | None] | None" = None
    """The critic for ``coterie evaluate critic=RUN``; ``None`` of a recipe whose settings have none."""
    quickstart: str | None = None
    """The method of ``coterie quickstart``, whose sizes are in ``presets/quickstart.yaml``."""


def describe(
    package: str,
    *settings: str,
    recipe: str,
    report: str,
    critic: str | None = None,
    quickstart: str | None = None,
) -> RecipeDescription:
    """Return the description of the recipe in a package, whose parts are imported when they are used.

    Args:
        package: The recipe's folder as a package.
        settings: Settings of its methods as ``.module:Name``, relative to the package.
        recipe: Class or function that makes the recipe from settings.
        report: Function of a recipe and its run.
        critic: Function that returns the critic of a recipe's runs.
        quickstart: The method of ``coterie quickstart``.
    """

    def part(name: str) -> Any:
        module, _, attribute = name.partition(":")
        return getattr(import_module(module, package), attribute)

    return RecipeDescription(
        name=package.rpartition(".")[2],
        package=package,
        settings=lambda: tuple(map(part, settings)),
        recipe=lambda own: part(recipe)(own),
        report=lambda one, run: part(report)(one, run),
        critic=None if critic is None else lambda one: part(critic)(one),
        quickstart=quickstart,
    )
