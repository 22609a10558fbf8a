"""The games of BabyAI's levels: the levels of the package ``minigrid`` by name, and the games of each split.

What is disjoint between the splits is the *content* of a game: its grid, where the agent stands and looks, and its
mission. A hash of it decides the split. Two seeds that give the same game give it to the same split, and it comes
once there.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key
from coterie.errors import UserError, did_you_mean
from coterie.trajectories.turn import digest

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

PREFIX = "BabyAI-"
SEEDS = 2**31
"""Seeds of games are below."""
PATIENCE = 2000
"""So many draws in a row that give no new game of a split mean that its level has no more."""
NO_LIMIT = 1_000_000
"""The package's own limit of moves, which no game meets: coterie counts."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A game of a level."""

    seed: int
    """What the level is reset with."""
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
    """The package's names of levels by the short ones."""
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
            "BabyAI's levels need the package minigrid", "pip install 'coterie[babyai]'"
        ) from error
    vars(roomgrid_level)["print"] = _keep_quiet  # it prints each layout that it rejects
    return gymnasium


def _keep_quiet(*_: object) -> None: ...
