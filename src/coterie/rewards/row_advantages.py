"""Numbers of an agent's path, put on its rows: one for the path, or one for each trained token.

Trained tokens are the targets that have something before them, in the order of the path, whichever rows (segments)
they stand in. Observations are not among them, so they move nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from coterie.trajectories.row import UNPREDICTED, Row


def with_advantage(rows: Sequence[Row], advantage: float) -> list[Row]:
    """The rows of a path, every target with the path's own advantage."""
    return [replace(row, advantages=(advantage,) * row.target_count) for row in rows]


def with_advantages(
    rows: Sequence[Row], advantages: Sequence[float], returns: Sequence[float]
) -> list[Row]:
    """The rows of a path, with what :func:`~coterie.rewards.advantages.gae` gave for its trained tokens.

    Raises ``ValueError`` where there is not one for each of them.
    """
    each, later = iter(_dealt(rows, advantages)), iter(_dealt(rows, returns))
    return [replace(row, advantages=next(each), returns=next(later)) for row in rows]


def trained_values(rows: Sequence[Row]) -> list[float]:
    """The values (``Row.values``) of the trained tokens of a path, for :func:`~coterie.rewards.advantages.gae`."""
    return [value for row in rows for value in (row.values or ())[row.unpredicted :]]


def turn_ends(rows: Sequence[Row]) -> dict[str, int]:
    """For each turn of a path, by id, the place of its last token among the path's trained tokens.

    There a reward of the turn's step stands. A turn of which nothing is trained has no place.
    """
    ends: dict[str, int] = {}
    before = 0
    for row in rows:
        for target in row.targets:
            before += target.stop - max(target.start, 1)
            if target.stop > 1:
                ends[target.turn] = before - 1
    return ends


def _dealt(rows: Sequence[Row], tokens: Sequence[float]) -> Iterator[tuple[float, ...]]:
    counts = [row.target_count - row.unpredicted for row in rows]
    if sum(counts) != len(tokens):
        raise ValueError(f"{len(tokens)} numbers for {sum(counts)} trained tokens")
    start = 0
    for row, count in zip(rows, counts, strict=True):
        yield (*[UNPREDICTED] * row.unpredicted, *tokens[start : start + count])
        start += count
