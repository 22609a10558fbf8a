"""TextWorld: text games in which an agent follows a quest of a set number of commands in rooms with objects.

The package ``textworld`` (extra ``textworld``) makes a game from a seed, which decides its split. Games are saved in
coterie's home folder. They are played by child processes, since the package is not thread-safe. The package's copies
of a game cost as much as 20 to 50 commands, so branches are replayed.
"""

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from coterie.config.folders import home
from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.engines.protocol import EngineError
from coterie.environments.acting import SOLVED, Acting, ActingSettings, saying, write_action
from coterie.environments.protocol import Grade, Shared, State, Transition
from coterie.environments.settings import MicroSplit, distinct, series, split_random
from coterie.errors import UserError
from coterie.record.tree import Ending, Task
from coterie.tools.line_process import LineProcess

SEEDS = 2**31
SECONDS = 120.0
"""Timeout of a command, which may include the making of a game and a replay."""
LOST = Ending("lost")
"""The quest can't be done any more, for example because an object of it was eaten."""
RULES = (
    "You are in a world of rooms with objects. You are told a quest: do it step by step.\n"
    "Actions: go north (east, south, west), open X, close X, unlock X with Y, lock X with Y, take X, take X from Y, "
    "drop X, put X on Y, insert X into Y, eat X, examine X, look, inventory. Name objects as they are shown.\n"
)
COMMANDS = (
    "go {}", "open {}", "close {}", "unlock {} with {}", "lock {} with {}", "take {}", "take {} from {}", "drop {}",
    "put {} on {}", "insert {} into {}", "eat {}", "examine {}", "look", "inventory",
)  # fmt: skip
NO_ANSWERS = "Nothing is to be answered here: act until the quest is done."

_PROGRAM = Path(__file__).with_name("textworld_worker.py")
_WORKERS = tuple(
    LineProcess(_PROGRAM, "textworld") for _ in range(min(8, len(os.sched_getaffinity(0))))
)
_numbers = itertools.count()


@series
def seeds(split: MicroSplit, seed: int) -> Iterator[int]:
    """Yield the seeds of the games of a split. Splits share none, since a hash of the seed decides its split."""
    rng = split_random(split, f"textworld/{split}/{seed}")
    return distinct(split, lambda _: rng.randrange(SEEDS), str, str)


class TextWorldSettings(ActingSettings):
    """Settings of TextWorld."""

    rooms: int = key(3, "Number of rooms.", ge=1, le=50)
    objects: int = key(6, "Number of objects; the quest may need more.", ge=1, le=50)
    quest_length: int = key(4, "Number of commands of the quest's solution.", ge=1, le=20)
    admissible: bool = key(False, "List the possible commands in each observation.")


class GameLost(EngineError):
    """A game can't continue; only its own branch fails."""


@dataclass(eq=False, slots=True)
class Game:
    """A game in play, the session of a branch.

    Its process may have died or closed it for another session. Then the game is played again there.
    """

    game: dict[str, Any]
    number: int = field(default_factory=lambda: next(_numbers))
    commands: list[str] = field(default_factory=list)
    replies: list[dict[str, Any]] = field(default_factory=list)

    def fork(self) -> None:
        """Return None, so branches are replayed."""

    def ask(self, *command: str) -> dict[str, Any]:
        """Return the reply to a command; without one, to the beginning. Raises :class:`GameLost`."""
        commands = [*self.commands, *command]
        process = _WORKERS[self.number % len(_WORKERS)]
        request = {"session": self.number, "game": self.game, "commands": commands}
        answer = process.ask(request, SECONDS)
        if answer is None:
            raise GameLost(
                f"the process of a game ended, or needed more than {SECONDS:g} seconds for a command"
            )
        if "error" in answer:
            raise GameLost(f"TextWorld failed with {answer['error']} ({self.game['path']})")
        *earlier, last = answer["replies"]
        if earlier and earlier != self.replies:
            raise GameLost("a game that was played again did not repeat its recorded replies")
        self.commands, self.replies = commands, [*self.replies, last]
        return self.replies[-1]


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of commands carried out, and of commands left to win."""

    steps: int
    left: int


class TextWorld(Acting):
    """Games of one size."""

    name = "textworld"
    metric = "quest done"
    settings_type = TextWorldSettings
    has_answers = False

    def __init__(self, settings: TextWorldSettings | None = None) -> None:
        self.settings = settings or TextWorldSettings()
        super().__init__(self.settings.steps)
        try:
            installed = version("textworld")
        except PackageNotFoundError as error:
            raise UserError(
                "games of TextWorld need the package textworld", "pip install -e '.[textworld]'"
            ) from error
        self.version = f"1/textworld {installed}"
        s = self.settings
        self.size = {"rooms": s.rooms, "objects": s.objects, "length": s.quest_length}
        self.folder = home() / "textworld" / "-".join([installed, *map(str, self.size.values())])

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        start = sum(after) if split == "train" else 0
        games = seeds(split, seed)[start : start + count]
        tasks = [Task(f"{split}-{seed}-{start + n}", {"seed": one}) for n, one in enumerate(games)]
        if tasks and not self.folder.exists():
            self._check(tasks[0])
        return tasks

    def _check(self, task: Task) -> None:
        """Make a first game. Raises ``UserError`` if it can't be made."""
        try:
            self.game(task).ask()
        except GameLost as error:
            raise UserError(
                f"{error}", "change environment.rooms, objects or quest_length"
            ) from error

    def game(self, task: Task) -> Game:
        seed = int(str(task.public["seed"]))
        return Game({"path": str(self.folder / f"{seed}.json"), "seed": seed, **self.size})

    def expert(self, task: Task) -> list[str]:
        """Return the messages of the game's own solution, for :func:`coterie.demonstrate`."""
        return [*map(write_action, self.game(task).ask()["walkthrough"])]

    def system_prompt(self, task: Task) -> str:
        return RULES + self.form.action_instructions

    def commands(self, task: Task) -> Sequence[str]:
        return COMMANDS

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Game]:
        return nullcontext(self.game(task))

    async def begin(self, task: Task, live: Game) -> Transition:
        reply = await asyncio.to_thread(live.ask)
        return Transition(Progress(0, reply["left"]), saying(self._text(reply)))

    async def do(self, state: State, action: str, live: Game) -> Transition:
        progress, action = _progress(state), " ".join(action.split())
        reply = await asyncio.to_thread(live.ask, action)
        if not reply["known"]:
            return Transition(progress, saying(f"You can't `{action}` now. {self._text(reply)}"))
        end = {"won": SOLVED, "lost": LOST}.get(reply["end"])
        left = self.settings.quest_length if end == LOST else reply["left"]
        seen = () if end else saying(self._text(reply))
        return Transition(Progress(progress.steps + 1, left), seen, end=end)

    def _text(self, reply: dict[str, Any]) -> str:
        commands = f" Possible actions: {', '.join(reply['commands'])}."
        return reply["text"] + commands * self.settings.admissible

    async def on_answer(self, state: State, answer: str) -> Transition:
        return Transition(state.data, saying(NO_ANSWERS))

    async def grade(self, state: State, live: Game) -> Grade:
        """Score the share of the quest that is done: 1 if it is won, 0 if it is lost."""
        progress = _progress(state)
        share = 1 - min(1.0, progress.left / self.settings.quest_length)
        success = float(state.end == SOLVED)
        return Grade(share, {"success": success, "steps": progress.steps})


def _progress(state: State) -> Progress:
    assert isinstance(state.data, Progress)
    return state.data
