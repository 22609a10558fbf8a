"""PPO's critic: a value head learns what is still to come from the state before each sampled token.

Per trained token, with V the head's value before it, V_old what that was when the row was made, and R its return:

    loss = max((V - R)², (V_old + clip(V - V_old, -clip, clip) - R)²) / 2

As in OpenAI's baselines of PPO (2017), which the paper does not have. The mean is over all trained tokens of the step.
A state's value is read at the token before the one that was chosen in it: it has seen neither that token nor anything
after it, and no value is read at what was not sampled.
"""

from collections.abc import Sequence

import torch

from coterie.training.measures import Measure
from coterie.training.objective import Reads, TargetValue
from coterie.training.on_rows import OnRows
from coterie.training.settings import ValueLossSettings
from coterie.training.targets import at_predicted
from coterie.trajectories.row import Row


class ValueLoss(OnRows):
    """The item is a :class:`Row` with ``values`` and ``returns`` of its targets; a target counts its row's weight."""

    name = "value loss"
    reads: Reads = "states"
    needs: Sequence[TargetValue] = ("values", "returns")
    refuses = ("a value function", "drop the row, or fix its weight")

    def __init__(self, settings: ValueLossSettings | None = None) -> None:
        self.settings = settings or ValueLossSettings()

    def losses(
        self, items: Sequence[Row], values: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Per row, weight * sum over its trained tokens; shape ``(rows,)``."""
        clip = self.settings.clip
        sums = [
            row.weight * torch.maximum(*_errors(row, tokens, clip)).sum() / 2
            for row, (tokens,) in zip(items, values, strict=True)
        ]
        return torch.stack(sums)

    def measures(
        self, items: Sequence[Row], values: Sequence[Sequence[torch.Tensor]]
    ) -> dict[str, Measure]:
        """Of all trained tokens of these rows: ``value`` (with extremes), ``value_error``, which is (V - R)², and
        ``value_clip_share``, of tokens that the clip keeps from moving."""
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
