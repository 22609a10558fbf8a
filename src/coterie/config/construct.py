"""Construct plug-in classes with their settings."""

import inspect
from typing import Any, TypeVar

from coterie.config.plugins import Plugin, guarded
from coterie.config.settings import Settings
from coterie.errors import UserError

S = TypeVar("S", bound=Settings)


def settings_type_of(plugin: Plugin, base: type[S]) -> type[S]:
    """Return the ``settings_type`` of a plug-in class; ``base`` by default.

    Raises ``UserError`` if the plug-in is not a class or its settings are not a subclass of ``base``.
    """
    if not isinstance(plugin.thing, type):
        raise UserError(f"{plugin} is not a class", "give the name of a class")
    own = getattr(plugin.thing, "settings_type", base)
    if not (isinstance(own, type) and issubclass(own, base)):
        raise UserError(
            f"{plugin} has a settings_type that is not settings: {own!r}",
            f"derive it from {base.__module__}.{base.__name__}",
        )
    return own


def construct(plugin: Plugin, base: type[Settings], settings: Settings, *more: object) -> Any:
    """Construct a plug-in class with its settings, if it declares any, and with ``more`` arguments.

    Raises ``UserError`` if the class is abstract or does not take these arguments.
    """
    has_settings = settings_type_of(plugin, base) is not base
    arguments = (settings, *more) if has_settings else more
    abstract = sorted(getattr(plugin.thing, "__abstractmethods__", ()))
    if abstract:
        raise UserError(f"{plugin} has no {', '.join(abstract)}", "define the missing methods")
    try:
        inspect.signature(plugin.thing).bind(*arguments)
    except TypeError as error:
        names = ["settings"] * has_settings + ["rows"] * len(more)
        raise UserError(
            f"{plugin} can't be made: {error}",
            f"write def __init__(self{''.join(f', {name}' for name in names)})",
        ) from error
    return guarded(f"{plugin} can't be made", lambda: plugin.thing(*arguments))
