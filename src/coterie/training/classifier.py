"""A value function: after each own turn, does the trajectory succeed? A head's logit, cross-entropy.

Per trajectory with label y, and v the value at the last token of each of its turns:

    loss = - sum over turns of (y log sigmoid(v) + (1 - y) log sigmoid(-v))

divided by the number of turns of the whole step. SWEET-RL (arXiv 2503.15478, figure 3a) compares
its critic with it.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from coterie.errors import UserError
from coterie.training.objective import Reads, TargetValue
from coterie.trajectories.labeled_trajectory import LabeledTrajectory
from coterie.trajectories.row import Row


class Classifier:
    """The item is a :class:`LabeledTrajectory` trajectory; each turn of one of weight 1 counts 1."""

    name = "classifier"
    reads: Reads = "values"
    needs: Sequence[TargetValue] = ()

    def rows(self, item: LabeledTrajectory) -> Sequence[Row]:
        return item.rows

    def count(self, item: LabeledTrajectory) -> float:
        """Weighted number of turns that have something before them."""
        if not item.weight >= 0:  # NaN too
            raise UserError(
                f"trajectory {item.name}: a value function needs a weight >= 0, got {item.weight}",
                "drop the trajectory, or fix its weight",
            )
        return item.weight * sum(len(row.predicted) for row in item.rows)

    def group(self, item: LabeledTrajectory) -> str:
        return item.group

    def losses(
        self, items: Sequence[LabeledTrajectory], values: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Per trajectory, weight * summed cross-entropy of its turns, in nats; ``(trajectories,)``."""
        return torch.stack([_loss(item, rows) for item, rows in zip(items, values, strict=True)])


def _loss(item: LabeledTrajectory, values: Sequence[torch.Tensor]) -> torch.Tensor:
    turns = torch.cat(list(values)).split([len(t) for row in item.rows for t in row.predicted])
    logits = torch.stack([turn[-1] for turn in turns])
    return -item.weight * logsigmoid(logits if item.success else -logits).sum()
