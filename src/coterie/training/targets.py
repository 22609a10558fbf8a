"""Check and read the values that rows have for each target."""

from collections.abc import Iterable, Sequence

import torch

from coterie.errors import UserError
from coterie.record.rows import Row
from coterie.training.objective import Item, Objective, TargetValue

MEANINGS: dict[TargetValue, str] = {
    "logprobs": "the log-probs of sampling (unavailable after a change of the context)",
    "advantages": "advantages",
    "reference": "log-probs under the reference",
    "values": "values of the states before them, computed when the row was made",
    "returns": "returns",
    "old": "log-probs that the trainer computes under the sampling weights",
}


def check_targets(groups: Iterable[Sequence[Row]], objective: Objective[Item]) -> None:
    """Raise ``UserError`` for rows without one value per target, for each field that the objective needs."""
    if not objective.needs:
        return
    for group in groups:
        for row in group:
            for name in objective.needs:
                _check(row, name, objective.name)


def at_predicted(row: Row, name: TargetValue, like: torch.Tensor) -> torch.Tensor:
    """Return a row's values of its predicted targets (``Row.predicted``) with the dtype and device of ``like``."""
    values = getattr(row, name)
    return torch.tensor(values[row.unpredicted :], dtype=like.dtype, device=like.device)


def _check(row: Row, name: TargetValue, objective: str) -> None:
    values = getattr(row, name)
    where = f"row {row.origin or '?'}"
    if values is None:
        raise UserError(
            f"{where} has no {name}, which the objective {objective} needs for every target",
            f"give its targets {MEANINGS[name]}",
        )
    if len(values) != row.target_count:
        raise UserError(
            f"{where} has {len(values)} {name} for {row.target_count} targets",
            "give one value per target token, in order",
        )
