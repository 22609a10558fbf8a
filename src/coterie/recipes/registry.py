"""Recipes by name: their settings, presets and reports."""

import difflib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import yaml

from coterie.config.resolve import resolve
from coterie.errors import UserError
from coterie.recipes.optima_settings import OptimaSettings

NAMES = ("optima/isft",)


def settings_type(name: str) -> type[OptimaSettings]:
    """The settings of a recipe; raises :class:`UserError` if there is no such recipe."""
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no recipe is called {name!r}", f"{hint}there is: {', '.join(NAMES)}")
    return OptimaSettings


def preset(name: str) -> dict[str, Any]:
    """The packaged values of a recipe."""
    settings_type(name)
    text = (resources.files("coterie.recipes") / "presets" / f"{name}.yaml").read_text()
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def settings(
    name: str, words: Iterable[str] = (), stored: Mapping[str, Any] | None = None
) -> OptimaSettings:
    """A recipe's preset, overlaid by a run folder's stored values and by ``key=value`` words."""
    return resolve(settings_type(name), [preset(name), stored or {}], words)
