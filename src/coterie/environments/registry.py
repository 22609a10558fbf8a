"""Environments by name."""

from coterie.environments.dialogue import DialogueEnvironment
from coterie.environments.exchange.environment import Exchange
from coterie.errors import UserError

NAMES = ("exchange",)


def environment(name: str) -> DialogueEnvironment:
    """The environment called ``name``; raises :class:`UserError` if there is none."""
    if name == "exchange":
        return Exchange()
    raise UserError(f"environment={name!r} is not known", f"use one of: {', '.join(NAMES)}")
