"""Opening of existing run folders."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from coterie.recipes.base import Recipe
from coterie.recipes.registry import settings
from coterie.recipes.settings import RecipeSettings
from coterie.runs.folder import Run, open_run, read_config

R = TypeVar("R", bound=Recipe)


@contextmanager
def recorded_run(
    folder: Path, make: Callable[[RecipeSettings], R], words: Sequence[str] = ()
) -> Iterator[tuple[R, Run]]:
    """Open a run read-only, with the recipe that ``make`` returns for its stored settings.

    ``words`` override stored settings. Raises ``UserError`` for a folder that is not a run.
    """
    name, stored = read_config(folder)
    recipe = make(settings(name, words, stored))
    with open_run(folder, name, recipe.settings, write=False) as run:
        yield recipe, run
