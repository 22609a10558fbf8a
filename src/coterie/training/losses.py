"""Losses: SFT, DPO, reward and value models, and PPO's critic.

**DPO.** Per pair, with c and r the log-ratios log p / p_ref of its sides, summed over target tokens:

    loss = -(1 - s) log sigmoid(beta (c - r)) - s log sigmoid(-beta (c - r))  -  nll * log p(chosen) / n

s is label smoothing (Mitchell 2023, conservative DPO); s = 0 is Rafailov et al. 2023, equation 7.
``normalise`` takes the mean over a side's tokens instead (Meng et al. 2024, with a reference), or the sum over its
turns of the mean over a turn's tokens. The latter, on whole trajectories with the reference solution in the context,
trains the step critic of SWEET-RL (arXiv 2503.15478, equations 2 and 3): a turn's mean log-ratio is its advantage. The
last term comes from iterative RPO (Pang et al. 2024, equation 1); n is the number of the chosen side's tokens. Policy
and reference use the same reduction, so their difference is the reduction of the log-ratios.

**Reward model.** Per pair, with r+ and r- the mean values of the chosen and the rejected side:

    loss = -log sigmoid(r+ - r-)

The head's bias cancels and does not change. The mean value of a linear head equals its value of the mean hidden state,
so this is the regression head on pooled hidden states, a baseline of SWEET-RL's critic (arXiv 2503.15478, table 3).

**Value model.** Per trajectory with label y, and v the head's logit at the last token of each of its turns:

    loss = - sum over turns of (y log sigmoid(v) + (1 - y) log sigmoid(-v))

divided by the number of turns of the whole step. It is a baseline of SWEET-RL's critic (arXiv 2503.15478, figure 3a).

**PPO's critic.** Per trained token, with V the head's value before it, V_old that value when the row was made, and R
its return:

    loss = max((V - R)², (V_old + clip(V - V_old, -clip, clip) - R)²) / 2

The clip comes from OpenAI's baselines of PPO (2017), not from the paper. The mean is over all trained tokens of the
step. The value of a state is read at the token before the sampled token, so it depends only on the context.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from coterie.errors import UserError
from coterie.record.rows import LabeledTrajectory, Pair, Row
from coterie.training.objective import Measure, OnRows, Reads, TargetValue, at_predicted
from coterie.training.settings import DPOSettings, Normalise, ValueLossSettings


def side_statistic(
    rows: Sequence[Row], values: Sequence[torch.Tensor], normalise: Normalise
) -> torch.Tensor:
    """Reduce a side's values to a scalar of their dtype.

    Args:
        rows: Rows of the side.
        values: Values of each row's target tokens (``Row.predicted``).
        normalise: ``none``: sum over tokens. ``tokens``: mean over tokens. ``turns``: sum over turns of the mean over a
            turn's tokens (SWEET-RL, arXiv 2503.15478, equations 2 and 3).
    """
    tokens = torch.cat(list(values))
    if normalise == "none":
        return tokens.sum()
    if normalise == "tokens":
        return tokens.mean()
    turns = tokens.split([len(turn) for row in rows for turn in row.predicted])
    return torch.stack([turn.mean() for turn in turns]).sum()


def pair_weight(pair: Pair) -> float:
    """Return the pair's weight; 0 if a side has no targets, or if the sides are equal.

    Raises :class:`UserError` for a negative weight or NaN.
    """
    if not pair.weight >= 0:  # NaN too
        raise UserError(
            f"pair {pair.name} has weight {pair.weight}; a pair needs a weight >= 0",
            "drop the pair, or swap its sides",
        )
    is_empty = any(not any(row.predicted for row in side) for side in (pair.chosen, pair.rejected))
    return 0.0 if is_empty or pair.equal_sides else pair.weight


class SFT(OnRows):
    """Weighted mean of -log p over the target tokens of an optimizer step, on :class:`Row` items.

    A token has the same weight in any row, micro-batch or rank.
    """

    name = "sft"
    reads: Reads = "logprobs"
    refuses = ("SFT", "drop the row, or use an objective that learns from bad rows (pairs)")
    needs: Sequence[TargetValue] = ()

    def losses(
        self, items: Sequence[Row], logprobs: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Return weight * sum of -log p, shape ``(rows,)``."""
        sums = [-row.weight * tokens.sum() for row, (tokens,) in zip(items, logprobs, strict=True)]
        return torch.stack(sums)


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


class Regression:
    """Reward model loss on :class:`Pair` items, without a reference; a pair counts its weight."""

    name = "regression"
    reads: Reads = "differences"
    needs: Sequence[TargetValue] = ()

    def rows(self, item: Pair) -> Sequence[Row]:
        return (*item.chosen, *item.rejected)

    def count(self, item: Pair) -> float:
        return pair_weight(item)

    def group(self, item: Pair) -> str:
        return item.group

    def losses(
        self, items: Sequence[Pair], values: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Return weight * loss, shape ``(pairs,)``."""
        return torch.stack(
            [_pair_loss(item, rows) for item, rows in zip(items, values, strict=True)]
        )


def _pair_loss(pair: Pair, values: Sequence[torch.Tensor]) -> torch.Tensor:
    chosen, rejected = values[: len(pair.chosen)], values[len(pair.chosen) :]
    better = side_statistic(pair.chosen, chosen, "tokens")
    worse = side_statistic(pair.rejected, rejected, "tokens")
    return -pair.weight * logsigmoid(better - worse)


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
        return torch.stack(
            [_trajectory_loss(item, rows) for item, rows in zip(items, values, strict=True)]
        )


def _trajectory_loss(item: LabeledTrajectory, values: Sequence[torch.Tensor]) -> torch.Tensor:
    turns = torch.cat(list(values)).split([len(t) for row in item.rows for t in row.predicted])
    logits = torch.stack([turn[-1] for turn in turns])
    return -item.weight * logsigmoid(logits if item.success else -logits).sum()


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
