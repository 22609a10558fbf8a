"""``coterie config``: the keys of a recipe, what they mean, and what values a run would have."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from coterie.cli.run import RecipeName
from coterie.config.plugins import label
from coterie.errors import UserError
from coterie.terminal import once, results

if TYPE_CHECKING:
    from coterie.config.resolve import SettingsKey
    from coterie.config.settings import Settings
    from coterie.recipes.settings import RecipeSettings


def config(
    recipe: RecipeName = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY|KEY=VALUE]...",
            help="Only these keys, groups, or keys with this in their name; settings to change.",
            callback=once,
        ),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only keys whose value is not the default.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--config", help="A YAML file of settings, as of coterie run.")
    ] = None,
) -> None:
    """List the keys of a recipe: value, default, meaning, and where the value comes from.

    Examples:

        coterie config optima/isft

        coterie config optima/isft rollout

        coterie config optima/isft learning_rate

        coterie config optima/isft dataset=gsm8k --changed

        coterie config --config runs/optima-isft/config.yaml --changed
    """
    from coterie.cli.given import given

    words = words or []
    asked = [word for word in words if "=" not in word]
    if recipe is not None and file is not None and "/" not in recipe and "=" not in recipe:
        asked, recipe = [recipe, *asked], None  # the recipe is the file's
    own = given(recipe, [word for word in words if "=" in word], file).over()
    results().print(config_list(own, asked, changed=changed))


def config_list(
    own: "RecipeSettings", asked: Sequence[str] = (), *, changed: bool = False
) -> Group:
    """The keys of a recipe with the values that a run would have, to be read in a terminal.

    ``asked`` names keys, groups or parts of their names; ``changed`` leaves out what has its default.
    Raises :class:`UserError` for a name that no key has.
    """
    from coterie.config.resolve import keys

    known = {key.path: key for key in keys(type(own))}
    chosen = _asked(asked, known) if asked else list(known)
    if changed:
        chosen = [path for path in chosen if _shown(_value(own, path)) != known[path].default]
    shown = [_entry(known[path], _shown(_value(own, path))) for path in chosen]
    heading = (
        f"{label(own.recipe)}: {len(chosen)} of {len(known)} keys"
        + ", those not at their default" * changed
    )
    return Group(Text(heading, "bold"), *shown)


def _asked(asked: Sequence[str], known: Mapping[str, "SettingsKey"]) -> list[str]:
    """The keys that are meant: those of that name or in that group, or else with it in their name."""
    from coterie.config.resolve import nearest_key

    found: set[str] = set()
    for name in asked:
        exact = {path for path in known if path == name or path.startswith(f"{name}.")}
        parts = exact or {path for path in known if name.lower() in path}
        if not parts:
            near = nearest_key(name, known)
            todo = f"did you mean {near!r}?" if near else "leave it out to see all keys"
            raise UserError(f"no key has {name!r} in its name", todo)
        found |= parts
    return [path for path in known if path in found]


def _entry(key: "SettingsKey", value: str) -> Group:
    first = Text.assemble((key.path, "bold"), " = ", (value, "cyan"))
    if value != key.default:
        first.append(f"   (default: {key.default})", "dim")
    below = key.meaning + (f" Source: {key.source}." if key.source else "")
    return Group(first, Padding(Text(below), (0, 0, 0, 4)))


def _value(own: "Settings", path: str) -> object:
    value = own.model_dump(mode="json")
    for name in path.split("."):
        value = value[name]
    return value


def _shown(value: object) -> str:
    if isinstance(value, list):
        return str(tuple(value))
    return "none" if value is None else str(value)
