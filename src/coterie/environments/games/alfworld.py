"""ALFWorld: household tasks as text games, such as putting a clean mug on a desk.

The package ``alfworld`` (extra ``alfworld``) plays games from a folder, where its own ``alfworld-download`` puts them::

    train/pick_and_place_simple-Mug-None-Desk-308/trial_T20190908_.../game.tw-pddl
    valid_seen/, valid_unseen/                                        in rooms that are also in train/, in others
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from coterie.config.folders import expanded
from coterie.config.settings import OptionalPath, key
from coterie.datasets.catalogue import Split
from coterie.environments.acting import SOLVED, ActingSettings, write_action
from coterie.environments.games.text_games import Game, TextGames, progress_of, workers
from coterie.environments.protocol import SUCCESS_OF, Grade, State
from coterie.environments.settings import draw_rows
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.record.turn import digest

TaskType = Literal["put", "clean", "heat", "cool", "examine", "puttwo"]
TYPES: dict[str, TaskType] = {
    "pick_and_place_simple": "put",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "look_at_obj_in_light": "examine",
    "pick_two_obj_and_place": "puttwo",
}
"""Types of tasks by their names in ALFRED."""
RELEASE = "json_2.1.1"
"""Subfolder of the download that has the splits."""
UNSUPPORTED = ("movable", "Sliced")
"""Parts of names of games that ALFWorld leaves out."""
DOWNLOAD = "run alfworld-download, or set environment.folder to the folder of its splits"
RULES = (
    "You are in a room with places (such as fridge 1) and things (such as mug 2). You are told a household task: do it "
    "step by step.\n"
    "Actions: go to X, open X, close X, take X from Y, move X to Y, clean X with Y, heat X with Y, cool X with Y, "
    "use X, examine X, look, inventory. Name places and things with their numbers, as they are shown.\n"
    "You can hold one thing. Hold what you clean, heat or cool, and go to a sinkbasin, microwave or fridge for it.\n"
)
COMMANDS = (
    "go to {}", "open {}", "close {}", "take {} from {}", "move {} to {}", "clean {} with {}", "heat {} with {}",
    "cool {} with {}", "use {}", "examine {}", "look", "inventory",
)  # fmt: skip
NOTHING = (
    "Nothing happens: `{}` is not possible now. You reach only what is at your place, see into a closed place only "
    "after opening it, and use names with their numbers."
)

_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true')
_WORKERS = workers("alfworld_worker.py", "alfworld")


class GameFile(NamedTuple):
    """A game in a folder."""

    id: str
    """Path in the folder of the splits."""
    type: TaskType
    content: str
    """Hash of the file, by which a game that is in two splits is noticed."""


@cache
def games(folder: Path, split: str) -> tuple[GameFile, ...]:
    """Return the solvable games of a split, in an order that mixes the types."""
    playable = []
    for file in (folder / split).rglob("*.tw-pddl"):
        id_, content = file.relative_to(folder).as_posix(), file.read_bytes()
        # A search in the bytes is enough, and faster than parsing the JSON of thousands of games.
        if _SOLVABLE.search(content) and not any(type_ in id_ for type_ in UNSUPPORTED):
            playable.append(GameFile(id_, _type(file), hashlib.sha256(content).hexdigest()))
    return tuple(sorted(playable, key=lambda game: digest(game.id)))


def _type(file: Path) -> TaskType:
    """Return the type of a game's task: from its path, else from ``traj_data.json`` beside it."""
    # The innermost folder that names a type counts.
    names = [part.partition("-")[0] for part in file.parts[::-1]]
    if (about := file.with_name("traj_data.json")).exists():
        names.append(json.loads(about.read_bytes()).get("task_type", ""))
    for name in names:
        if name in TYPES:
            return TYPES[name]
    raise UserError(
        f"{file} has no task type of ALFWorld in its path, and no traj_data.json with one",
        f"name its folder TYPE-..., with TYPE one of {', '.join(TYPES)}",
    )


class ALFWorldSettings(ActingSettings):
    """Settings of ALFWorld."""

    folder: OptionalPath = key(
        None,
        f"Folder with train, valid_seen and valid_unseen, or with {RELEASE}. The default is where `alfworld-download` "
        "puts the games: the environment variable ALFWORLD_DATA, or ~/.cache/alfworld.",
    )
    types: tuple[TaskType, ...] = key(
        get_args(TaskType), f"Types of tasks: {', '.join(get_args(TaskType))}."
    )
    heldout: Literal["valid_unseen", "valid_seen"] = key(
        "valid_unseen",
        "Split of the held-out games: in new rooms, or in rooms of the training games.",
    )
    admissible: bool = key(False, "List the possible commands in each observation.")

    @property
    def place(self) -> Path:
        default = os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
        folder = expanded(self.folder or default).absolute()
        # The download puts the splits into a subfolder.
        return folder / RELEASE if (folder / RELEASE).is_dir() else folder

    def identity(self) -> str:
        """Hash the names and contents of the games, not the path of their folder."""
        settings = self.model_dump_json(exclude={"name", "folder"})
        return digest(settings, *(games(self.place, split) for split in ("train", self.heldout)))


class ALFWorld(TextGames):
    """Games of some types."""

    name = "alfworld"
    package = "alfworld"
    settings_type = ALFWorldSettings

    def __init__(self, settings: ALFWorldSettings | None = None) -> None:
        self.settings = settings or ALFWorldSettings()
        super().__init__(self.settings.steps, self.settings.admissible)
        self.folder = self.settings.place

    def games(self, split: Split) -> list[GameFile]:
        """Return the games of a split. Raises ``UserError`` if the split has no games."""
        part, types = ("train" if split == "train" else self.settings.heldout), self.settings.types
        if not (self.folder / part).is_dir():
            raise UserError(
                f"there is no folder {self.folder / part} of ALFWorld's games", DOWNLOAD
            )
        every = games(self.folder, part)
        if not every:
            raise UserError(f"{self.folder / part} has no solvable games (*.tw-pddl)", DOWNLOAD)
        chosen = [game for game in every if game.type in types]
        if not chosen:
            type_names = ", ".join(dict.fromkeys(game.type for game in every))
            raise UserError(
                f"{self.folder / part} has no games of the types {', '.join(types)}",
                f"set environment.types to some of {type_names}",
            )
        return chosen

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        chosen = draw_rows(self.games(split), split, count, seed, previous_counts)
        return [Task(game.id, {"type": game.type, "file": game.content}) for game in chosen]

    def game(self, task: Task) -> Game:
        return Game({"path": str(self.folder / task.id)}, _WORKERS)

    def expert(self, task: Task) -> list[str]:
        """Return the messages of the plan in the game's file, for :func:`coterie.demonstrate`."""
        plan = json.loads((self.folder / task.id).read_bytes()).get("walkthrough")
        if not plan:
            raise UserError(f"the game {task.id} has no walkthrough", DOWNLOAD)
        return [*map(write_action, plan)]

    def system_prompt(self, task: Task) -> str:
        return RULES + self.form.action_instructions

    def commands(self, task: Task) -> Sequence[str]:
        return COMMANDS

    def refusal(self, action: str, reply: dict[str, Any]) -> str:
        return self.text({**reply, "text": NOTHING.format(action)})

    async def grade(self, state: State, session: Game) -> Grade:
        """Score 1 if the task is done. The mean of ``success/TYPE`` over the types is ALFWorld's usual average."""
        success = float(state.end == SOLVED)
        type_metric = f"{SUCCESS_OF}{state.task.public['type']}"
        return Grade(success, {"steps": progress_of(state).steps, type_metric: success})
