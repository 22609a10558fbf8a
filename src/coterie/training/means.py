"""Which mean over sampled tokens a loss is: each is named, since algorithms of one name have differed in it.

* ``token``: over all trained tokens of the step (DAPO, arXiv 2503.14476, section 3.3); long paths weigh more.
* ``sequence``: over the step's paths, of the mean over a path's trained tokens (GRPO, arXiv 2402.03300, equation 3).
* ``constant``: over the step's paths, of the sum over a path's trained tokens divided by a constant (Dr. GRPO, arXiv
  2503.20783).

A path is all that one agent says on the way to one leaf, however many rows (segments) that makes: each row knows how
many tokens its path has (``Row.path_tokens``), and is that share of it. Numerator and denominator are of the same
tokens at the same weights, so a row of weight 0 is in neither.
"""

from coterie.errors import UserError
from coterie.training.settings import Mean
from coterie.trajectories.row import Row


def row_count(row: Row, mean: Mean) -> float:
    """The row's share of the denominator: its weighted tokens (``token``), or the weighted share of its path.

    Raises :class:`UserError` for a row of no path where paths are counted.
    """
    tokens = sum(map(len, row.predicted))
    return row.weight * (tokens if mean == "token" else tokens / path_tokens(row))


def row_scale(row: Row, mean: Mean, constant: int | None) -> float:
    """What the sum over the row's tokens is multiplied by, beside the one denominator of the step."""
    if mean == "token":
        return row.weight
    return row.weight / ((constant or 1) if mean == "constant" else path_tokens(row))


def path_tokens(row: Row) -> int:
    """Trained tokens of the row's path; ``UserError`` where they are not known, or fewer than the row's own."""
    own = sum(map(len, row.predicted))
    if row.path_tokens is None or row.path_tokens < own:
        raise UserError(
            f"row {row.origin or '?'} says that its path has {row.path_tokens} trained tokens; {own} are its own",
            "give it path_tokens, those of all rows of its path (trajectories.row.rows does), or use mean=token",
        )
    return max(row.path_tokens, 1)
