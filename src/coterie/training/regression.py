"""A reward model: which of two sides is better, from a value head's mean over a side's own tokens.

Per pair, with r+ and r- the mean values of the chosen and of the rejected side's target tokens:

    loss = -log sigmoid(r+ - r-)

The head's bias cancels and stays as it is. A linear head's mean value is its value of the mean hidden
state, so this is the regression head on pooled hidden states that SWEET-RL (arXiv 2503.15478, table
3) compares its critic with.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from coterie.training.objective import Reads, TargetValue
from coterie.training.sides import pair_weight, side_statistic
from coterie.trajectories.pair import Pair
from coterie.trajectories.row import Row


class Regression:
    """The item is a :class:`Pair` (no reference is needed); each pair of weight 1 counts 1."""

    name = "regression"
    reads: Reads = "differences"
    needs: Sequence[TargetValue] = ()

    def rows(self, item: Pair) -> Sequence[Row]:
        return (*item.chosen, *item.rejected)

    def count(self, item: Pair) -> float:
        """The pair's weight; 0 if a side has no targets, or if the sides are equal."""
        return pair_weight(item)

    def group(self, item: Pair) -> str:
        return item.group

    def losses(
        self, items: Sequence[Pair], values: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Per pair, weight * loss; shape ``(pairs,)``."""
        return torch.stack([_loss(item, rows) for item, rows in zip(items, values, strict=True)])


def _loss(pair: Pair, values: Sequence[torch.Tensor]) -> torch.Tensor:
    chosen, rejected = values[: len(pair.chosen)], values[len(pair.chosen) :]
    better = side_statistic(pair.chosen, chosen, "tokens")
    worse = side_statistic(pair.rejected, rejected, "tokens")
    return -pair.weight * logsigmoid(better - worse)
