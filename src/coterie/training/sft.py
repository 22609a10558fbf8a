"""Supervised fine-tuning: the weighted mean of -log p over target tokens."""

from collections.abc import Sequence

import torch

from coterie.errors import UserError
from coterie.training.objective import Reads, TargetValue
from coterie.trajectories.row import Row


class SFT:
    """Sum over target tokens of weight * -log p, divided by the sum of those weights.

    The item is a :class:`Row`. Both sums go over the whole optimiser step: a token weighs the same
    whatever row, micro-batch or rank it is in. A row without targets, or of weight 0, counts 0.
    """

    name = "sft"
    reads: Reads = "logprobs"
    needs: Sequence[TargetValue] = ()

    def rows(self, item: Row) -> Sequence[Row]:
        """The row itself."""
        return (item,)

    def count(self, item: Row) -> float:
        """Weighted number of target tokens that have something before them."""
        if not item.weight >= 0:  # NaN too
            raise UserError(
                f"row {item.origin or '?'}: SFT needs a weight >= 0, got {item.weight}",
                "drop the row, or use an objective that learns from bad rows (pairs)",
            )
        return item.weight * sum(map(len, item.predicted))

    def group(self, item: Row) -> str:
        """None: rows are drawn one by one."""
        return ""

    def losses(
        self, items: Sequence[Row], logprobs: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Per row, weight * sum of -log p; shape ``(rows,)``."""
        sums = [-row.weight * tokens.sum() for row, (tokens,) in zip(items, logprobs, strict=True)]
        return torch.stack(sums)
