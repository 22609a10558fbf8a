"""Registry entries of recipes.

Each folder ``recipes/NAME`` has a module ``description`` with a :class:`RecipeDescription` called ``DESCRIPTION``,
which :mod:`coterie.recipes.registry` finds. Every command reads it, including ``coterie --help``, so it imports neither
torch nor the rest of its folder. Its functions import other modules when they are called.
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
    from coterie.record.tree import Task, Tree
    from coterie.record.turn import Turn
    from coterie.reports.page import Report
    from coterie.runs.folder import Run


@dataclass(frozen=True, slots=True)
class OpenCritic:
    """An open critic."""

    renderer: "ChatRenderer | None"
    """Renderer of the token ids that the critic reads; ``None`` if it reads text."""
    score: "Callable[[Task, Tree, Sequence[Turn]], Awaitable[list[float]]]"
    """Function that scores the candidates of one turn; higher is better."""


class RunCritic(Protocol):
    """Critic of a recipe's runs. Both methods raise ``UserError`` for a run whose critic is not trained."""

    def fingerprint(self, run: "Run") -> str:
        """Return a hash of the settings and weights that the scores depend on."""
        ...

    def open(self, run: "Run") -> AbstractAsyncContextManager[OpenCritic]: ...


@dataclass(frozen=True, slots=True)
class RecipeDescription:
    """Registry entry of a recipe."""

    name: str
    """Name of the folder. Methods are called ``name/method``."""
    package: str
    """Package of the folder. Its file ``presets/method.yaml`` has the values of ``name/method``."""
    settings: "Callable[[], tuple[type[RecipeSettings], ...]]"
    """Settings of the methods, in the order of the list."""
    recipe: "Callable[[RecipeSettings], Recipe]"
    report: "Callable[[Recipe, Run], Report]"
    """Function that makes the report of a run, finished or not."""
    critic: "Callable[[Recipe], RunCritic | None] | None" = None
    """Function that returns the critic for ``coterie evaluate critic=RUN``, or ``None`` if the run has no critic."""
    quickstart: str | None = None
    """Method of ``coterie quickstart``; ``presets/quickstart.yaml`` has its sizes."""


def describe(
    package: str,
    *settings: str,
    recipe: str,
    report: str,
    critic: str | None = None,
    quickstart: str | None = None,
) -> RecipeDescription:
    """Return the registry entry of the recipe in a package. Its parts are imported on first use.

    Args:
        package: Package of the recipe.
        settings: Settings of the methods as ``.module:Name``, relative to the package.
        recipe: Class or function that makes the recipe from settings.
        report: Function that makes the report of a recipe and its run.
        critic: Function that returns the critic of a recipe's runs.
        quickstart: Method of ``coterie quickstart``.
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
