"""Mean over the sampled tokens of a step, which implementations of the same algorithm define differently.

* ``token``: mean over all trained tokens of the step (DAPO, arXiv 2503.14476, section 3.3); long paths weigh more.
* ``sequence``: mean over the step's paths of the mean over a path's trained tokens (GRPO, arXiv 2402.03300, eq. 3).
* ``constant``: mean over the step's paths of the sum over a path's trained tokens divided by a constant (Dr. GRPO,
  arXiv 2503.20783).

A path has all tokens of one agent up to one leaf, in one or several rows (segments). Each row has the number of tokens
of its path (``Row.path_tokens``) and counts as that share of it. Numerator and denominator use the same tokens and
weights, so a row of weight 0 is in neither.
"""

from coterie.errors import UserError
from coterie.record.rows import Row
from coterie.training.settings import Mean


def row_count(row: Row, mean: Mean) -> float:
    """Return the row's share of the denominator: its weighted tokens (``token``), or its weighted share of its path."""
    tokens = sum(map(len, row.predicted))
    return row.weight * (tokens if mean == "token" else tokens / path_tokens(row))


def row_scale(row: Row, mean: Mean, constant: int | None) -> float:
    """Return the factor of the sum over the row's tokens."""
    if mean == "token":
        return row.weight
    return row.weight / ((constant or 1) if mean == "constant" else path_tokens(row))


def path_tokens(row: Row) -> int:
    """Return the trained tokens of the row's path. Raises ``UserError`` if unknown, or fewer than the row's own."""
    own = sum(map(len, row.predicted))
    if row.path_tokens is None or row.path_tokens < own:
        raise UserError(
            f"row {row.origin or '?'} has {own} trained tokens but path_tokens={row.path_tokens}",
            "set path_tokens to the sum over all rows of the path (trajectories.row.rows does), or use mean=token",
        )
    return max(row.path_tokens, 1)
