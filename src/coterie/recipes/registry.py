"""Registry of recipes: their methods, presets and resolved settings, and recipes from plug-ins.

Every command imports this module, including ``coterie --help``, so heavy imports are inside functions.

A method (``optima/isft``) is played on a *choice*: a data set, an environment, or both
(:class:`~coterie.environments.registry.Choice`). :func:`played_choice` finds it, and :func:`settings` then puts layers
of values over each other. A preset is the layer that a method has for a data set or its micro-world.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any

from coterie.config.plugins import OWN, Kind, find, installed, is_spec
from coterie.errors import UserError, did_you_mean, nearest

if TYPE_CHECKING:
    from coterie.environments.registry import Choice
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import Presets, RecipeSettings


@dataclass(frozen=True, slots=True)
class RecipeDescription:
    """Registry entry of a recipe, built in or an entry point of ``coterie.recipes``."""

    name: str
    """Name of the recipe. Methods are called ``name`` or ``name/method``."""
    package: str
    """Package with the file ``presets/METHOD.yaml`` of each method; empty without presets."""
    settings: "Callable[[], tuple[type[RecipeSettings], ...]]"
    """Settings of the methods, in the order of the list."""
    recipe: "Callable[[RecipeSettings], Recipe]"


def _built_in(name: str, recipe: str, module: str = "") -> RecipeDescription:
    """Return the entry of a recipe, whose module and module of settings are imported on first use."""
    module_path = f"coterie.recipes.{module or name}"

    def methods() -> "tuple[type[RecipeSettings], ...]":
        every = import_module(f"{module_path}_settings").METHODS
        return tuple(method for method in every if method.recipe.partition("/")[0] == name)

    def make(settings: "RecipeSettings") -> "Recipe":
        made_recipe: Recipe = getattr(import_module(module_path), recipe)(settings)
        return made_recipe

    return RecipeDescription(name, "coterie.recipes", methods, make)


BUILT_IN = (
    _built_in("dense_tree", "DenseTree"),
    _built_in("dpo", "DPOOnFile", "file_training"),
    _built_in("gap", "Gap"),
    _built_in("gateway_record", "GatewayRecord"),
    _built_in("moat", "Moat"),
    _built_in("optima", "Optima"),
    _built_in("rl", "Reinforce"),
    _built_in("sft", "SFTOnFile", "file_training"),
    _built_in("sweet_rl", "SweetRL"),
)
# All names lead to the same table, in which `described` looks up the entry.
RECIPES = Kind(
    "recipe", dict.fromkeys((description.name for description in BUILT_IN), f"{__name__}:BUILT_IN")
)
QUICKSTART = "optima/isft"
"""Method of ``coterie quickstart``; ``presets/optima/quickstart.yaml`` has its sizes."""


def described(name: str) -> RecipeDescription:
    """Return the description of the recipe with a method. Raises :class:`UserError` for an unknown method."""
    if is_spec(name):
        return plugin(name)
    recipe = name.partition("/")[0]
    description = next((built_in for built_in in BUILT_IN if built_in.name == recipe), None)
    # `plugin` raises an error if an installed package reuses a built-in name.
    if recipe in installed(RECIPES):
        description = plugin(recipe)
    if description is None or name not in _methods(description):
        recipe_names = (*names(), *installed(RECIPES))
        near = nearest(name, recipe_names, cutoff=0.3)
        hint = f"did you mean {near!r}? " if near else ""
        raise UserError(
            f"no recipe is called {name!r}", f"{hint}there is: {', '.join(recipe_names)}; {OWN}"
        )
    return description


@cache
def plugin(name: str) -> RecipeDescription:
    """Return the description of a plug-in, or make one for its class.

    Raises ``UserError`` for an object that is not a recipe, and for a recipe with missing methods.
    """
    located = find(RECIPES, name)
    if isinstance(located.thing, RecipeDescription):
        if is_spec(name):
            raise UserError(
                f"{located} is a description, which has several methods",
                "name the class of a recipe, or register the description as an entry point of coterie.recipes",
            )
        return located.thing
    from coterie.config.plugins import settings_type_of
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings, methods

    if not (isinstance(located.thing, type) and issubclass(located.thing, Recipe)):
        raise UserError(
            f"{located} is not a recipe",
            "derive a class from coterie.recipes.Recipe, or give a RecipeDescription",
        )
    if missing := sorted(located.thing.__abstractmethods__):
        raise UserError(f"{located} has no {', '.join(missing)}", "define it")
    # A property instead of a method would only fail where the method is called.
    for name, method in vars(Recipe).items():
        override = inspect.getattr_static(located.thing, name)
        if inspect.isfunction(method) and not callable(getattr(override, "__func__", override)):
            kind = type(override).__name__
            problem = f"{located} defines {name}, a method of recipes, as a {kind}"
            parameters = ", ".join(inspect.signature(method).parameters)
            raise UserError(problem, f"make it a method: `def {name}({parameters})`")
    base = settings_type_of(located, RecipeSettings)
    # A class is a recipe with a single method, which has its name.
    plugin_methods = methods(base, (located.name, base.__doc__ or ""))
    return RecipeDescription(located.name, "", lambda: plugin_methods, located.thing)


def names() -> tuple[str, ...]:
    """Return the names of all built-in methods."""
    return tuple(method for description in BUILT_IN for method in _methods(description))


def settings_type(name: str) -> "type[RecipeSettings]":
    """Return the settings type of a method, without the keys of an environment or data set."""
    return _methods(described(name))[name]


def recipe(settings: "RecipeSettings") -> "Recipe":
    """Make the recipe of a method with these settings."""
    return described(settings.recipe).recipe(settings)


def _default(name: str) -> "Choice":
    """Return the default environment or data set: from the settings, else the first preset."""
    from coterie.environments.registry import Choice, is_micro_world

    choice = _declared_choice(name)
    if choice == Choice() and (benchmark := played_by(name)):
        default = benchmark[0]
        choice = Choice(None, default) if is_micro_world(default) else Choice(default)
    if choice == Choice():
        raise UserError(
            f"{name} has no default environment or data set", "add environment=NAME or dataset=NAME"
        )
    return choice.with_defaults(Choice(), settings_type(name).questions)


def _declared_choice(name: str) -> "Choice":
    """Return the data set and environment that the settings of a method have as defaults; often neither."""
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
    return _packaged(_presets(QUICKSTART, "optima/quickstart"), dataset, "a quickstart")


def settings(
    name: str,
    overrides: Sequence[str] = (),
    stored: Mapping[str, Any] | None = None,
    *,
    over: Mapping[str, Any] | None = None,
) -> "RecipeSettings":
    """Resolve the settings of a method.

    Args:
        name: Method.
        overrides: ``key=value`` arguments, which override all else. ``model=RUN`` is the last policy of a run folder,
            ``model=RUN@STEP`` the one after a step of reinforcement learning.
        stored: Values of a run folder, which override ``with_defaults``.
        over: Values that override the preset.
    """
    from coterie.config.resolve import resolve
    from coterie.environments.registry import Choice, is_task_pair, task_settings_type, with_file

    stored = stored or {}
    overrides = [
        f"model={policy_of(pair.removeprefix('model='))}" if pair.startswith("model=") else pair
        for pair in with_file(overrides)
    ]
    choice = played_choice(name, overrides, stored)
    if Choice.of(stored) not in (Choice(), choice):
        stored = {}  # values for another data set must not override this preset
    base = settings_type(name)
    method_settings_type = task_settings_type(base, choice)
    # Each layer overrides those before it.
    layers = [
        choice.values(),  # what the data set implies for its environment and tools
        _declared(base, choice),
        _values(name, choice),  # the preset
        choice.names(),  # after the preset, which may name another environment
        over or {},
        stored,
    ]
    keys = [pair for pair in overrides if not is_task_pair(pair)]
    return resolve(method_settings_type, layers, keys)


def preset_values(name: str, stored: Mapping[str, Any]) -> dict[str, object] | None:
    """Return the flat settings of a preset for the data set and environment of stored settings.

    Returns ``None`` if its file or plug-in is missing.
    """
    from coterie.config.resolve import flatten
    from coterie.environments.registry import Choice

    choice = Choice.of(stored)
    names = (("dataset", choice.dataset), ("environment", choice.environment))
    overrides = [f"{group}={name}" for group, name in names if name]
    if source := (stored.get("dataset") or {}).get("source"):
        overrides.append(f"dataset.source={source}")
    try:
        return flatten(settings(name, overrides).model_dump(mode="json"))
    except UserError:
        return None


def played_settings(name: str, overrides: Sequence[str]) -> "type[RecipeSettings]":
    """Return the settings type of a method with the keys of the environment and data set in ``overrides``."""
    from coterie.environments.registry import task_settings_type, with_file

    return task_settings_type(settings_type(name), played_choice(name, with_file(overrides), {}))


def played_choice(name: str, overrides: Sequence[str], stored: Mapping[str, Any]) -> "Choice":
    """Return the environment and data set of a method: from ``overrides``, else ``stored``, else its default."""
    from coterie.environments.registry import Choice

    stored_choice, choice = Choice.of(stored), Choice.among(overrides)
    # A data set with a preset is played in the method's own environment.
    if choice.environment is None and choice.dataset in _presets(name).values:
        choice = Choice(choice.dataset, _declared_choice(name).environment)
    # Without a stored choice, and without one in the overrides, the default applies.
    if stored_choice.environment is None:
        stored_choice = _default(name) if choice == Choice() else Choice()
    return choice.with_defaults(stored_choice, settings_type(name).questions)


def _declared(base: "type[RecipeSettings]", choice: "Choice") -> dict[str, Any]:
    """Return the values that the groups of a method declare, such as ``TrainingSettings(max_length=512)``."""
    default = base.model_fields["environment"].default
    same = default.name is not None and default.name == choice.environment
    declared = {
        name: field.default.model_dump(exclude_unset=True)
        for name, field in base.model_fields.items()
        if hasattr(field.default, "model_dump") and name not in ("dataset", "environment")
    }
    return {**declared, **({"environment": default.model_dump()} if same else {})}


def _values(name: str, choice: "Choice") -> dict[str, Any]:
    """Return the preset values for a choice; plug-ins get the common values."""
    from coterie.environments.registry import PACKAGED

    presets, dataset = _presets(name), choice.dataset or choice.environment or ""
    # A method with a closed list refuses built-in data sets without a preset; plug-ins get the common values.
    closed = bool(presets.values) and not presets.open
    if dataset in presets.values or (closed and dataset in PACKAGED):
        return _packaged(presets, dataset, name)
    return dict(presets.common)


def policy_of(text: str) -> str:
    """Return the last policy of ``RUN``, or that of ``RUN@STEP``, and other models as they are.

    Raises ``UserError`` if the policy is an adapter.
    """
    from coterie.runs.run import find_run

    if (run_and_step := find_run(text)) is None:
        return text
    from coterie.models.loading import is_adapter
    from coterie.recipes.base import stored_policy

    path = stored_policy(text)
    if is_adapter(path or text):
        folder, step = run_and_step
        merging = f"coterie export model {folder} --merge --out MERGED"
        merging += "" if step is None else f" --step {step}"
        problem = f"model={folder}: this policy of the run is a LoRA adapter, and a run needs a full model"
        raise UserError(problem, f"run `{merging}` and give model=MERGED")
    return str(path or text)


def _methods(description: RecipeDescription) -> "dict[str, type[RecipeSettings]]":
    """Return the settings types of a recipe by method."""
    return {settings.recipe: settings for settings in description.settings()}


def _presets(name: str, file: str = "") -> "Presets":
    return _read_presets(described(name).package, file or name)


@cache
def _read_presets(package: str, name: str) -> "Presets":
    from coterie.recipes.settings import NONE, read_presets

    if not package:
        return NONE
    table = resources.files(package) / "presets" / f"{name}.yaml"
    return read_presets(table) if table.is_file() else NONE


def _packaged(presets: "Presets", dataset: str, subject: str) -> dict[str, Any]:
    """Return the values for a data set. Raises ``UserError``, which names ``subject``, if it has no values."""
    from coterie.config.resolve import overlaid

    datasets = list(presets.values)
    if dataset not in datasets:
        problem = f"{subject} has no preset for {dataset}"
        raise UserError(
            problem, f"{did_you_mean(dataset, datasets)}use one of: {', '.join(datasets)}"
        )
    return overlaid(presets.values[dataset])
