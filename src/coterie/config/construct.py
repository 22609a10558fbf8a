"""Plug-ins that are classes: the settings that they name, and one of them under its settings."""

import inspect
from typing import Any, TypeVar

from coterie.config.plugins import Found, guarded
from coterie.config.settings import Settings
from coterie.errors import UserError

S = TypeVar("S", bound=Settings)


def settings_type_of(found: Found, base: type[S]) -> type[S]:
    """The settings that a class names as its ``settings_type``; ``base`` if it names none.

    Raises ``UserError`` for what is not a class, and for settings that are not a subclass of ``base``.
    """
    if not isinstance(found.thing, type):
        raise UserError(f"{found} is not a class", "give the name of a class")
    own = getattr(found.thing, "settings_type", base)
    if not (isinstance(own, type) and issubclass(own, base)):
        raise UserError(
            f"{found} has a settings_type that is not settings: {own!r}",
            f"derive it from {base.__module__}.{base.__name__}",
        )
    return own


def construct(found: Found, base: type[Settings], settings: Settings, *more: object) -> Any:
    """One of a class: made with its settings, if it names some, and with what else it is given.

    Raises ``UserError`` for a class that can't be made so.
    """
    named = settings_type_of(found, base) is not base
    given = (settings, *more) if named else more
    abstract = sorted(getattr(found.thing, "__abstractmethods__", ()))
    if abstract:
        raise UserError(f"{found} has no {', '.join(abstract)}", "add what is missing")
    try:
        inspect.signature(found.thing).bind(*given)
    except TypeError as error:
        names = ["settings"] * named + ["rows"] * len(more)
        raise UserError(
            f"{found} can't be made: {error}",
            f"write def __init__(self{''.join(f', {name}' for name in names)})",
        ) from error
    return guarded(f"{found} can't be made", lambda: found.thing(*given))
