"""Games in play in a child process, for ``environments.games.text_games``."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, Protocol

from coterie.tools.line_process import serve

MEMORY = 4 * 2**30
"""Bytes of address space."""
MOST_GAMES = 64
"""Number of games in play. The least recently used one is closed, and replayed if its session continues."""


class Play(Protocol):
    """One game in play.

    A reply has the ``text``, the possible ``commands``, the number of commands ``left`` to win, the ``end`` (``won``,
    ``lost`` or empty), and if the command is ``known``.
    """

    commands: int
    """Number of commands so far."""

    def beginning(self) -> dict[str, Any]: ...

    def do(self, command: str) -> dict[str, Any]:
        """Carry out a command, in any case."""

    def close(self) -> None: ...


class Games:
    """Games in play by session."""

    def __init__(self, start: Callable[..., Play]) -> None:
        self.start = start
        """Function of the fields of a game."""
        self.plays = OrderedDict[int, Play]()

    def play(self, session: int, game: dict[str, Any], commands: list[str]) -> list[dict[str, Any]]:
        """Return the reply to the last command of a session, or all replies after a start."""
        current = self.plays.pop(session, None)
        # The usual case: the game is in play, and only the last command is new.
        if current is not None and current.commands == len(commands) - 1:
            replies = [current.do(commands[-1])]
        else:
            # A new process, a closed game or another branch: play all commands from the beginning.
            if current is not None:
                current.close()
            current = self.start(**game)
            replies = [current.beginning(), *map(current.do, commands)]
        self.plays[session] = current
        if len(self.plays) > MOST_GAMES:
            self.plays.popitem(last=False)[1].close()
        return replies

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            # Standard output carries the replies, so the package must not print there.
            with redirect_stdout(sys.stderr):
                return {"replies": self.play(**request)}
        except Exception as error:  # of one game, from anywhere in the package
            return {"error": f"{type(error).__name__}: {error}"[:300]}


def serve_games(start: Callable[..., Play]) -> None:
    """Play games that ``start`` returns by the fields of a game, until standard input ends."""
    serve(Games(start).answer, MEMORY)
