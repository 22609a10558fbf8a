"""Reduction of token values to one number per side of a preference pair.

Policy and reference use the same reduction, so that their difference is the reduction of the log-ratios.
"""

from collections.abc import Sequence

import torch

from coterie.errors import UserError
from coterie.record.rows import Pair, Row
from coterie.training.settings import Normalise


def side_statistic(
    rows: Sequence[Row], values: Sequence[torch.Tensor], normalise: Normalise
) -> torch.Tensor:
    """Reduce a side's values to a scalar of their dtype.

    Args:
        rows: Rows of the side.
        values: Values of each row's target tokens (``Row.predicted``).
        normalise: ``none``: sum over tokens. ``tokens``: mean over tokens. ``turns``: sum over turns of the mean over a
            turn's tokens (SWEET-RL, arXiv 2503.15478, equations 2 and 3).
    """
    tokens = torch.cat(list(values))
    if normalise == "none":
        return tokens.sum()
    if normalise == "tokens":
        return tokens.mean()
    turns = tokens.split([len(turn) for row in rows for turn in row.predicted])
    return torch.stack([turn.mean() for turn in turns]).sum()


def pair_weight(pair: Pair) -> float:
    """Return the pair's weight; 0 if a side has no targets, or if the sides are equal.

    Raises :class:`UserError` for a negative weight or NaN.
    """
    if not pair.weight >= 0:  # NaN too
        raise UserError(
            f"pair {pair.name} has weight {pair.weight}; a pair needs a weight >= 0",
            "drop the pair, or swap its sides",
        )
    is_empty = any(not any(row.predicted for row in side) for side in (pair.chosen, pair.rejected))
    return 0.0 if is_empty or pair.equal_sides else pair.weight
