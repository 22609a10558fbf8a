"""Supervised fine-tuning: the weighted mean of -log p over target tokens."""

from collections.abc import Sequence

import torch

from coterie.record.rows import Row
from coterie.training.objective import Reads, TargetValue
from coterie.training.on_rows import OnRows


class SFT(OnRows):
    """Weighted mean of -log p over the target tokens of an optimizer step, on :class:`Row` items.

    A token has the same weight in any row, micro-batch or rank.
    """

    name = "sft"
    reads: Reads = "logprobs"
    refuses = ("SFT", "drop the row, or use an objective that learns from bad rows (pairs)")
    needs: Sequence[TargetValue] = ()

    def losses(
        self, items: Sequence[Row], logprobs: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Return weight * sum of -log p, shape ``(rows,)``."""
        sums = [-row.weight * tokens.sum() for row, (tokens,) in zip(items, logprobs, strict=True)]
        return torch.stack(sums)
