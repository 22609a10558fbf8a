"""Assignment of advantages to the rows of an agent's path: one value for the path, or one for each trained token.

Trained tokens are the targets with a token before them, in the order of the path, over all of its rows (segments).
Observations are not trained, so they shift nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from coterie.record.rows import UNPREDICTED, Row


def with_advantage(rows: Sequence[Row], advantage: float) -> list[Row]:
    """Return the rows with one advantage at every target."""
    return [replace(row, advantages=(advantage,) * row.target_count) for row in rows]


def with_advantages(
    rows: Sequence[Row], advantages: Sequence[float], returns: Sequence[float]
) -> list[Row]:
    """Return the rows with the result of :func:`~coterie.rewards.advantages.gae` for the trained tokens.

    Raises ``ValueError`` if the lengths differ.
    """
    by_row = zip(rows, _split(rows, advantages), _split(rows, returns), strict=True)
    return [replace(row, advantages=own, returns=later) for row, own, later in by_row]


def trained_values(rows: Sequence[Row]) -> list[float]:
    """Return the values (``Row.values``) of a path's trained tokens, for :func:`~coterie.rewards.advantages.gae`."""
    return [value for row in rows for value in (row.values or ())[row.unpredicted :]]


def turn_ends(rows: Sequence[Row]) -> dict[str, int]:
    """Return the index of each turn's last token among the path's trained tokens, by turn id.

    A reward of the turn's step belongs to this token. Untrained turns have no index.
    """
    ends: dict[str, int] = {}
    before = 0
    for row in rows:
        for target in row.targets:
            before += target.stop - max(target.start, 1)
            if target.stop > 1:
                ends[target.turn] = before - 1
    return ends


def _split(rows: Sequence[Row], tokens: Sequence[float]) -> Iterator[tuple[float, ...]]:
    counts = [row.target_count - row.unpredicted for row in rows]
    if sum(counts) != len(tokens):
        raise ValueError(f"{len(tokens)} numbers for {sum(counts)} trained tokens")
    start = 0
    for row, count in zip(rows, counts, strict=True):
        yield (*[UNPREDICTED] * row.unpredicted, *tokens[start : start + count])
        start += count
