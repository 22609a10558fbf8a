"""One micro-batch through the model: rows to padded tokens, to log-probs at targets, to losses.

Rows are padded on the right to the longest of the micro-batch. Causal attention never looks right,
so no target sees padding and no attention mask is needed. Labels are the rows' own ids at their
targets: no other position has a label.
"""

from collections.abc import Sequence
from typing import Any, Generic

import torch
from torch import nn

from coterie.models.logprobs import token_logprobs
from coterie.training.objective import Item, Objective
from coterie.trajectories.row import Row

PADDING = 0
"""Any id of the vocabulary: no target sees it."""


class LossModule(nn.Module, Generic[Item]):
    """Model and objective as one module, so that wrapping it (ranks, precision) wraps all of it."""

    def __init__(self, model: nn.Module, objective: Objective[Item]) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, items: Sequence[Item]) -> torch.Tensor:
        """Summed loss of each item, shape ``(items,)``."""
        groups = [self.objective.rows(item) for item in items]
        logprobs = iter(row_logprobs(self.model, [row for group in groups for row in group]))
        return self.objective.losses(items, [[next(logprobs) for _ in group] for group in groups])


def row_logprobs(model: Any, rows: Sequence[Row]) -> Sequence[torch.Tensor]:
    """Log-probs (nats, float32) of the targets of each row, in order; none for a first token."""
    device = next(model.parameters()).device
    width = max(len(row.ids) for row in rows)
    ids_BT = torch.tensor([(*row.ids, *[PADDING] * (width - len(row.ids))) for row in rows])
    places = [_predicted(row) for row in rows]
    at_N = torch.tensor([r * width + p - 1 for r, place in enumerate(places) for p in place])
    labels_N = ids_BT.flatten()[at_N + 1]
    logprobs_N = token_logprobs(model, ids_BT.to(device), at_N.to(device), labels_N.to(device))
    return torch.split(logprobs_N, [len(place) for place in places])


def _predicted(row: Row) -> list[int]:
    """Positions of a row's targets that have something before them."""
    return [p for target in row.targets for p in range(max(target.start, 1), target.stop)]
