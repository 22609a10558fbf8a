"""BabyAI in words: an agent in a grid of rooms carries out a mission, by moves in its text.

The levels are those of the package ``minigrid`` (extra ``babyai``), unchanged. The agent is told what is in its view of
7 x 7 places (``babyai_view``). The score is success within the limit of steps; the package's own reward, which is less
for more moves, is not used. A game can be copied, so branches fork.
"""

import copy
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.acting.environment import SOLVED, Acting, ActingSettings, saying
from coterie.environments.acting.syntax import CODE_ACT
from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key
from coterie.environments.protocol import Grade, Shared, State, Transition
from coterie.errors import UserError, did_you_mean
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending
from coterie.trajectories.turn import digest

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel


# The games of BabyAI's levels: the levels of the package ``minigrid`` by name, and the games of each split.
#
# What is disjoint between the splits is the *content* of a game: its grid, where the agent stands and looks, and its
# mission. A hash of it decides the split. Two seeds that give the same game give it to the same split, and it comes
# once there.

PREFIX = "BabyAI-"
SEEDS = 2**31
PATIENCE = 2000
"""So many draws in a row that give no new game of a split mean that its level has no more."""
NO_LIMIT = 1_000_000
"""The package's own limit of moves, which no game meets: coterie counts."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A game of a level."""

    seed: int
    mission: str


def package_version() -> str:
    """The version of ``minigrid``, which decides what games there are. Raises ``UserError`` if it is missing."""
    _package()
    return version("minigrid")


def check_level(name: str) -> None:
    """Raises ``UserError`` for a level that there is not, and if the package is missing."""
    known = _ids()
    if name not in known:
        raise UserError(
            f"there is no BabyAI level {name!r}",
            f"{did_you_mean(name, known)}known: {', '.join(sorted(known))}",
        )


def new_level(name: str) -> "RoomGridLevel":
    """A level, to be reset with the seed of a game."""
    made = _package().make(_ids()[name], max_steps=NO_LIMIT, disable_env_checker=True)
    return cast("RoomGridLevel", made.unwrapped)


def content_key(level: "RoomGridLevel") -> str:
    """What makes two games the same: the grid, where the agent stands and looks, and the mission."""
    stands = [*map(int, level.agent_pos), int(level.agent_dir)]
    return digest(level.grid.encode().tolist(), stands, level.mission)


def games(name: str, split: MicroSplit, seed: int, start: int, count: int) -> list[Draw]:
    """``count`` games of one split from the place ``start`` on, or fewer if the level has no more.

    Equal arguments give equal games, and a larger count extends a smaller one. What was drawn once is kept.
    """
    check_split(split)
    drawn, more = _drawn(name, split, seed)
    drawn += islice(more, max(start + count - len(drawn), 0))
    return drawn[start : start + count]


@cache
def _drawn(name: str, split: MicroSplit, seed: int) -> tuple[list[Draw], Iterator[Draw]]:
    return [], _draws(name, split, seed)


def _draws(name: str, split: MicroSplit, seed: int) -> Iterator[Draw]:
    rng = random.Random(f"babyai/{name}/{split}/{seed}")
    level, seen, missed = new_level(name), set[str](), 0
    while missed < PATIENCE:
        game = rng.randrange(SEEDS)
        level.reset(seed=game)
        key = content_key(level)
        missed += 1
        if split_of_key(key) == split and key not in seen:
            seen.add(key)
            missed = 0
            yield Draw(game, level.mission)


@cache
def _ids() -> MappingProxyType[str, str]:
    found = [name for name in _package().registry if name.startswith(PREFIX)]
    return MappingProxyType({one.removeprefix(PREFIX).rpartition("-v")[0]: one for one in found})


@cache
def _package() -> Any:
    """The package ``gymnasium``, in which ``minigrid`` has registered its levels; neither prints anything."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
        from minigrid.envs.babyai.core import roomgrid_level
    except ImportError as error:
        raise UserError(
            "BabyAI's levels need the package minigrid", "pip install -e '.[babyai]'"
        ) from error
    vars(roomgrid_level)["print"] = _keep_quiet  # it prints each layout that it rejects
    return gymnasium


def _keep_quiet(*_: object) -> None: ...


# What an agent of a BabyAI level sees, in words.
#
# Places are from where the agent stands and looks: ``2 ahead 1 left`` is two steps forward, then one to its left.
# The view is the package's ``image``: what lies at each of 7 x 7 places, the agent in the middle of the nearest row.

Cell = Sequence[int]
"""An object, a colour and a state, as numbers of the package."""
Image = Sequence[Sequence[Cell]]
"""Cells by column, from left to right, then by row; the agent is in the last row."""
WALL, DOOR = 2, 4
KINDS = {DOOR: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
"""Objects by the package's numbers; only doors have a state."""
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")


@dataclass(frozen=True, slots=True)
class Seen:
    """An object in view."""

    what: str
    """Such as ``red ball`` or ``closed blue door``."""
    ahead: int
    right: int
    """Steps; negative to the left."""

    @property
    def place(self) -> str:
        side = f"{abs(self.right)} {'right' if self.right > 0 else 'left'}"
        if not self.right:
            return f"{self.ahead} ahead"
        return f"{self.ahead} ahead {side}" if self.ahead else side

    def __str__(self) -> str:
        return f"{self.what} {self.place}"


@dataclass(frozen=True, slots=True)
class View:
    """Objects in view of the agent."""

    objects: tuple[Seen, ...]
    """The nearest first; of equally near ones the one less far ahead, then the one on the left."""
    walls: tuple[Seen, ...]
    """The first wall straight ahead, to the left and to the right, of those that can be seen."""
    carried: str | None = None

    def __str__(self) -> str:
        seen = "; ".join(map(str, (*self.objects, *self.walls))) or "nothing"
        return f"You see: {seen}. You carry {f'a {self.carried}' if self.carried else 'nothing'}."


def view_of(image: Image) -> View:
    middle, near = len(image) // 2, len(image[0]) - 1
    objects = [
        Seen(_name(cell), near - row, column - middle)
        for column, cells in enumerate(image)
        for row, cell in enumerate(cells)
        if cell[0] in KINDS and (column, row) != (middle, near)
    ]
    objects.sort(key=lambda one: (one.ahead + abs(one.right), one.ahead, one.right))
    own = image[middle][near]
    return View(tuple(objects), tuple(_walls(image)), _name(own) if own[0] in KINDS else None)


def _walls(image: Image) -> Iterator[Seen]:
    middle, near = len(image) // 2, len(image[0]) - 1
    for ahead, right in ((1, 0), (0, -1), (0, 1)):
        steps = near if ahead else middle
        for far in range(1, steps + 1):
            if image[middle + right * far][near - ahead * far][0] == WALL:
                yield Seen("wall", ahead * far, right * far)
                break


def _name(cell: Cell) -> str:
    kind, colour, state = cell
    name = f"{COLOURS[colour]} {KINDS[kind]}"
    return f"{DOOR_STATES[state]} {name}" if kind == DOOR else name


FAILED = Ending("failed")
"""The level ended the game, and the mission is not accomplished: some do when a wrong thing is done."""
ACTIONS: Mapping[str, int] = MappingProxyType(
    {"turn left": 0, "turn right": 1, "move forward": 2, "pick up": 3, "drop": 4, "toggle": 5}
)
"""What the agent may do, and the package's number of it. All concern what is one step ahead."""
RULES = (
    "You are in a world of rooms. `2 ahead 1 left` means two steps forward, then one to your left.\n"
    f"Actions: {', '.join(ACTIONS)}. What you pick up, drop or toggle (open, close) is 1 ahead.\n"
)
TOLD = RULES + CODE_ACT.taught_action
"""What the agent is told first, in the form that it has if no other is asked for."""
NOTHING_CHANGED = "That changed nothing."
NO_ANSWERS = "Nothing is to be answered here: act until the mission is accomplished."


class BabyAISettings(ActingSettings):
    """Settings of BabyAI."""

    level: str = key(
        "GoToLocal",
        "A level of the package minigrid by its short name, such as `GoToLocal`, `PickupLoc` or `BossLevel`.",
    )


@dataclass(frozen=True, slots=True)
class Moved:
    """What comes of a move."""

    seen: str = ""
    """What the agent is told; nothing at the end."""
    end: Ending | None = None


@dataclass(frozen=True, slots=True)
class Game:
    """A session: a game of a level."""

    level: "RoomGridLevel"

    def fork(self) -> AbstractAsyncContextManager["Game"]:
        """A copy of the game as it stands now, its random numbers too."""
        return nullcontext(Game(copy.deepcopy(self.level)))

    def start(self, seed: int) -> str:
        """Begin the game of a seed: the mission, and what the agent sees."""
        seen, _ = self.level.reset(seed=seed)
        mission = self.level.mission
        return f"{mission[:1].upper()}{mission[1:]}. {view_of(seen['image'].tolist())}"

    def move(self, action: str) -> Moved:
        before = self._state()
        seen, reward, over, _, _ = self.level.step(ACTIONS[action])
        if over:
            return Moved(end=SOLVED if float(reward) > 0 else FAILED)
        view = str(view_of(seen["image"].tolist()))
        return Moved(view if self._state() != before else f"{NOTHING_CHANGED} {view}")

    def _state(self) -> tuple[object, ...]:
        level = self.level
        ahead = level.grid.get(*level.front_pos)
        what = None if ahead is None else (id(ahead), ahead.encode())
        return (*level.agent_pos, level.agent_dir, id(level.carrying), what)


class BabyAI(Acting):
    """One level of BabyAI."""

    name = "babyai"
    settings_type = BabyAISettings
    max_sessions = 256
    has_answers = False

    def __init__(self, settings: BabyAISettings | None = None) -> None:
        settings = settings or BabyAISettings()
        super().__init__(settings.steps)
        check_level(settings.level)
        self.level = settings.level
        self.version = f"1/minigrid {package_version()}"

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Games of the level. Train and held-out share no content (see ``babyai_games``)."""
        start = sum(drawn) if split == "train" else 0
        found = games(self.level, split, seed, start, count)
        return [
            Task(f"{split}-{seed}-{start + n}", {"seed": one.seed, "mission": one.mission})
            for n, one in enumerate(found)
        ]

    def told(self, task: Task) -> str:
        """Places, actions and the form."""
        return RULES + self.form.taught_action

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Game]:
        return nullcontext(Game(new_level(self.level)))

    async def begin(self, task: Task, live: Game) -> Transition:
        """The mission, and what the agent sees."""
        return Transition(0, saying(live.start(int(str(task.public["seed"])))))

    async def do(self, state: State, action: str, live: Game) -> Transition:
        """Make a move. The state's data is how many were made."""
        moves, action = int(str(state.data)), " ".join(action.split())
        if action.lower() not in ACTIONS:
            listed = ", ".join(ACTIONS)
            return Transition(moves, saying(f"There is no action `{action}`. Actions: {listed}."))
        found = live.move(action.lower())
        return Transition(moves + 1, () if found.end else saying(found.seen), end=found.end)

    async def answered(self, state: State, answer: str) -> Transition:
        """A message that costs a step and does nothing."""
        return Transition(state.data, saying(NO_ANSWERS))

    async def grade(self, state: State, live: Game) -> Grade:
        """Whether the mission is accomplished; ``moves`` is how many were made."""
        return Grade(float(state.end == SOLVED), {"moves": int(str(state.data))})
