"""The settings of a run as a person gives them: a recipe, a file, words; and those of the run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config.folders import expanded
from coterie.config.plugins import absolute_name
from coterie.config.resolve import (
    SettingsFile,
    keys,
    names_in,
    nested,
    overlaid,
    read_settings,
    recipe_in,
)
from coterie.datasets.conversations import FileSettings
from coterie.datasets.files import SUFFIXES
from coterie.datasets.load import DATASETS
from coterie.datasets.sources import is_hub_name
from coterie.environments.registry import Choice, is_name_word, with_file
from coterie.errors import UserError
from coterie.recipes.registry import played_choice, played_settings, settings, settings_type
from coterie.recipes.settings import RecipeSettings
from coterie.runs.folder import read_config
from coterie.terminal import once

PLAYED = ("dataset", "environment")
"""Groups whose names decide which keys there are."""


@dataclass(frozen=True, slots=True)
class Given:
    """A recipe and what is set of it on the command line."""

    recipe: str
    words: Sequence[str] = ()
    file: SettingsFile | None = None
    named: Sequence[str] = ()
    """What the file says is played, as words."""

    def over(self, stored: Mapping[str, Any] | None = None) -> RecipeSettings:
        """The settings: those stored in a run folder, over them the file's, over them the words."""
        if self.file is None:
            return settings(self.recipe, self.words, stored)
        before = Choice.of(stored or {})
        in_file = before
        if self.named:
            in_file = played_choice(self.recipe, self.named, before.names())
        choice = in_file
        if Choice.among(self.words) != Choice():
            choice = played_choice(self.recipe, self.words, in_file.names())
        kept = stored or {} if choice == before else {}  # or else of something else
        values, words = self._of_file(same=choice == in_file)
        names = choice.names() if choice != Choice() else {}
        with self.file.line_numbers(self.words):
            return settings(self.recipe, words, overlaid(kept, overlaid(nested(values), names)))

    def _of_file(self, *, same: bool) -> tuple[dict[str, Any], list[str]]:
        """The values of the file, and those that are read as words before the words that were typed.

        Keys of what is played are left out if it is not the ``same`` as in the file.
        """
        assert self.file is not None, "there is a file"
        known = {key.path for key in keys(played_settings(self.recipe, self.named))}
        values = {
            name: value
            for name, value in self.file.values.items()
            if name.partition(".")[0] not in PLAYED
            or (same and name in known and not name.endswith(".name"))
        }
        spoken = {name: values.pop(name) for name in list(values)
                  if name == "model" or name not in known}  # fmt: skip
        said = {word.partition("=")[0] for word in self.words}
        words = [f"{name}={value}" for name, value in spoken.items() if name not in said]
        return values, words + [word for word in self.words if not is_name_word(word)]


def given(
    recipe: str | None, words: Sequence[str], file: Path | None, folder: Path | None = None
) -> Given:
    """Read the command line.

    Args:
        recipe: Recipe; a word with ``=`` is a setting.
        words: Settings as ``key=value``.
        file: File of settings. It may name the recipe.
        folder: Run folder. It names the recipe of a run to resume.

    Raises:
        UserError: Nothing names a recipe, or a setting is wrong.
    """
    if recipe is not None and "=" in recipe:
        words = once([recipe, *words]) or []
        recipe = None
    if recipe is None and file is not None:
        recipe = recipe_in(file)
    if recipe is None and folder is not None and (folder / "config.yaml").is_file():
        recipe = read_config(folder)[0]
    if recipe is None:
        where = f" (or a line such as `recipe: optima/isft` in {file})" if file else ""
        raise UserError(f"no recipe is given{where}", "such as: coterie run optima/isft")
    recipe = absolute_name(recipe)
    own = isinstance(settings_type(recipe).model_fields["dataset"].default, FileSettings)
    words = with_file([_source(word, own) for word in words])
    if file is None:
        return Given(recipe, words)
    named = with_file(names_in(file, PLAYED))
    if not any(word.startswith("dataset") for word in words):
        words = [word for word in named if not is_name_word(word)] + words
    return Given(recipe, words, read_settings(file, played_settings(recipe, named)), named)


def stored_settings(name: str, folder: Path, *, forked: bool = False) -> dict[str, Any] | None:
    """Return the stored settings of a run folder; ``None`` if it is new.

    A run of one recipe may be ``forked`` into one of another, under that one's own settings.
    """
    if not (folder / "config.yaml").is_file():
        return None
    found, stored = read_config(folder)
    if found != name and forked:
        return None
    if found != name:
        raise UserError(
            f"{folder} is a run of {found}, not of {name}", "give another --folder, or that recipe"
        )
    return stored


def _source(word: str, any_source: bool) -> str:
    """Return a bare name of a data set, or path of a file, as the setting that it stands for.

    Recipes that read ``any_source`` also take names of the Hugging Face hub, and a file as ``dataset=FILE``.
    """
    if word in DATASETS.built_in:
        return f"dataset={word}"
    if any_source and word.startswith("dataset=") and word.endswith(SUFFIXES):
        word = word.removeprefix("dataset=")
    is_file = "=" not in word and (word.endswith(SUFFIXES) or expanded(word).exists())
    is_source = is_file or (any_source and is_hub_name(word))
    return f"dataset.source={word}" if is_source else word
