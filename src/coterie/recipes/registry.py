"""Recipes by name: the folders here, what each says of itself, and the settings of its methods.

What is asked of a recipe goes through its :mod:`description <coterie.recipes.description>`; no name of a recipe stands
here. Heavy imports happen inside functions, for every command imports this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module, resources
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from coterie import recipes
from coterie.errors import UserError, did_you_mean, nearest
from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.description import RunCritic
    from coterie.recipes.presets import Presets
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


@cache
def descriptions() -> tuple[RecipeDescription, ...]:
    """What the recipes say of themselves, by name."""
    folders = [found.name for found in iter_modules(recipes.__path__) if found.ispkg]
    modules = (import_module(f"{recipes.__name__}.{name}.description") for name in sorted(folders))
    return tuple(module.DESCRIPTION for module in modules)


def described(name: str) -> RecipeDescription:
    """The description of the recipe that has a method; raises :class:`UserError` if there is none."""
    folder = name.partition("/")[0]
    found = next((one for one in descriptions() if one.name == folder), None)
    if found is None or name not in _methods(found):
        known = names()
        near = nearest(name, known, cutoff=0.3)
        hint = f"did you mean {near!r}? " if near else ""
        raise UserError(f"no recipe is called {name!r}", f"{hint}there is: {', '.join(known)}")
    return found


def names() -> tuple[str, ...]:
    """All methods of all recipes, such as are typed after ``coterie run``."""
    return tuple(method for one in descriptions() for method in _methods(one))


def settings_type(name: str) -> "type[RecipeSettings]":
    """The settings of a method; raises :class:`UserError` if there is no such method."""
    return _methods(described(name))[name]


def recipe(settings: "RecipeSettings") -> "Recipe":
    """The recipe under its settings."""
    return described(settings.recipe).recipe(settings)


def run_report(recipe: "Recipe", run: "Run") -> "RunReport":
    """All that the page shows of a run, finished or not."""
    return described(recipe.name).report(recipe, run)


def critic_of(recipe: "Recipe") -> "RunCritic | None":
    """The critic that runs of the recipe have; ``None`` if they have none."""
    critic = described(recipe.name).critic
    return critic(recipe) if critic else None


def quickstart_method() -> str:
    """The method that a person begins with."""
    return next(one.quickstart for one in descriptions() if one.quickstart)


def micro_world(name: str) -> str:
    """The data set of a method for which none is given: its micro-world."""
    return str(settings_type(name).model_fields["dataset"].default)


def datasets(name: str) -> list[str]:
    """The data sets for which a method has a preset; the micro-world first."""
    return list(_presets(name).values)


def preset(name: str, dataset: str) -> dict[str, Any]:
    """The packaged values of a method for a data set."""
    return _packaged(_presets(name), dataset, f"dataset={dataset!r} is not known to {name}")


def quickstart_sizes(dataset: str) -> dict[str, Any]:
    """The sizes of a quickstart on a data set, to be laid over its preset."""
    sizes = _presets_of(described(quickstart_method()), "quickstart")
    return _packaged(sizes, dataset, f"there is no quickstart on {dataset}")


def settings(
    name: str,
    words: Sequence[str] = (),
    stored: Mapping[str, Any] | None = None,
    *,
    over: Mapping[str, Any] | None = None,
) -> "RecipeSettings":
    """A method's preset for the data set that is asked for, overlaid by ``over``, by a run folder's
    stored values and by ``key=value`` words. A run folder as the model is the last policy of the run.
    """
    from coterie.config.resolve import resolve

    stored = stored or {}
    words = list(map(_of_run, words))
    dataset = _asked(words) or str(stored.get("dataset") or micro_world(name))
    if stored.get("dataset", dataset) != dataset:
        stored = {}  # values for another data set: not to be laid over this one's preset
    return resolve(settings_type(name), [preset(name, dataset), over or {}, stored], words)


def _of_run(word: str) -> str:
    """``model=RUN`` with the policy that is meant."""
    from coterie.config.folders import expanded

    key, _, text = word.partition("=")
    if key != "model" or not (expanded(text) / "config.yaml").is_file():
        return word
    from coterie.recipes.last_policy import last_policy

    return f"model={last_policy(expanded(text))}"


def _asked(words: Iterable[str]) -> str | None:
    found = [word.partition("=")[2] for word in words if word.startswith("dataset=")]
    return found[-1] if found else None


def _methods(description: RecipeDescription) -> "dict[str, type[RecipeSettings]]":
    """The settings of its methods, by name."""
    return {settings.recipe: settings for settings in description.settings()}


def _presets(name: str) -> "Presets":
    """The packaged values of a method."""
    return _presets_of(described(name), name.rpartition("/")[2])


def _presets_of(description: RecipeDescription, file: str) -> "Presets":
    from coterie.recipes.presets import read_presets

    folder = resources.files(description.package) / "presets"
    return read_presets(folder / f"{file}.yaml")


def _packaged(presets: "Presets", dataset: str, wrong: str) -> dict[str, Any]:
    known = list(presets.values)
    if dataset not in known:
        raise UserError(wrong, f"{did_you_mean(dataset, known)}use one of: {', '.join(known)}")
    return presets.of(dataset)
