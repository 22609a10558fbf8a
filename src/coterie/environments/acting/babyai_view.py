"""What an agent of a BabyAI level sees, in words.

Places are from where the agent stands and looks: ``2 ahead 1 left`` is two steps forward, then one to its left.
The view is the package's ``image``: what lies at each of 7 x 7 places, the agent in the middle of the nearest row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
