"""A scripted player of a BabyAI level in one room, with a mission to go to something.

It goes the shortest way to what it sees of the mission, and turns on until it sees that. Its bad habit: where it should
turn, it moves on instead, more often than not, unless what it looks for is right beside it. It decides anew at every
step, by what it sees then.
"""

import random
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from coterie.environments.games.babyai import Game

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

LEFT, RIGHT, FORWARD = "turn left", "turn right", "move forward"
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Of the package, each to the right of the one before."""
AHEAD, ASIDE = 6, 3
"""How far the agent sees."""
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """What the player was told, and what it did."""

    told: str
    action: str


class Stand(NamedTuple):
    """Where the agent stands and looks."""

    x: int
    y: int
    direction: int

    @property
    def front(self) -> Place:
        """The place one step ahead."""
        dx, dy = DIRECTIONS[self.direction]
        return self.x + dx, self.y + dy

    def after(self, action: str) -> "Stand":
        """Where it stands after a move, if nothing is in the way."""
        if action == FORWARD:
            return Stand(*self.front, self.direction)
        turn = {LEFT: -1, RIGHT: 1}.get(action, 0)
        return Stand(self.x, self.y, (self.direction + turn) % 4)

    def sees(self, place: Place) -> bool:
        """Whether a place of its room is in view."""
        (ax, ay), (rx, ry) = DIRECTIONS[self.direction], DIRECTIONS[(self.direction + 1) % 4]
        dx, dy = place[0] - self.x, place[1] - self.y
        return 0 <= ax * dx + ay * dy <= AHEAD and abs(rx * dx + ry * dy) <= ASIDE

    def is_beside(self, place: Place) -> bool:
        """Whether a place is one step to the left or to the right."""
        return place in (self.after(LEFT).front, self.after(RIGHT).front)


class Room:
    """A game as the player knows it."""

    def __init__(self, level: "RoomGridLevel") -> None:
        places = product(range(level.grid.width), range(level.grid.height))
        self.taken = {place for place in places if level.grid.get(*place) is not None}
        wanted = vars(level)["instrs"].desc.obj_poss
        self.wanted = {(int(x), int(y)) for x, y in wanted}

    def ways(self, stand: Stand, goals: set[Place]) -> set[str]:
        """What a shortest way to one of the goals may begin with; such as keeps a goal in view, if there is one."""
        found = self._shortest(stand, goals)
        keeping = {one for one in found if any(map(stand.after(one).sees, goals))}
        return keeping or found

    def _shortest(self, stand: Stand, goals: set[Place]) -> set[str]:
        """Nothing, where no way leads there, or none is left to go."""
        firsts: dict[Stand, set[str]] = {stand: set()}
        row = [stand]
        while row:
            if found := [one for one in row if one.front in goals]:
                return set().union(*(firsts[one] for one in found))
            reached: dict[Stand, set[str]] = {}
            for one, action in product(row, (LEFT, RIGHT, FORWARD)):
                then = one.after(action)
                if then not in firsts and then[:2] not in self.taken:
                    reached.setdefault(then, set()).update(firsts[one] or {action})
            firsts |= reached
            row = list(reached)
        return set()


def play(game: Game, seed: int, steps: int, habit: float, rng: random.Random) -> list[Step]:
    """A game of a seed, up to its end or a number of steps. ``habit`` is how often it moves on where it should turn."""
    told, played, room = game.start(seed), list[Step](), Room(game.level)
    for _ in range(steps):
        x, y = map(int, game.level.agent_pos)
        stand = Stand(x, y, int(game.level.agent_dir))
        good = _good(room, stand, played[-1].action if played else "")
        tempted = FORWARD not in good and stand.front not in room.taken
        tempted = tempted and not any(map(stand.is_beside, room.wanted))
        chosen = {FORWARD} if tempted and rng.random() < habit else good
        played.append(Step(told, rng.choice(sorted(chosen))))
        moved = game.move(played[-1].action)
        if moved.end is not None:
            break
        told = moved.seen
    return played


def _good(room: Room, stand: Stand, last: str) -> set[str]:
    """What leads to the mission: on the way to what is in view, else to look on in the same direction."""
    seen = {one for one in room.wanted if stand.sees(one)}
    turns = {last} if last in (LEFT, RIGHT) else {LEFT, RIGHT}
    return room.ways(stand, seen) or turns
