"""Value loss of PPO's critic, a value head that predicts the return before each sampled token.

Per trained token, with V the head's value before it, V_old that value when the row was made, and R its return:

    loss = max((V - R)², (V_old + clip(V - V_old, -clip, clip) - R)²) / 2

The clip comes from OpenAI's baselines of PPO (2017), not from the paper. The mean is over all trained tokens of the
step. The value of a state is read at the token before the sampled token, so it depends only on the context.
"""

from collections.abc import Sequence

import torch

from coterie.record.rows import Row
from coterie.training.measures import Measure
from coterie.training.objective import Reads, TargetValue
from coterie.training.on_rows import OnRows
from coterie.training.settings import ValueLossSettings
from coterie.training.targets import at_predicted


class ValueLoss(OnRows):
    """Value loss on :class:`Row` items with ``values`` and ``returns``; a target counts the weight of its row."""

    name = "value loss"
    reads: Reads = "states"
    needs: Sequence[TargetValue] = ("values", "returns")
    refuses = ("a value function", "drop the row, or fix its weight")

    def __init__(self, settings: ValueLossSettings | None = None) -> None:
        self.settings = settings or ValueLossSettings()

    def losses(
        self, items: Sequence[Row], values: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Return weight * sum over the trained tokens of each row, shape ``(rows,)``."""
        clip = self.settings.clip
        sums = [
            row.weight * torch.maximum(*_errors(row, tokens, clip)).sum() / 2
            for row, (tokens,) in zip(items, values, strict=True)
        ]
        return torch.stack(sums)

    def measures(
        self, items: Sequence[Row], values: Sequence[Sequence[torch.Tensor]]
    ) -> dict[str, Measure]:
        """Return measures of all trained tokens of the rows.

        ``value`` (with extremes); ``value_error``: (V - R)²; ``value_clip_share``: share of clipped tokens.
        """
        errors = [
            torch.stack(_errors(row, tokens, self.settings.clip))
            for row, (tokens,) in zip(items, values, strict=True)
        ]
        free, clipped = torch.cat(errors, -1)
        return {
            "value": Measure(torch.cat([tokens for (tokens,) in values]), extremes=True),
            "value_error": Measure(free),
            "value_clip_share": Measure(clipped > free),
        }


def _errors(row: Row, values: torch.Tensor, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    old, returns = at_predicted(row, "values", values), at_predicted(row, "returns", values)
    near = old + (values - old).clamp(-clip, clip)
    return (values - returns).square(), (near - returns).square()
