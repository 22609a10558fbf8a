"""One micro-batch through the model: rows of items, to log-probs or values at targets, to losses.

Rows are packed into tries where that is cheaper, and stand alone, padded on the right, where it is
not. Either way no target sees padding or another row, and labels are the rows' own ids at their
targets: no other position has a label.
"""

from collections.abc import Sequence
from typing import Any, Generic

import torch
from torch import nn

from coterie.models.heads import token_values
from coterie.models.packed import sequence_logprobs
from coterie.models.packing import CostRule
from coterie.training.objective import Item, Objective
from coterie.trajectories.row import Row


class LossModule(nn.Module, Generic[Item]):
    """Model and objective as one module, so that wrapping it (ranks, precision) wraps all of it."""

    def __init__(
        self, model: nn.Module, objective: Objective[Item], rule: CostRule | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.rule = rule
        self._no_split_modules = getattr(model, "_no_split_modules", None)
        """What FSDP shards as one: the model's layers."""

    def forward(self, items: Sequence[Item]) -> torch.Tensor:
        """Summed loss of each item, shape ``(items,)``."""
        groups = [self.objective.rows(item) for item in items]
        rows = [row for group in groups for row in group]
        read = row_logprobs if self.objective.reads == "logprobs" else row_values
        found = iter(read(self.model, rows, self.rule))
        return self.objective.losses(items, [[next(found) for _ in group] for group in groups])


def row_logprobs(
    model: Any, rows: Sequence[Row], rule: CostRule | None = None
) -> list[torch.Tensor]:
    """Log-probs (nats, float32) of the targets of each row, in order; none for a first token."""
    return sequence_logprobs(model, [row.ids for row in rows], [places(row) for row in rows], rule)


def row_values(model: Any, rows: Sequence[Row], rule: CostRule | None = None) -> list[torch.Tensor]:
    """Values (float32) of the model's head at the targets of each row, in order; none at a first token."""
    return token_values(model, [row.ids for row in rows], [places(row) for row in rows], rule)


def places(row: Row) -> list[int]:
    """Positions of a row's targets that have something before them, in order."""
    return [place for turn in row.predicted for place in turn]
