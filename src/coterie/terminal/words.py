"""``key=value`` arguments of commands."""

from typing import Annotated

import typer

from coterie.errors import UserError


def once(words: list[str] | None) -> list[str] | None:
    """Raise ``UserError`` for a duplicate key. ``user_simulator=`` and ``user_simulator.model=`` are the same key."""
    by_key: dict[str, str] = {}
    for word in words or []:
        key = word.partition("=")[0]
        before = by_key.setdefault(key.removesuffix(".model"), word)
        if before is not word:
            raise UserError(f"{key} is given twice: {before} and {word}", "remove one of them")
    return words


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.", callback=once),
]
