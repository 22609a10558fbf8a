"""``coterie config``: keys of a recipe with their meaning and the values of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from coterie.config.plugins import label
from coterie.errors import UserError
from coterie.terminal import RecipeName, once, results

if TYPE_CHECKING:
    from coterie.config.resolve import SettingsKey
    from coterie.recipes.settings import RecipeSettings

MAIN_KEYS = (
    *("model", "dataset", "environment", "iterations", "steps.count", "rollout.tasks"),
    *("rollout.rollouts_per_task", "rollout.max_tokens", "train.learning_rate", "train.epochs"),
    *("train.batch_size", "rl.train.learning_rate", "loss.kl_coef", "evaluate.tasks", "seed"),
)
"""Keys that most runs change. The first ten of them that a recipe has are listed first."""
MAIN_COUNT = 10


def config(
    recipe: RecipeName = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY|KEY=VALUE]...",
            help="Keys, groups or parts of key names to list; settings to change.",
            callback=once,
        ),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="List only keys that differ from their default.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--config", help="YAML file of settings, as for `coterie run`.")
    ] = None,
) -> None:
    """List the keys of a recipe: value, default, meaning, and where the value comes from.

    The ten keys that most runs change come first.

    Examples:

        coterie config optima/isft rollout

        coterie config optima/isft dataset=gsm8k --changed

        coterie config --config runs/optima-isft/config.yaml --changed
    """
    from coterie.cli.arguments import read_arguments
    from coterie.recipes.registry import settings_type

    words = words or []
    # Arguments with a value change settings, all others select keys to list.
    values = [word for word in words if "=" in word or Path(word).is_file()]
    names = [word for word in words if word not in values]
    # With a file, the first argument is a key: `coterie config --config FILE rollout`.
    if recipe is not None and file is not None and "/" not in recipe and "=" not in recipe:
        names, recipe = [recipe, *names], None  # the file names the recipe
    arguments = read_arguments(recipe, values, file)
    try:
        settings = arguments.resolve()
    except UserError:
        if values or file:
            raise
        # The recipe needs a model, or an environment or data set: list its defaults.
        settings = settings_type(arguments.recipe).model_construct()
    results().print(_config_list(settings, names, changed))


def _config_list(settings: "RecipeSettings", names: Sequence[str], changed: bool) -> Group:
    """Format the values of keys, groups or parts of key names (default: all keys) for the terminal."""
    from coterie.config.resolve import keys

    by_path = {key.path: key for key in keys(type(settings))}
    paths = _matches(names, by_path) if names else list(by_path)
    dumped = settings.model_dump(mode="json")
    values = {path: _value(dumped, key) for path, key in by_path.items()}
    if changed:
        paths = [path for path in paths if values[path] != by_path[path].default]
    heading = f"{label(settings.recipe)}: {len(paths)} of {len(by_path)} keys"
    heading += " differ from their default" * changed
    entries = {path: _entry(by_path[path], values[path]) for path in paths}
    if names or changed:
        return Group(Text(heading, "bold"), *entries.values())
    # The key of a group is listed by its name, such as `dataset.name`.
    main = [path for key in MAIN_KEYS for path in (key, f"{key}.name") if path in entries]
    main_entries = [entries.pop(path) for path in main[:MAIN_COUNT]]
    other_keys = Text("\nAll other keys", "bold")
    return Group(Text(heading, "bold"), *main_entries, other_keys, *entries.values())


def _matches(names: Sequence[str], by_path: Mapping[str, "SettingsKey"]) -> list[str]:
    """Return the keys or group of each name, or else the keys that contain it."""
    from coterie.config.resolve import nearest_key

    matches: set[str] = set()
    for name in names:
        exact = {path for path in by_path if path == name or path.startswith(f"{name}.")}
        paths = exact or {path for path in by_path if name.lower() in path}
        if not paths:
            near = nearest_key(name, by_path)
            todo = f"did you mean {near!r}?" if near else "leave it out to see all keys"
            raise UserError(f"no key has {name!r} in its name", todo)
        matches |= paths
    # In the order of declaration, whatever the order of the arguments.
    return [path for path in by_path if path in matches]


def _entry(key: "SettingsKey", value: str) -> Group:
    title = Text.assemble((key.path, "bold"), " = ", (value, "cyan"))
    if value != key.default:
        title.append(f"   (default: {key.default})", "dim")
    below = key.meaning
    if key.source:
        below += f"{'' if below.endswith('.') else '.'} Source: {key.source}."
    return Group(title, Padding(Text(below), (0, 0, 0, 4)))


def _value(dumped: Mapping[str, Any], key: "SettingsKey") -> str:
    value: Any = dumped
    for name in key.path.split("."):
        if name not in value:
            return key.default  # a key that is needed
        value = value[name]
    if isinstance(value, list):
        return str(tuple(value))
    return "none" if value is None else str(value)
