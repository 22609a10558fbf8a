"""Base of text games that child processes play, since their packages are not thread-safe.

A session is a list of commands and replies. Copies of these games are slow or impossible, so branches are replayed.
"""

import asyncio
import itertools
import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.engines.protocol import EngineError
from coterie.environments.acting import SOLVED, Acting, observation
from coterie.environments.protocol import Replayed, Shared, State, Transition
from coterie.environments.settings import package_version
from coterie.record.tree import Ending, Task
from coterie.tools.line_process import LineProcess

SECONDS = 120.0
"""Timeout of a command, which may include the making of a game and a replay."""
LOST = Ending("lost")
"""The task can't be done any more, for example because an object of it was eaten."""

_numbers = itertools.count()


def workers(program: str, package: str) -> tuple[LineProcess, ...]:
    """Return child processes for a package, one for each core up to eight, which start when they get a game."""
    path = Path(__file__).with_name(program)
    return tuple(LineProcess(path, package) for _ in range(min(8, len(os.sched_getaffinity(0)))))


class GameLost(EngineError):
    """A game can't continue; only its own branch fails."""


@dataclass(eq=False, slots=True)
class Game(Replayed):
    """A game in play, the session of a branch.

    Its process may have died or closed it for another session. Then the game is played again there.
    """

    game: dict[str, Any]
    """The fields of the game that its process needs to start it, with a ``path``."""
    workers: Sequence[LineProcess]
    number: int = field(default_factory=lambda: next(_numbers))
    commands: list[str] = field(default_factory=list)
    replies: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, *command: str) -> dict[str, Any]:
        """Return the reply to a command; without one, to the beginning. Raises :class:`GameLost`."""
        commands = [*self.commands, *command]
        # Sessions are spread over the processes, and a session stays with its process.
        process = self.workers[self.number % len(self.workers)]
        request = {"session": self.number, "game": self.game, "commands": commands}
        answer = process.ask(request, SECONDS)
        if answer is None:
            raise GameLost(
                f"the process of a game ended, or needed more than {SECONDS:g} seconds for a command"
            )
        if "error" in answer:
            raise GameLost(f"{process.needs} failed with {answer['error']} ({self.game['path']})")
        # After a restart of the game all replies come again and must equal the recorded ones.
        *earlier, reply = answer["replies"]
        if earlier and earlier != self.replies:
            raise GameLost("a game that was played again did not repeat its recorded replies")
        self.commands, self.replies = commands, [*self.replies, reply]
        return self.replies[-1]


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of commands carried out, and of commands (or tasks) left to win."""

    steps: int
    left: int


class TextGames(Acting):
    """Games of a package, which the extra of the same name installs."""

    package: str
    has_answers = False

    def __init__(self, steps: int, admissible: bool) -> None:
        super().__init__(steps)
        self.admissible = admissible
        self.installed = package_version(self.name, self.package)
        self.version = f"1/{self.package} {self.installed}"

    @abstractmethod
    def game(self, task: Task) -> Game: ...

    @abstractmethod
    def expert(self, task: Task) -> list[str]:
        """Return the messages of a solution, for :func:`coterie.demonstrate`."""

    @abstractmethod
    def refusal(self, action: str, reply: dict[str, Any]) -> str:
        """Return what to say after a command that is not possible."""

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Game]:
        return nullcontext(self.game(task))

    async def begin(self, task: Task, session: Game) -> Transition:
        reply = await asyncio.to_thread(session.ask)
        return Transition(Progress(0, reply["left"]), observation(self.text(reply)))

    async def do(self, state: State, action: str, session: Game) -> Transition:
        progress, action = progress_of(state), " ".join(action.split())
        reply = await asyncio.to_thread(session.ask, action)
        # A command that is not possible changes nothing and is not counted.
        if not reply["known"]:
            return Transition(progress, observation(self.refusal(action, reply)))
        end = {"won": SOLVED, "lost": LOST}.get(reply["end"])
        next_progress = Progress(progress.steps + 1, reply["left"])
        return Transition(next_progress, () if end else observation(self.text(reply)), end=end)

    def text(self, reply: dict[str, Any]) -> str:
        commands = f" Possible actions: {', '.join(reply['commands'])}."
        return reply["text"] + commands * self.admissible


def progress_of(state: State) -> Progress:
    assert isinstance(state.data, Progress)
    return state.data
