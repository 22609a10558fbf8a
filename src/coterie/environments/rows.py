"""Which rows of a data set become the tasks of an iteration."""

import random
from collections.abc import Sequence
from typing import TypeVar

from coterie.datasets.local import load_splits
from coterie.datasets.rows import QuestionRow
from coterie.environments.dialogue import Split

Row = TypeVar("Row")


class Rows:
    """The rows of both splits of a data set, read when they are first drawn from."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self._splits: dict[Split, list[QuestionRow]] | None = None

    def draw(self, split: Split, count: int, seed: int, iteration: int) -> list[QuestionRow]:
        """As :func:`window`, of one split. Raises ``UserError`` for missing or broken data."""
        if self._splits is None:
            self._splits = load_splits(self.name, self.source)
        return window(self._splits[split], split, count, seed, iteration)


def window(rows: Sequence[Row], split: Split, count: int, seed: int, iteration: int) -> list[Row]:
    """The rows of one iteration: held-out rows from the first on; training rows in an order drawn
    by ``seed``, going on where the iteration before ended and beginning again after the last.

    No row comes twice in an iteration, so there are at most ``len(rows)``.
    """
    if split == "heldout":
        return list(rows[:count])
    order = list(rows)
    random.Random(f"order/{seed}").shuffle(order)
    count = min(count, len(order))
    start = iteration * count % len(order)
    return (order[start:] + order[:start])[:count]
