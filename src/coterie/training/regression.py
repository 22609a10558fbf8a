"""Reward model on pairs: the reward of a side is the mean of a value head over the side's target tokens.

Per pair, with r+ and r- the mean values of the chosen and the rejected side:

    loss = -log sigmoid(r+ - r-)

The head's bias cancels and does not change. The mean value of a linear head equals its value of the mean hidden state,
so this is the regression head on pooled hidden states, a baseline of SWEET-RL's critic (arXiv 2503.15478, table 3).
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from coterie.record.rows import Pair, Row
from coterie.training.objective import Reads, TargetValue
from coterie.training.sides import pair_weight, side_statistic


class Regression:
    """Reward model loss on :class:`Pair` items, without a reference; a pair counts its weight."""

    name = "regression"
    reads: Reads = "differences"
    needs: Sequence[TargetValue] = ()

    def rows(self, item: Pair) -> Sequence[Row]:
        return (*item.chosen, *item.rejected)

    def count(self, item: Pair) -> float:
        return pair_weight(item)

    def group(self, item: Pair) -> str:
        return item.group

    def losses(
        self, items: Sequence[Pair], values: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Return weight * loss, shape ``(pairs,)``."""
        return torch.stack([_loss(item, rows) for item, rows in zip(items, values, strict=True)])


def _loss(pair: Pair, values: Sequence[torch.Tensor]) -> torch.Tensor:
    chosen, rejected = values[: len(pair.chosen)], values[len(pair.chosen) :]
    better = side_statistic(pair.chosen, chosen, "tokens")
    worse = side_statistic(pair.rejected, rejected, "tokens")
    return -pair.weight * logsigmoid(better - worse)
