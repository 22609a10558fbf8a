"""BabyAI in words: an agent in a grid of rooms carries out a mission, by moves in its text.

The levels are those of the package ``minigrid`` (extra ``babyai``), unchanged. The agent is told what is in its view of
7 x 7 places (``babyai_view``). The score is success within the limit of steps; the package's own reward, which is less
for more moves, is not used. A game can be copied, so branches fork.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.acting.babyai_games import (
    check_level,
    games,
    new_level,
    package_version,
)
from coterie.environments.acting.babyai_view import view_of
from coterie.environments.acting.environment import SOLVED, Acting, ActingSettings, saying
from coterie.environments.acting.syntax import CODE_ACT
from coterie.environments.protocol import Grade, Shared, State, Transition
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

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
