"""The settings of a run as a person gives them: a recipe, a file, words; and those of the run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.config.file import SettingsFile, nested, read_settings, recipe_in
from coterie.config.resolve import keys, overlaid
from coterie.errors import UserError
from coterie.recipes.registry import settings, settings_type
from coterie.recipes.settings import RecipeSettings
from coterie.terminal.words import once

FIRST = ("dataset", "model")
"""Keys that decide what the others lie over; of a file they are read as words."""


@dataclass(frozen=True, slots=True)
class Given:
    """A recipe and what is set of it on the command line."""

    recipe: str
    words: Sequence[str] = ()
    file: SettingsFile | None = field(default=None)

    def over(self, stored: Mapping[str, Any] | None = None) -> RecipeSettings:
        """The settings: those stored in a run folder, over them the file's, over them the words."""
        if self.file is None:
            return settings(self.recipe, self.words, stored)
        known = {key.path for key in keys(settings_type(self.recipe))}
        values = dict(self.file.values)
        spoken = {name: values.pop(name) for name in list(values)
                  if name in FIRST or name not in known}  # fmt: skip
        said = {word.partition("=")[0] for word in self.words}
        words = [f"{name}={value}" for name, value in spoken.items() if name not in said]
        words += self.words
        chosen = [word.partition("=")[2] for word in words if word.startswith("dataset=")]
        stored = stored or {}
        if chosen and stored.get("dataset", chosen[-1]) != chosen[-1]:
            stored = {}  # values for another data set
        with self.file.placed(self.words):
            return settings(self.recipe, words, overlaid(stored, nested(values)))


def given(recipe: str | None, words: Sequence[str], file: Path | None) -> Given:
    """What a person gives. A first word with ``=`` is a setting: the recipe is then the file's."""
    if recipe is not None and "=" in recipe:
        words = once([recipe, *words]) or []
        recipe = None
    if recipe is None and file is not None:
        recipe = recipe_in(file)
    if recipe is None:
        where = f" (or a line such as `recipe: optima/isft` in {file})" if file else ""
        raise UserError(f"no recipe is given{where}", "such as: coterie run optima/isft")
    read = None if file is None else read_settings(file, settings_type(recipe))
    return Given(recipe, words, read)
