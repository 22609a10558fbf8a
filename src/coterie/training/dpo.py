"""Direct preference optimisation on pairs with stored reference log-probs.

Per pair, with c and r the log-ratios log p / p_ref of its sides, summed over target tokens:

    loss = -(1 - s) log sigmoid(beta (c - r)) - s log sigmoid(-beta (c - r))  -  nll * log p(chosen) / n

s is label smoothing (Mitchell 2023, conservative DPO); s = 0 is Rafailov et al. 2023, equation 7.
``normalise`` takes the mean over a side's tokens instead (Meng et al. 2024, with a reference), or the sum over its
turns of the mean over a turn's tokens. The latter, on whole trajectories with the reference solution in the context,
trains the step critic of SWEET-RL (arXiv 2503.15478, equations 2 and 3): a turn's mean log-ratio is its advantage. The
last term comes from iterative RPO (Pang et al. 2024, equation 1); n is the number of the chosen side's tokens.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from coterie.errors import UserError
from coterie.record.rows import Pair, Row
from coterie.training.objective import Reads, TargetValue
from coterie.training.settings import DPOSettings
from coterie.training.sides import pair_weight, side_statistic


class DPO:
    """DPO on :class:`Pair` items with a ``reference``; a pair counts its weight."""

    name = "dpo"
    reads: Reads = "logprobs"
    needs: Sequence[TargetValue] = ()

    def __init__(self, settings: DPOSettings) -> None:
        self.settings = settings

    def rows(self, item: Pair) -> Sequence[Row]:
        return (*item.chosen, *item.rejected)

    def count(self, item: Pair) -> float:
        """Return the pair's weight; 0 if a side has no targets, or if the sides are equal."""
        weight = pair_weight(item)
        if weight and item.reference is None:
            raise UserError(
                f"pair {item.name} has no reference log-probs",
                "compute them first: coterie.training.reference.with_reference",
            )
        return weight

    def group(self, item: Pair) -> str:
        return item.group

    def losses(
        self, items: Sequence[Pair], logprobs: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Return weight * loss, shape ``(pairs,)``."""
        return torch.stack(
            [self._loss(item, rows) for item, rows in zip(items, logprobs, strict=True)]
        )

    def _loss(self, pair: Pair, logprobs: Sequence[torch.Tensor]) -> torch.Tensor:
        assert pair.reference is not None, "count() raises for a pair without a reference"
        s = self.settings
        chosen, rejected = logprobs[: len(pair.chosen)], logprobs[len(pair.chosen) :]
        better = side_statistic(pair.chosen, chosen, s.normalise) - pair.reference[0]
        worse = side_statistic(pair.rejected, rejected, s.normalise) - pair.reference[1]
        margin = s.beta * (better - worse)
        loss = -logsigmoid(margin)
        if s.label_smoothing:
            loss = (1 - s.label_smoothing) * loss - s.label_smoothing * logsigmoid(-margin)
        if s.nll:
            loss = loss - s.nll * side_statistic(pair.chosen, chosen, "tokens")
        return pair.weight * loss
