"""Which rows of a data set become the tasks of an iteration."""

import random
from collections.abc import Sequence
from typing import TypeVar

from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow

Row = TypeVar("Row")


def draw(
    rows: Rows, split: Split, count: int, seed: int, drawn: Sequence[int] = ()
) -> list[QuestionRow]:
    """Held-out rows from the first on, or a draw of training rows: see :func:`draws`.

    Raises ``UserError`` for missing or broken data.
    """
    found = rows.split(split)
    return found[:count] if split == "heldout" else draws(found, (*drawn, count), seed)[-1]


def draws(rows: Sequence[Row], counts: Sequence[int], seed: int) -> list[list[Row]]:
    """Rows of one draw after another: one cursor over all rows in an order drawn by ``seed``.

    No row comes again before all have come; then they are shuffled anew. A draw that begins in one
    order and ends in the next takes no row twice, so it has at most ``len(rows)``: those that it has
    come last in the new order.
    """
    left: list[int] = []
    epochs, found = 0, []
    for count in counts:
        taken = left[:count]
        left = left[len(taken) :]
        more = min(count, len(rows)) - len(taken)
        if more > 0:
            fresh = list(range(len(rows)))
            random.Random(f"order/{seed}/{epochs}").shuffle(fresh)
            epochs += 1
            had = set(taken)
            left = sorted(fresh, key=had.__contains__)
            taken, left = taken + left[:more], left[more:]
        found.append([rows[index] for index in taken])
    return found
