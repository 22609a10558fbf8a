"""TextWorld: text games in which an agent follows a quest of a set number of commands in rooms with objects.

The package ``textworld`` (extra ``textworld``) makes a game from a seed, which decides its split. Games are saved in
coterie's home folder. They are played by child processes, since the package is not thread-safe. The package's copies
of a game cost as much as 20 to 50 commands, so branches are replayed.
"""

from collections.abc import Sequence
from typing import Any

from coterie.config.folders import home
from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.acting import SOLVED, ActingSettings, write_action
from coterie.environments.games.text_games import (
    LOST,
    Game,
    GameLost,
    TextGames,
    progress_of,
    workers,
)
from coterie.environments.protocol import Grade, State
from coterie.environments.settings import game_seeds
from coterie.errors import UserError
from coterie.record.tree import Task

RULES = (
    "You are in a world of rooms with objects. You are told a quest: do it step by step.\n"
    "Actions: go north (east, south, west), open X, close X, unlock X with Y, lock X with Y, take X, take X from Y, "
    "drop X, put X on Y, insert X into Y, eat X, examine X, look, inventory. Name objects as they are shown.\n"
)
COMMANDS = (
    "go {}", "open {}", "close {}", "unlock {} with {}", "lock {} with {}", "take {}", "take {} from {}", "drop {}",
    "put {} on {}", "insert {} into {}", "eat {}", "examine {}", "look", "inventory",
)  # fmt: skip

_WORKERS = workers("textworld_worker.py", "textworld")


class TextWorldSettings(ActingSettings):
    """Settings of TextWorld."""

    rooms: int = key(3, "Number of rooms.", ge=1, le=50)
    objects: int = key(6, "Number of objects; the quest may need more.", ge=1, le=50)
    quest_length: int = key(4, "Number of commands of the quest's solution.", ge=1, le=20)
    admissible: bool = key(False, "List the possible commands in each observation.")


class TextWorld(TextGames):
    """Games of one size."""

    name = "textworld"
    metric = "quest done"
    package = "textworld"
    settings_type = TextWorldSettings

    def __init__(self, settings: TextWorldSettings | None = None) -> None:
        self.settings = settings or TextWorldSettings()
        super().__init__(self.settings.steps, self.settings.admissible)
        s = self.settings
        self.size = {"rooms": s.rooms, "objects": s.objects, "length": s.quest_length}
        # Games of another size, or of another version of the package, get their own folder.
        self.folder = (
            home() / "textworld" / "-".join([self.installed, *map(str, self.size.values())])
        )

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        games = game_seeds(self.name, split, seed).draw(split, count, previous_counts)
        tasks = [Task(f"{split}-{seed}-{number}", {"seed": game}) for number, game in games]
        # The first game shows before the run whether games of this size can be made.
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
        fields = {"path": str(self.folder / f"{seed}.json"), "seed": seed, **self.size}
        return Game(fields, _WORKERS)

    def expert(self, task: Task) -> list[str]:
        """Return the messages of the game's own solution, for :func:`coterie.demonstrate`."""
        return [*map(write_action, self.game(task).ask()["walkthrough"])]

    def system_prompt(self, task: Task) -> str:
        return RULES + self.form.action_instructions

    def commands(self, task: Task) -> Sequence[str]:
        return COMMANDS

    def refusal(self, action: str, reply: dict[str, Any]) -> str:
        return f"You can't `{action}` now. {self.text(reply)}"

    async def grade(self, state: State, session: Game) -> Grade:
        """Score the share of the quest that is done: 1 if it is won, 0 if it is lost."""
        progress, length = progress_of(state), self.settings.quest_length
        # In a lost game the quest can't be done any more, so earlier steps count for nothing.
        steps_left = length if state.end == LOST else min(length, progress.left)
        success = float(state.end == SOLVED)
        return Grade(1 - steps_left / length, {"success": success, "steps": progress.steps})
