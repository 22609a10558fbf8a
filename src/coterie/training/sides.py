"""The sides of a preference pair as numbers: how many values of tokens become one of a side.

Policy and reference are reduced by the same function, so that their difference is that of the
log-ratios. Target tokens are those that have something before them (``Row.predicted``); a turn is a
target of a row.
"""

from collections.abc import Sequence

import torch

from coterie.errors import UserError
from coterie.training.settings import Normalise
from coterie.trajectories.pair import Pair
from coterie.trajectories.row import Row


def side_statistic(
    rows: Sequence[Row], values: Sequence[torch.Tensor], normalise: Normalise
) -> torch.Tensor:
    """One number of a side, a weighted sum; a scalar of the dtype of ``values``.

    ``values[j]`` are those of the target tokens of row ``j``. Each token weighs 1 (``none``), 1 over
    the side's tokens (``tokens``) or 1 over its turn's tokens (``turns``: SWEET-RL, arXiv
    2503.15478, equations 2 and 3).
    """
    tokens = torch.cat(list(values))
    if normalise == "none":
        return tokens.sum()
    if normalise == "tokens":
        return tokens.mean()
    turns = tokens.split([len(turn) for row in rows for turn in row.predicted])
    return torch.stack([turn.mean() for turn in turns]).sum()


def pair_weight(pair: Pair) -> float:
    """The pair's weight; 0 if a side has no targets, or if the sides are equal.

    Raises :class:`UserError` for a weight that is negative or not a number.
    """
    if not pair.weight >= 0:  # NaN too
        raise UserError(
            f"pair {pair.name}: a pair needs a weight >= 0, got {pair.weight}",
            "drop the pair, or turn it round",
        )
    mute = any(not any(row.predicted for row in side) for side in (pair.chosen, pair.rejected))
    return 0.0 if mute or pair.equal_sides else pair.weight
