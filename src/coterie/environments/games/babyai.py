"""BabyAI as text: an agent in a grid of rooms carries out a mission by writing moves.

The levels come from the package ``minigrid`` (extra ``babyai``). The score is success within the limit of steps, not
the package's reward. A game can be copied, so branches fork.
"""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.acting import CODE_ACT, SOLVED, Acting, ActingSettings, observation
from coterie.environments.protocol import Grade, Shared, State, Transition
from coterie.environments.settings import MicroSplit, series, split_of_key, split_random
from coterie.errors import UserError, did_you_mean
from coterie.record.tree import Ending, Task
from coterie.record.turn import digest

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

# A hash of a game's content (grid, position and direction of the agent, mission) decides its split. A game that several
# seeds produce occurs once.

PREFIX = "BabyAI-"
SEEDS = 2**31
PATIENCE = 2000
"""Number of successive draws without a new game of the split after which the level has no more."""
NO_LIMIT = 1_000_000
"""The package's limit of moves, too high to apply: coterie counts the steps."""


class Draw(NamedTuple):
    """A game of a level."""

    seed: int
    mission: str


def new_level(name: str) -> "RoomGridLevel":
    environment = _package().make(_ids()[name], max_steps=NO_LIMIT, disable_env_checker=True)
    return cast("RoomGridLevel", environment.unwrapped)


def content_key(level: "RoomGridLevel") -> str:
    """Return a hash of a game's content: the grid, the agent's position and direction, and the mission."""
    agent = [*map(int, level.agent_pos), int(level.agent_dir)]
    return digest(level.grid.encode().tolist(), agent, level.mission)


@series
def games(name: str, split: MicroSplit, seed: int) -> Iterator[Draw]:
    """Yield the games of a split, until the level has no more."""
    rng = split_random(split, f"babyai/{name}/{split}/{seed}")
    level, seen, misses = new_level(name), set[str](), 0
    while misses < PATIENCE:
        game = rng.randrange(SEEDS)
        level.reset(seed=game)
        key = content_key(level)
        misses += 1
        if split_of_key(key) == split and key not in seen:
            seen.add(key)
            misses = 0
            yield Draw(game, level.mission)


@cache
def _ids() -> MappingProxyType[str, str]:
    ids = [name for name in _package().registry if name.startswith(PREFIX)]
    return MappingProxyType(
        {level_id.removeprefix(PREFIX).rpartition("-v")[0]: level_id for level_id in ids}
    )


@cache
def _package() -> Any:
    """Import ``gymnasium`` and ``minigrid``, which registers its levels in it, without their output."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
        from minigrid.envs.babyai.core import roomgrid_level
    except ImportError as error:
        raise UserError(
            "BabyAI's levels need the package minigrid", "pip install -e '.[babyai]'"
        ) from error
    vars(roomgrid_level)["print"] = lambda *_: None  # it prints each layout that it rejects
    return gymnasium


# Views as text. Positions are relative to the agent: ``2 ahead 1 left`` is two steps forward, then one to its left.
# The view is the package's ``image`` of 7 x 7 cells, with the agent in the middle of the nearest row.

Cell = Sequence[int]
"""Object, color and state, as numbers of the package."""
Image = Sequence[Sequence[Cell]]
"""Cells by column, from left to right, then by row; the agent is in the last row."""
WALL, DOOR = 2, 4
KINDS = {DOOR: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
"""Objects by number in the package. Only doors have a state."""
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")


class VisibleObject(NamedTuple):
    """An object in view."""

    what: str
    ahead: int
    right: int
    """Steps to the right; negative to the left."""

    @property
    def place(self) -> str:
        side = f"{abs(self.right)} {'right' if self.right > 0 else 'left'}"
        if not self.right:
            return f"{self.ahead} ahead"
        return f"{self.ahead} ahead {side}" if self.ahead else side

    def __str__(self) -> str:
        return f"{self.what} {self.place}"


def view_of(image: Image) -> str:
    """Describe objects, the nearest walls, and what the agent carries."""
    middle, near = len(image) // 2, len(image[0]) - 1
    objects = [
        VisibleObject(_name(cell), near - row, column - middle)
        for column, cells in enumerate(image)
        for row, cell in enumerate(cells)
        if cell[0] in KINDS and (column, row) != (middle, near)
    ]
    # Nearest first, by number of steps.
    objects.sort(key=lambda thing: (thing.ahead + abs(thing.right), thing.ahead, thing.right))
    seen = "; ".join(map(str, (*objects, *_walls(image)))) or "nothing"
    # The package shows a carried object in the cell of the agent.
    own_cell = image[middle][near]
    carried = f"a {_name(own_cell)}" if own_cell[0] in KINDS else "nothing"
    return f"You see: {seen}. You carry {carried}."


def _walls(image: Image) -> Iterator[VisibleObject]:
    middle, near = len(image) // 2, len(image[0]) - 1
    # The nearest wall ahead, to the left and to the right.
    for ahead, right in ((1, 0), (0, -1), (0, 1)):
        steps = near if ahead else middle
        for far in range(1, steps + 1):
            if image[middle + right * far][near - ahead * far][0] == WALL:
                yield VisibleObject("wall", ahead * far, right * far)
                break


def _name(cell: Cell) -> str:
    kind, color, state = cell
    name = f"{COLORS[color]} {KINDS[kind]}"
    return f"{DOOR_STATES[state]} {name}" if kind == DOOR else name


FAILED = Ending("failed")
"""The level ended the game without success, as some levels do after a wrong move."""
ACTIONS: Mapping[str, int] = MappingProxyType(
    {"turn left": 0, "turn right": 1, "move forward": 2, "pick up": 3, "drop": 4, "toggle": 5}
)
"""Actions of the agent and their numbers in the package. Objects are handled one step ahead."""
RULES = (
    "You are in a world of rooms. `2 ahead 1 left` means two steps forward, then one to your left.\n"
    f"Actions: {', '.join(ACTIONS)}. What you pick up, drop or toggle (open, close) is 1 ahead.\n"
)
PROMPT = RULES + CODE_ACT.action_instructions
NOTHING_CHANGED = "That changed nothing."
NO_ANSWERS = "Nothing is to be answered here: act until the mission is accomplished."


class BabyAISettings(ActingSettings):
    """Settings of BabyAI."""

    level: str = key(
        "GoToLocal",
        "Short name of a level of the package minigrid, such as `GoToLocal`, `PickupLoc` or `BossLevel`.",
    )


class MoveResult(NamedTuple):
    """Result of a move."""

    seen: str = ""
    end: Ending | None = None


@dataclass(frozen=True, slots=True)
class Game:
    """A game of a level, which is the session of a branch."""

    level: "RoomGridLevel"

    def fork(self) -> AbstractAsyncContextManager["Game"]:
        """Return a copy of the game in its current state, including its random numbers."""
        return nullcontext(Game(copy.deepcopy(self.level)))

    def start(self, seed: int) -> str:
        seen, _ = self.level.reset(seed=seed)
        mission = self.level.mission
        return f"{mission[:1].upper()}{mission[1:]}. {view_of(seen['image'].tolist())}"

    def move(self, action: str) -> MoveResult:
        # The package doesn't report whether a move had an effect, so compare what moves can change.
        state_before = self._state()
        seen, reward, is_over, _, _ = self.level.step(ACTIONS[action])
        if is_over:
            return MoveResult(end=SOLVED if float(reward) > 0 else FAILED)
        view = view_of(seen["image"].tolist())
        return MoveResult(view if self._state() != state_before else f"{NOTHING_CHANGED} {view}")

    def _state(self) -> tuple[object, ...]:
        level = self.level
        ahead = level.grid.get(*level.front_pos)
        # The identity shows a picked up object, the encoding a door that was opened or closed.
        object_state = None if ahead is None else (id(ahead), ahead.encode())
        return (*level.agent_pos, level.agent_dir, id(level.carrying), object_state)


class BabyAI(Acting):
    """One level of BabyAI."""

    name = "babyai"
    settings_type = BabyAISettings
    max_sessions = 256
    has_answers = False

    def __init__(self, settings: BabyAISettings | None = None) -> None:
        settings = settings or BabyAISettings()
        super().__init__(settings.steps)
        if settings.level not in (levels := _ids()):
            raise UserError(
                f"there is no BabyAI level {settings.level!r}",
                f"{did_you_mean(settings.level, levels)}known: {', '.join(sorted(levels))}",
            )
        self.level = settings.level
        self.version = f"1/minigrid {version('minigrid')}"

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        return [
            Task(f"{split}-{seed}-{number}", game._asdict())
            for number, game in games(self.level, split, seed).draw(split, count, previous_counts)
        ]

    def system_prompt(self, task: Task) -> str:
        return RULES + self.form.action_instructions

    def commands(self, task: Task) -> Sequence[str]:
        return tuple(ACTIONS)

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Game]:
        return nullcontext(Game(new_level(self.level)))

    async def begin(self, task: Task, session: Game) -> Transition:
        return Transition(0, observation(session.start(int(str(task.public["seed"])))))

    async def do(self, state: State, action: str, session: Game) -> Transition:
        moves, action = int(str(state.data)), " ".join(action.split())
        if action.lower() not in ACTIONS:
            listed = ", ".join(ACTIONS)
            return Transition(
                moves, observation(f"There is no action `{action}`. Actions: {listed}.")
            )
        result = session.move(action.lower())
        return Transition(moves + 1, () if result.end else observation(result.seen), end=result.end)

    async def on_answer(self, state: State, answer: str) -> Transition:
        return Transition(state.data, observation(NO_ANSWERS))

    async def grade(self, state: State, session: Game) -> Grade:
        """Score 1 if the mission is accomplished; ``moves`` counts moves."""
        return Grade(float(state.end == SOLVED), {"moves": int(str(state.data))})
