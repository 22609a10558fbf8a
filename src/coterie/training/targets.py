"""Values that rows carry for each of their targets: what an objective needs of them, checked and read."""

from collections.abc import Iterable, Sequence

import torch

from coterie.errors import UserError
from coterie.training.objective import Item, Objective, TargetValue
from coterie.trajectories.row import Row

MEANINGS: dict[TargetValue, str] = {
    "logprobs": "the log-probs with which they were sampled (a changed context has none)",
    "advantages": "advantages",
    "reference": "log-probs under the reference",
    "values": "values of the states before them, as they were when the row was made",
    "returns": "returns",
    "old": "log-probs that the trainer computed under the weights that sampled them",
}


def check_targets(groups: Iterable[Sequence[Row]], objective: Objective[Item]) -> None:
    """Refuse rows that lack values which the objective needs, or have another number of them than targets."""
    if not objective.needs:
        return
    for group in groups:
        for row in group:
            for name in objective.needs:
                _check(row, name, objective.name)


def at_predicted(row: Row, name: TargetValue, like: torch.Tensor) -> torch.Tensor:
    """A row's values at those of its targets that have log-probs (``Row.predicted``), as a tensor like ``like``."""
    values = getattr(row, name)
    return torch.tensor(values[row.unpredicted :], dtype=like.dtype, device=like.device)


def _check(row: Row, name: TargetValue, objective: str) -> None:
    values = getattr(row, name)
    where = f"row {row.origin or '?'}"
    if values is None:
        raise UserError(
            f"{where} has no {name}, and the objective {objective} needs them of every target",
            f"give its targets {MEANINGS[name]}",
        )
    if len(values) != row.target_count:
        raise UserError(
            f"{where} has {len(values)} {name} for {row.target_count} targets",
            "give one for each target token, in order",
        )
