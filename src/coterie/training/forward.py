"""Forward pass of a micro-batch: from rows to log-probs or values of their targets, and to losses.

Rows are packed into tries where that is cheaper, and padded on the right otherwise. In both cases no target attends to
padding or another row, and only targets have labels.
"""

from collections.abc import Sequence
from typing import Any, Generic

import torch
from torch import nn

from coterie.models.heads import token_values
from coterie.models.packed import sequence_entropies, sequence_logprobs
from coterie.models.packing import CostRule
from coterie.record.rows import Row
from coterie.training.measures import Tally
from coterie.training.objective import OF_A_HEAD, Item, Measured, Objective, Reads, Tempered


class LossModule(nn.Module, Generic[Item]):
    """Model and objective as one module, so that Accelerate wraps both (ranks, precision)."""

    def __init__(
        self, model: nn.Module, objective: Objective[Item], rule: CostRule | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.rule = rule
        self._no_split_modules = getattr(model, "_no_split_modules", None)
        """Classes of layers that FSDP shards as units."""
        self.tally = Tally()
        """Measures of the objective since the last reset."""

    def forward(self, items: Sequence[Item], *, counts: bool = True) -> torch.Tensor:
        """Return the summed loss of each item, shape ``(items,)``; measure the items if ``counts``."""
        objective = self.objective
        groups = [objective.rows(item) for item in items]
        rows = [row for group in groups for row in group]
        temperature = objective.temperature if isinstance(objective, Tempered) else 1.0
        tensors = iter(read_rows(self.model, rows, objective.reads, self.rule, temperature))
        read = [[next(tensors) for _ in group] for group in groups]
        if counts and isinstance(objective, Measured):
            with torch.no_grad():
                detached = [[tensor.detach() for tensor in group] for group in read]
                self.tally.add(objective.measures(items, detached))
        return objective.losses(items, read)


def read_rows(
    model: Any,
    rows: Sequence[Row],
    reads: Reads,
    rule: CostRule | None = None,
    temperature: float = 1.0,
) -> list[torch.Tensor]:
    """Compute the values that an objective reads of each row's targets, in order; none for a first token."""
    ids, at = [row.ids for row in rows], [places(row) for row in rows]
    if reads in OF_A_HEAD:
        return token_values(model, ids, at, rule, before=reads == "states")
    if reads == "logprobs":
        return sequence_logprobs(model, ids, at, rule, temperature=temperature)
    gradient = reads == "entropies"
    return sequence_entropies(model, ids, at, rule, temperature=temperature, gradient=gradient)


def row_logprobs(
    model: Any, rows: Sequence[Row], rule: CostRule | None = None, temperature: float = 1.0
) -> list[torch.Tensor]:
    """Compute the log-probs (nats, float32) of each row's targets, in order; none for a first token."""
    return read_rows(model, rows, "logprobs", rule, temperature)


def places(row: Row) -> list[int]:
    """Return the positions of a row's targets in order, without a target at the first token."""
    return [place for turn in row.predicted for place in turn]
