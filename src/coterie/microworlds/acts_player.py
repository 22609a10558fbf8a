"""A scripted player of a BabyAI level in one room, where one object is to be picked up.

It goes the shortest way to an object of the mission that it sees, and turns until it sees one. Its bad habit: where
another object is nearer, it goes for that one as likely as not. It decides anew at every step, by what it sees then.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from coterie.environments.acting.babyai import Game
from coterie.environments.acting.babyai_view import Seen

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

LEFT, RIGHT, FORWARD, PICK_UP = "turn left", "turn right", "move forward", "pick up"
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
    where: str = ""
    """The nearest place where it sees what the mission is about; empty if it sees it nowhere."""


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

    def place(self, place: Place) -> tuple[int, int]:
        """How many steps ahead a place is, and how many to the right."""
        (ax, ay), (rx, ry) = DIRECTIONS[self.direction], DIRECTIONS[(self.direction + 1) % 4]
        dx, dy = place[0] - self.x, place[1] - self.y
        return ax * dx + ay * dy, rx * dx + ry * dy

    def sees(self, place: Place) -> bool:
        """Whether a place of its room is in view."""
        ahead, right = self.place(place)
        return 0 <= ahead <= AHEAD and abs(right) <= ASIDE

    def distance(self, place: Place) -> int:
        """Steps, if nothing is in the way and turns are free."""
        return abs(place[0] - self.x) + abs(place[1] - self.y)


class Room:
    """A game as the player knows it."""

    def __init__(self, level: "RoomGridLevel") -> None:
        cells = {
            (x, y): level.grid.get(x, y)
            for x in range(level.grid.width)
            for y in range(level.grid.height)
        }
        self.taken = {place for place, cell in cells.items() if cell is not None}
        self.objects = {p for p in self.taken if (cell := cells[p]) and cell.type != "wall"}
        wanted = vars(level)["instrs"].desc.obj_poss
        self.wanted = self.objects & {(int(x), int(y)) for x, y in wanted}

    def where(self, stand: Stand) -> str:
        """The nearest place in view of what is wanted, as the agent is told it; empty if there is none."""
        seen = [stand.place(one) for one in self.wanted if stand.sees(one)]
        seen.sort(key=lambda one: (one[0] + abs(one[1]), one))
        return Seen("", *seen[0]).place if seen else ""

    def ways(self, stand: Stand, goals: Iterable[Place]) -> set[str]:
        """What a shortest way to one of the goals may begin with; such as keeps a goal in view, if there is one."""
        goals = set(goals)
        found = self._shortest(stand, goals)
        keeping = {
            one
            for one in found
            if one == PICK_UP or any(stand.after(one).sees(goal) for goal in goals)
        }
        return keeping or found

    def _shortest(self, stand: Stand, goals: set[Place]) -> set[str]:
        firsts: dict[Stand, set[str]] = {stand: {PICK_UP}}
        row = [stand]
        while row:
            if found := [one for one in row if one.front in goals]:
                return set().union(*(firsts[one] for one in found))
            reached: dict[Stand, set[str]] = {}
            for one in row:
                for action in (LEFT, RIGHT, FORWARD):
                    then = one.after(action)
                    if then in firsts or then[:2] in self.taken:
                        continue
                    begun = {action} if one == stand else firsts[one]
                    reached.setdefault(then, set()).update(begun)
            firsts |= reached
            row = list(reached)
        return {LEFT}


def play(game: Game, seed: int, steps: int, habit: float, rng: random.Random) -> list[Step]:
    """A game of a seed, up to its end or a number of steps.

    ``habit`` is how often it goes for the nearest object where that is a wrong one.
    """
    told, played, room = game.start(seed), list[Step](), Room(game.level)
    for _ in range(steps):
        x, y = map(int, game.level.agent_pos)
        stand = Stand(x, y, int(game.level.agent_dir))
        last = played[-1].action if played else ""
        good, bad = _good(room, stand, last), _bad(room, stand)
        chosen = bad if bad and not bad & good and rng.random() < habit else good
        played.append(Step(told, rng.choice(sorted(chosen)), room.where(stand)))
        moved = game.move(played[-1].action)
        if moved.end is not None:
            break
        told = moved.seen
    return played


def _good(room: Room, stand: Stand, last: str) -> set[str]:
    """What leads to the mission: on the way to what is in view, else to look on in the same direction."""
    if seen := {one for one in room.wanted if stand.sees(one)}:
        return room.ways(stand, seen)
    return {last} if last in (LEFT, RIGHT) else {LEFT, RIGHT}


def _bad(room: Room, stand: Stand) -> set[str]:
    """What leads to the nearest object in view, if that is a wrong one."""
    seen = [one for one in room.objects if stand.sees(one)]
    nearest = min(map(stand.distance, seen), default=0)
    near = {one for one in seen if stand.distance(one) == nearest}
    return room.ways(stand, near) if near and not near & room.wanted else set()
