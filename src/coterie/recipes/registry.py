"""Registry of recipes, found by their folders and described by their :mod:`coterie.recipes.description`.

Heavy imports are inside functions, because every command imports this module.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module, resources
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from coterie import recipes
from coterie.config.plugins import OWN, Kind, installed, is_spec
from coterie.errors import UserError, did_you_mean, nearest
from coterie.recipes.description import RecipeDescription
from coterie.recipes.plugins import plugin

if TYPE_CHECKING:
    from coterie.environments.registry import Choice
    from coterie.recipes.base import Recipe
    from coterie.recipes.description import RunCritic
    from coterie.recipes.settings import Presets, RecipeSettings
    from coterie.reports.page import Report
    from coterie.runs.folder import Run


@cache
def descriptions() -> tuple[RecipeDescription, ...]:
    folders = [module.name for module in iter_modules(recipes.__path__) if module.ispkg]
    modules = (import_module(f"{recipes.__name__}.{name}.description") for name in sorted(folders))
    return tuple(module.DESCRIPTION for module in modules)


def described(name: str) -> RecipeDescription:
    """Return the description of the recipe with a method. Raises :class:`UserError` for an unknown method."""
    if is_spec(name):
        return plugin(recipe_kind(), name)
    folder = name.partition("/")[0]
    description = next(
        (candidate for candidate in descriptions() if candidate.name == folder), None
    )
    if folder in installed(recipe_kind()):
        description = plugin(recipe_kind(), folder)
    if description is None or name not in _methods(description):
        known = (*names(), *installed(recipe_kind()))
        near = nearest(name, known, cutoff=0.3)
        hint = f"did you mean {near!r}? " if near else ""
        raise UserError(
            f"no recipe is called {name!r}", f"{hint}there is: {', '.join(known)}; {OWN}"
        )
    return description


def recipe_kind() -> Kind:
    """Return the kind of plug-in for recipes, with the built-in names that entry points must not use."""
    return Kind(
        "recipe", {one.name: f"{one.package}.description:DESCRIPTION" for one in descriptions()}
    )


def names() -> tuple[str, ...]:
    """Return the methods of all built-in recipes."""
    return tuple(method for one in descriptions() for method in _methods(one))


def settings_type(name: str) -> "type[RecipeSettings]":
    """Return the settings type of a method. Raises :class:`UserError` for an unknown method."""
    return _methods(described(name))[name]


def recipe(settings: "RecipeSettings") -> "Recipe":
    return described(settings.recipe).recipe(settings)


def run_report(recipe: "Recipe", run: "Run") -> "Report":
    """Return the report of a run, finished or not."""
    return described(recipe.name).report(recipe, run)


def critic_of(recipe: "Recipe") -> "RunCritic | None":
    """Return the critic of a recipe's runs; ``None`` if they have no critic."""
    critic = described(recipe.name).critic
    return critic(recipe) if critic else None


def quickstart_method() -> str:
    return next(one.quickstart for one in descriptions() if one.quickstart)


def micro_world(name: str) -> str:
    """Return the micro-world of a method, its default environment."""
    return played_by(name)[0]


def _default(name: str) -> "Choice":
    """Return the default environment or data set: from the settings, else the first preset."""
    from coterie.environments.registry import Choice, is_micro_world

    choice = _own(name)
    if choice == Choice() and (known := played_by(name)):
        first = known[0]
        choice = Choice(None, first) if is_micro_world(first) else Choice(first)
    if choice == Choice():
        raise UserError(
            f"{name} has no default environment or data set", "add environment=NAME or dataset=NAME"
        )
    return choice.over(Choice(), settings_type(name).questions)


def _own(name: str) -> "Choice":
    from coterie.environments.registry import Choice

    fields = settings_type(name).model_fields
    return Choice(*(fields[group].default.name for group in ("dataset", "environment")))


def played_by(name: str) -> list[str]:
    """Return the micro-world and data sets with presets of a method."""
    return list(_presets(name).values)


def preset(name: str, dataset: str) -> dict[str, Any]:
    """Return the preset values of a method for a data set or its micro-world."""
    return _packaged(_presets(name), dataset, name)


def quickstart_sizes(dataset: str) -> dict[str, Any]:
    """Return the sizes of a quickstart, which override the preset of the data set."""
    sizes = _presets_of(described(quickstart_method()), "quickstart")
    return _packaged(sizes, dataset, "a quickstart")


def settings(
    name: str,
    words: Sequence[str] = (),
    stored: Mapping[str, Any] | None = None,
    *,
    over: Mapping[str, Any] | None = None,
) -> "RecipeSettings":
    """Resolve the settings of a method.

    Args:
        name: Method.
        words: ``key=value`` arguments, which override all else. ``model=RUN`` is the last policy of a run folder.
        stored: Values of a run folder, which override ``over``.
        over: Values that override the preset.
    """
    from coterie.config.resolve import resolve
    from coterie.environments.registry import Choice, is_name_word, played_type, with_file

    stored = stored or {}
    words = list(map(_of_run, with_file(words)))
    choice = played_choice(name, words, stored)
    if Choice.of(stored) not in (Choice(), choice):
        stored = {}  # values for another data set must not override this preset
    base = settings_type(name)
    own = played_type(base, choice)
    layers = [
        choice.values(),
        _declared(base, choice),
        _values(name, choice),
        choice.names(),
        over or {},
        stored,
    ]
    return resolve(own, layers, [word for word in words if not is_name_word(word)])


def played_settings(name: str, words: Sequence[str]) -> "type[RecipeSettings]":
    """Return the settings type of a method with the keys of the environment and data set in ``words``."""
    from coterie.environments.registry import played_type, with_file

    return played_type(settings_type(name), played_choice(name, with_file(words), {}))


def played_choice(name: str, words: Sequence[str], stored: Mapping[str, Any]) -> "Choice":
    """Return the environment and data set of a method: from ``words``, else ``stored``, else its default."""
    from coterie.environments.registry import Choice

    stored_choice, choice = Choice.of(stored), Choice.among(words)
    if choice.environment is None and choice.dataset in _presets(name).values:
        choice = Choice(choice.dataset, _own(name).environment)
    if stored_choice.environment is None:
        stored_choice = _default(name) if choice == Choice() else Choice()
    return choice.over(stored_choice, settings_type(name).questions)


def _declared(base: "type[RecipeSettings]", choice: "Choice") -> dict[str, Any]:
    default = base.model_fields["environment"].default
    same = default.name is not None and default.name == choice.environment
    return {"environment": default.model_dump()} if same else {}


def _values(name: str, choice: "Choice") -> dict[str, Any]:
    """Return the preset values for a choice; plug-ins get the common values."""
    from coterie.environments.registry import NAMES

    presets, dataset = _presets(name), choice.dataset or choice.environment or ""
    closed = bool(presets.values) and not presets.open
    if dataset in presets.values or (closed and dataset in NAMES):
        return _packaged(presets, dataset, name)
    return dict(presets.common)


def _of_run(word: str) -> str:
    from coterie.config.folders import expanded

    key, _, text = word.partition("=")
    if key != "model" or not (expanded(text) / "config.yaml").is_file():
        return word
    from coterie.recipes.last_policy import last_policy

    return f"model={last_policy(expanded(text))}"


def _methods(description: RecipeDescription) -> "dict[str, type[RecipeSettings]]":
    return {settings.recipe: settings for settings in description.settings()}


def _presets(name: str) -> "Presets":
    return _presets_of(described(name), name.rpartition("/")[2])


def _presets_of(description: RecipeDescription, file: str) -> "Presets":
    from coterie.recipes.settings import NONE, read_presets

    if not description.package:
        return NONE
    table = resources.files(description.package) / "presets" / f"{file}.yaml"
    return read_presets(table) if table.is_file() else NONE


def _packaged(presets: "Presets", dataset: str, who: str) -> dict[str, Any]:
    known = list(presets.values)
    if dataset not in known:
        raise UserError(
            f"{who} has no preset for {dataset}",
            f"{did_you_mean(dataset, known)}use one of: {', '.join(known)}",
        )
    return presets.of(dataset)
