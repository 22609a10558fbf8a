"""Resolve run settings from a recipe, a YAML file, ``key=value`` arguments and a run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config.folders import expanded
from coterie.config.plugins import absolute_name
from coterie.config.resolve import keys, nested, overlaid, read_settings, read_yaml
from coterie.datasets.files import SUFFIXES, is_hub_name
from coterie.datasets.load import DATASETS
from coterie.datasets.question_files import FileSettings
from coterie.environments.registry import Choice, is_task_pair, with_file
from coterie.errors import UserError
from coterie.models.catalogue import check_hub_name, converted_folder, packaged_folder
from coterie.recipes.registry import played_choice, played_settings, settings, settings_type
from coterie.recipes.settings import RecipeSettings
from coterie.runs.run import read_config
from coterie.terminal import once

PLAYED = ("dataset", "environment")
"""Groups whose name determines their keys."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A recipe and its settings on the command line."""

    recipe: str
    overrides: Sequence[str] = ()
    file: Mapping[str, Any] | None = None
    """Values of the file by dotted key."""
    named: Sequence[str] = ()
    """The file's data set and environment, as overrides."""

    def resolve(self, stored: Mapping[str, Any] | None = None) -> RecipeSettings:
        """Return the settings. Overrides replace settings of the file, and these the stored ones of a run folder."""
        if self.file is None:
            return settings(self.recipe, self.overrides, stored)
        # The data set and the environment are chosen first, because they determine which keys exist.
        stored_choice = Choice.of(stored or {})
        in_file = stored_choice
        if self.named:
            in_file = played_choice(self.recipe, self.named, stored_choice.names())
        choice = in_file
        if Choice.among(self.overrides) != Choice():
            choice = played_choice(self.recipe, self.overrides, in_file.names())
        # Keys of another data set or environment than the chosen one do not count.
        base = stored or {} if choice == stored_choice else {}
        same = choice == in_file
        paths = {key.path for key in keys(played_settings(self.recipe, self.named))}
        typed = {pair.partition("=")[0] for pair in self.overrides}
        values, overrides = dict[str, Any](), list[str]()
        for name, value in self.file.items():
            is_played = name.partition(".")[0] in PLAYED
            if is_played and (not same or name not in paths or name.endswith(".name")):
                continue
            # `model` is passed on as an override, because only overrides are resolved to the policy of a run.
            if name != "model" and name in paths:
                values[name] = value
            elif name not in typed:
                overrides.append(f"{name}={value}")
        overrides += [pair for pair in self.overrides if not is_task_pair(pair)]
        names = choice.names() if choice != Choice() else {}
        return settings(self.recipe, overrides, overlaid(base, nested(values), names))


def read_arguments(
    recipe: str | None, overrides: Sequence[str], file: Path | None, folder: Path | None = None
) -> Arguments:
    """Read the command line: a recipe or a setting, settings, a file of settings, the folder of a run to resume.

    Raises ``UserError`` if none of them names a recipe, or a setting is invalid.
    """
    # The first argument may be a setting, such as `seed=3` with --config.
    if recipe is not None and "=" in recipe:
        overrides = once([recipe, *overrides]) or []
        recipe = None
    if recipe is not None and recipe.endswith((".yaml", ".yml")) and file is None:
        file, recipe = Path(recipe), None
    tree = {} if file is None else read_yaml(file)
    if recipe is None:
        recipe = tree.get("recipe")
    # The folder of a run to resume knows its recipe.
    if recipe is None and folder is not None and (folder / "config.yaml").is_file():
        recipe = read_config(folder)[0]
    if not isinstance(recipe, str):
        where = f" (or a line such as `recipe: optima/isft` in {file})" if file else ""
        where += f", and {folder} is not a run folder" if folder else ""
        raise UserError(f"no recipe is given{where}", "such as: coterie run optima/isft")
    recipe = absolute_name(recipe)
    # Recipes such as sft read a file as conversations, all others as questions.
    default = settings_type(recipe).model_fields["dataset"].default
    reads_files = isinstance(default, FileSettings)
    overrides = _with_record(overrides, default.name) if reads_files else overrides
    overrides = with_file(_with_source(overrides, reads_files, _names(tree)))
    if file is None:
        return Arguments(recipe, overrides)
    named = with_file(_with_source(_names(tree), reads_files, ()))
    # A data set on the command line replaces the source in the file as well.
    if not any(pair.startswith("dataset") for pair in overrides):
        overrides = [pair for pair in named if not is_task_pair(pair)] + overrides
    return Arguments(recipe, overrides, read_settings(file, played_settings(recipe, named)), named)


def check_sources(settings: RecipeSettings) -> None:
    """Raise ``UserError`` for a missing file of rows or an unknown model, without importing torch."""
    source = getattr(settings.dataset, "source", "")
    is_path = source.startswith("/") or source.endswith(SUFFIXES)
    # A folder may be followed by a configuration and a split, as on the hub.
    paths = (expanded(source), expanded(source.partition(":")[0]))
    if is_path and not any(path.exists() for path in paths):
        raise UserError(f"there is no file {source}", "check the path")
    for model in (settings.model, *getattr(settings, "models", {}).values()):
        is_found = packaged_folder(model) or converted_folder(model)
        if not is_found and not expanded(model).is_dir():
            check_hub_name(model)


def stored_settings(name: str, folder: Path, *, forked: bool = False) -> dict[str, Any] | None:
    """Return the stored settings of a run folder; ``None`` if it is new.

    A run that is ``forked`` into another recipe starts from the settings of that recipe.
    """
    if not (folder / "config.yaml").is_file():
        return None
    recipe, stored = read_config(folder)
    if recipe == name:
        return stored
    if forked:
        return None
    problem = f"{folder} is a run of {recipe}, not of {name}"
    raise UserError(problem, "give another --folder, or that recipe")


def _names(tree: Mapping[str, Any]) -> list[str]:
    """Return the data set and environment of a file, as overrides ``dataset=NAME``."""
    overrides = []
    for name, value in tree.items():
        group, _, key = str(name).partition(".")
        value = value.get("name") if isinstance(value, Mapping) else value
        if group in PLAYED and key in ("", "name") and value is not None:
            overrides.append(f"{group}={value}")
    return overrides


def _with_record(overrides: Sequence[str], default: str) -> list[str]:
    """Replace a run folder by the data set of its record, and by its model (or its role's) unless one is given."""
    result: list[str] = []
    for word in overrides:
        if "=" in word or not (expanded(word) / "config.yaml").is_file():
            result.append(word)
            continue
        name = "recorded_pairs" if default == "preferences" else "recorded"
        result += [f"dataset={name}", f"dataset.source={expanded(word).absolute()}"]
        if not any(pair.startswith("model=") for pair in overrides):
            stored: dict[str, Any] = read_config(expanded(word))[1]
            # A role of `coterie gateway` may have a model of its own.
            models = {f"dataset.role={role}": m for role, m in stored.get("models", {}).items()}
            chosen = next(filter(models.get, overrides), "")
            result.append(f"model={models.get(chosen, stored['model'])}")
    return result


def _with_source(overrides: Sequence[str], reads_files: bool, in_file: Sequence[str]) -> list[str]:
    """Replace a bare name of a data set by its setting, and a file, folder or name of the hub by the source.

    A source without the name of a data set has questions, unless the recipe's own data set ``reads_files``. Such a
    recipe also accepts ``dataset=FILE``.
    """
    # A name such as `gsm8k` needs no key.
    overrides = [f"dataset={word}" if word in DATASETS.built_in else word for word in overrides]
    if reads_files:
        overrides = [
            word.removeprefix("dataset=") if word.endswith(SUFFIXES) else word for word in overrides
        ]
    is_named = reads_files or any(
        word.startswith(("dataset=", "dataset.name=")) for word in (*overrides, *in_file)
    )
    result: list[str] = []
    for word in overrides:
        # A path without a key is the source of the rows.
        is_path = word.endswith(SUFFIXES) or expanded(word).exists() or is_hub_name(word)
        if "=" in word or not is_path:
            result.append(word)
        else:
            result += [*([] if is_named else ["dataset=qa"]), f"dataset.source={word}"]
    return result
