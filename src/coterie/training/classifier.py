"""Value function that predicts after each turn of the agent if the trajectory succeeds, trained by cross-entropy.

Per trajectory with label y, and v the head's logit at the last token of each of its turns:

    loss = - sum over turns of (y log sigmoid(v) + (1 - y) log sigmoid(-v))

divided by the number of turns of the whole step. It is a baseline of SWEET-RL's critic (arXiv 2503.15478, figure 3a).
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from coterie.errors import UserError
from coterie.record.rows import LabeledTrajectory, Row
from coterie.training.objective import Reads, TargetValue


class Classifier:
    """Cross-entropy on :class:`LabeledTrajectory` trajectories; a turn counts the weight of its trajectory."""

    name = "classifier"
    reads: Reads = "values"
    needs: Sequence[TargetValue] = ()

    def rows(self, item: LabeledTrajectory) -> Sequence[Row]:
        return item.rows

    def count(self, item: LabeledTrajectory) -> float:
        """Return the weighted number of turns, without a turn at a row's first token."""
        if not item.weight >= 0:  # NaN too
            raise UserError(
                f"trajectory {item.name} has weight {item.weight}; a value function needs a weight >= 0",
                "drop the trajectory, or fix its weight",
            )
        return item.weight * sum(len(row.predicted) for row in item.rows)

    def group(self, item: LabeledTrajectory) -> str:
        return item.group

    def losses(
        self, items: Sequence[LabeledTrajectory], values: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Return weight * summed cross-entropy of the turns, in nats, shape ``(trajectories,)``."""
        return torch.stack([_loss(item, rows) for item, rows in zip(items, values, strict=True)])


def _loss(item: LabeledTrajectory, values: Sequence[torch.Tensor]) -> torch.Tensor:
    turns = torch.cat(list(values)).split([len(t) for row in item.rows for t in row.predicted])
    logits = torch.stack([turn[-1] for turn in turns])
    return -item.weight * logsigmoid(logits if item.success else -logits).sum()
