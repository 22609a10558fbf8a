"""Selection of rows for the tasks of an iteration."""

import random
from collections.abc import Sequence
from typing import TypeVar

from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow

Row = TypeVar("Row")


def draw(
    rows: Rows, split: Split, count: int, seed: int, after: Sequence[int] = ()
) -> list[QuestionRow]:
    """Return the first held-out rows, or a draw of training rows (see :func:`draws`).

    Raises:
        UserError: data is missing or invalid.
    """
    all_rows = rows.split(split)
    return all_rows[:count] if split == "heldout" else draws(all_rows, (*after, count), seed)[-1]


def draws(rows: Sequence[Row], counts: Sequence[int], seed: int) -> list[list[Row]]:
    """Return the rows of successive draws: one cursor over all rows, shuffled by ``seed``.

    Rows are shuffled again after all have been drawn. A draw across two shuffles contains no row twice, so it has at
    most ``len(rows)`` rows; its rows move to the end of the new order.
    """
    remaining: list[int] = []
    epochs, result = 0, []
    for count in counts:
        indices = remaining[:count]
        remaining = remaining[len(indices) :]
        more = min(count, len(rows)) - len(indices)
        if more > 0:
            fresh = list(range(len(rows)))
            random.Random(f"order/{seed}/{epochs}").shuffle(fresh)
            epochs += 1
            present = set(indices)
            remaining = sorted(fresh, key=present.__contains__)
            indices, remaining = indices + remaining[:more], remaining[more:]
        result.append([rows[index] for index in indices])
    return result
