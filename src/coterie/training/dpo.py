"""Direct preference optimisation on pairs with stored reference log-probs.

Per pair, with c and r the summed log-ratios log p / p_ref of the target tokens of its sides:

    loss = -(1 - s) log sigmoid(beta (c - r)) - s log sigmoid(-beta (c - r))  -  nll * log p(chosen) / n

s is label smoothing (Mitchell 2023, conservative DPO); s = 0 is Rafailov et al. 2023, equation 7.
``length_normalised`` divides c and r by their numbers of tokens first (Meng et al. 2024, with a
reference). The last term, n being the chosen side's tokens, is that of iterative RPO (Pang et al.
2024, equation 1).
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from coterie.config.settings import Settings, key
from coterie.errors import UserError
from coterie.trajectories.pair import Pair
from coterie.trajectories.row import Row


class DPOSettings(Settings):
    """The numbers of the objective."""

    beta: float = key(0.1, "how strongly the policy is held to the reference", gt=0)
    label_smoothing: float = key(0.0, "assumed share of pairs that are the wrong way", ge=0, lt=0.5)
    length_normalised: bool = key(False, "compare mean log-ratios of tokens, not their sums")
    nll: float = key(0.0, "weight of the chosen side's mean -log p (iterative RPO: 1)", ge=0)


class DPO:
    """The item is a :class:`Pair` with its ``reference``; each pair of weight 1 counts 1."""

    name = "dpo"

    def __init__(self, settings: DPOSettings) -> None:
        self.settings = settings

    def rows(self, item: Pair) -> Sequence[Row]:
        """Those of the chosen side, then those of the rejected one."""
        return (*item.chosen, *item.rejected)

    def count(self, item: Pair) -> float:
        """The pair's weight; 0 if a side has no targets, or if the sides are equal."""
        if not item.weight >= 0:  # NaN too
            raise UserError(
                f"pair {item.name}: DPO needs a weight >= 0, got {item.weight}",
                "drop the pair, or turn it round",
            )
        if not _tokens(item.chosen) or not _tokens(item.rejected) or item.equal_sides:
            return 0.0
        if item.reference is None:
            raise UserError(
                f"pair {item.name} has no reference log-probs",
                "compute them first: coterie.training.reference.with_reference",
            )
        return item.weight

    def group(self, item: Pair) -> str:
        """The tree that the pair is from."""
        return item.group

    def losses(
        self, items: Sequence[Pair], logprobs: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Per pair, weight * loss; shape ``(pairs,)``."""
        return torch.stack(
            [self._loss(item, rows) for item, rows in zip(items, logprobs, strict=True)]
        )

    def _loss(self, pair: Pair, logprobs: Sequence[torch.Tensor]) -> torch.Tensor:
        assert pair.reference is not None, "a pair without reference counts nothing"
        s = self.settings
        chosen = torch.cat(list(logprobs[: len(pair.chosen)]))
        rejected = torch.cat(list(logprobs[len(pair.chosen) :]))
        ratios = [
            (side.sum() - reference) / (len(side) if s.length_normalised else 1)
            for side, reference in zip((chosen, rejected), pair.reference, strict=True)
        ]
        margin = s.beta * (ratios[0] - ratios[1])
        loss = -logsigmoid(margin)
        if s.label_smoothing:
            loss = (1 - s.label_smoothing) * loss - s.label_smoothing * logsigmoid(-margin)
        if s.nll:
            loss = loss - s.nll * chosen.mean()
        return pair.weight * loss


def _tokens(side: Sequence[Row]) -> int:
    """Targets that have something before them."""
    return sum(row.target_count - bool(row.targets and row.targets[0].start == 0) for row in side)
