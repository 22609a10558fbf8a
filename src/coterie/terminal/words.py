"""Settings as a person types them: ``key=value`` words, each key once."""

from typing import Annotated

import typer

from coterie.errors import UserError


def once(words: list[str] | None) -> list[str] | None:
    """Refuse a key that is given twice; ``user_simulator=`` and ``user_simulator.model=`` are one."""
    given: dict[str, str] = {}
    for word in words or []:
        key = word.partition("=")[0]
        before = given.setdefault(key.removesuffix(".model"), word)
        if before is not word:
            raise UserError(f"{key} is given twice: {before} and {word}", "leave one of them out")
    return words


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.", callback=once),
]
