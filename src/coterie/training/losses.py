"""Losses: SFT, DPO, IPO, SimPO, ORPO, reward and value models, and PPO's critic.

**DPO.** Per pair, with c and r the log-ratios log p / p_ref of its sides, summed over target tokens:

    loss = -(1 - s) log sigmoid(beta (c - r)) - s log sigmoid(-beta (c - r))  -  nll * log p(chosen) / n

s is label smoothing (Mitchell 2023, conservative DPO); s = 0 is Rafailov et al. 2023, equation 7.
``reduction`` takes the mean over a side's tokens instead (Meng et al. 2024, with a reference), or the sum over its
turns of the mean over a turn's tokens. The latter, on whole trajectories with the reference solution in the context,
trains the step critic of SWEET-RL (arXiv 2503.15478, equations 2 and 3): a turn's mean log-ratio is its advantage. The
last term comes from iterative RPO (Pang et al. 2024, equation 1); n is the number of the chosen side's tokens. Policy
and reference use the same reduction, so their difference is the reduction of the log-ratios.

**IPO, SimPO, ORPO.** Per pair, with c and r the mean log-ratios of the sides' tokens (``ipo``), or their mean log-probs
without a reference:

    ipo     (c - r - 1 / (2 beta))²
    simpo   -log sigmoid(beta (c - r) - gamma)
    orpo    -beta * log sigmoid(log odds(c) - log odds(r)),   odds(x) = exp(x) / (1 - exp(x))

plus the NLL term of DPO, whose weight is 1 for ORPO. Azar et al. 2023 (IPO, arXiv 2310.12036, equation 17; the mean, as
in TRL, is from the authors' experiments), Meng et al. 2024 (SimPO, arXiv 2405.14734, equation 6; ``label_smoothing``
as for DPO), Hong et al. 2024 (ORPO, arXiv 2403.07691, equations 6 and 7; beta is its lambda).

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import torch
from accelerate.utils import gather_object
from torch.nn.functional import logsigmoid

from coterie.errors import UserError
from coterie.record.rows import LabeledTrajectory, Pair, Row
from coterie.training.settings import DPOSettings, Reads, Reduction, ValueLossSettings


@dataclass(frozen=True, slots=True)
class Measure:
    """Values of one metric, one per token."""

    values: torch.Tensor
    extremes: bool = False
    """True to report the minimum and maximum as well."""


@dataclass(slots=True)
class Tally:
    """Measures of a step so far, averaged over its tokens, so that micro-batches and ranks change only rounding."""

    parts: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """``[sum, count]`` or ``[sum, count, minimum, maximum]`` of each micro-batch, by name."""

    def add(self, measures: Mapping[str, Measure]) -> None:
        for name, measure in measures.items():
            values = measure.values.float()
            # An empty tensor has no minimum, and no share of the mean.
            if not values.numel():
                continue
            # Sums and counts, since means of parts of different sizes do not add up. They stay on
            # the device until the end of the step, so that no pass waits for them.
            statistics = [values.sum(), values.new_tensor(values.numel())]
            statistics += [values.min(), values.max()] if measure.extremes else []
            self.parts.setdefault(name, []).append(torch.stack(statistics))

    def result(self) -> dict[str, float]:
        """Return the means by name, with ``NAME_min`` and ``NAME_max`` for extremes, and clear the tally.

        Every rank calls this and gets the same result.
        """
        # `gather_object` joins the lists of all ranks, so each rank gives a list with one element.
        local_parts = [{name: torch.stack(parts).tolist() for name, parts in self.parts.items()}]
        self.parts.clear()
        everywhere: dict[str, list[list[float]]] = {}
        for rank_parts in gather_object(local_parts):
            for name, parts in rank_parts.items():
                everywhere.setdefault(name, []).extend(parts)
        result: dict[str, float] = {}
        for name, parts in sorted(everywhere.items()):
            total, count, *extremes = zip(*parts, strict=True)
            result[name] = sum(total) / sum(count)
            if extremes:
                result[f"{name}_min"], result[f"{name}_max"] = min(extremes[0]), max(extremes[1])
        return result


TargetValue = Literal["logprobs", "advantages", "reference", "values", "returns", "old", "teacher"]
"""Optional fields of :class:`~coterie.record.rows.Row` with one value per target."""
OF_A_HEAD: tuple[Reads, ...] = ("values", "differences", "states")
Values = Sequence[Sequence[torch.Tensor]]
"""What an objective reads, by item and row."""
Item = TypeVar("Item")
"""Smallest unit of a batch: a :class:`Row`, :class:`Pair` or :class:`LabeledTrajectory`."""


class Objective(ABC, Generic[Item]):
    """Loss of an item from the log-probs, or a head's values, of its targets.

    The trainer minimizes the sum of the items' losses over the sum of their counts, over the whole optimizer step. The
    denominator is the same for all micro-batches and ranks, so the result does not depend on how a step is split.
    """

    name = ""
    reads: Reads = "logprobs"
    needs: Sequence[TargetValue] = ()

    @property
    def temperature(self) -> float:
        """Temperature of the log-probs that the loss reads."""
        return 1.0

    def rows(self, item: Any) -> Sequence[Row]:
        """Return the rows whose log-probs (or values) the item needs."""
        if isinstance(item, Pair):
            return (*item.chosen, *item.rejected)
        return (item,) if isinstance(item, Row) else item.rows

    def prepare_step(
        self, items: Sequence[Item], score: Callable[[Sequence[Row]], Sequence[Sequence[float]]]
    ) -> None:
        """Compute what the losses of a step's items share, on all ranks, before any of them.

        ``score`` computes the log-probs (nats) of rows' targets under the current weights.
        """

    @abstractmethod
    def count(self, item: Item) -> float:
        """Return the item's share of the denominator, >= 0; an item that counts 0 is dropped."""

    @abstractmethod
    def loss(self, item: Item, read: Sequence[torch.Tensor], /) -> torch.Tensor:
        """Return the weighted, summed loss of an item, a float32 scalar in nats.

        ``read[j]`` has the values of the targets of its row ``j``, in order, without a target at the first token.
        """

    def losses(self, items: Sequence[Item], read: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        """Return the loss of each item, shape ``(items,)``."""
        return torch.stack(
            [self.loss(*item_and_logprobs) for item_and_logprobs in zip(items, read, strict=True)]
        )

    def measures(
        self, items: Sequence[Item], read: Sequence[Sequence[torch.Tensor]]
    ) -> Mapping[str, Measure]:
        """Return measures of the items' trained tokens by name; ``read`` as for ``losses``, without gradients."""
        return {}

    def facts(
        self, items: Sequence[Item], read: Values, measures: Mapping[str, Measure]
    ) -> Sequence[Mapping[str, torch.Tensor]]:
        """Return numbers of each item or of its tokens for the record; ``measures`` belong to the same items."""
        return [{} for _ in items]

    def weight(self, item: Any) -> float:
        """Return the item's weight. Raises :class:`UserError` for a negative weight or NaN."""
        # Not `weight < 0`, which is False for NaN.
        if not item.weight >= 0:
            name = getattr(item, "name", "") or getattr(item, "origin", "") or "?"
            raise UserError(
                f"{name} has weight {item.weight}; the objective {self.name} needs a weight >= 0",
                "drop it, or use what a bad example needs: negative advantages, or the rejected side of a pair",
            )
        return float(item.weight)


class OnRows(Objective[Row]):
    """Objective with :class:`Row` items; a target counts the weight of its row."""

    def count(self, item: Row) -> float:
        return self.weight(item) * sum(map(len, item.predicted))


class OnTokens(OnRows):
    """Objective on rows whose loss is a scaled sum over tokens, computed for all rows of a micro-batch at once.

    Kernels take microseconds to launch, which for each row of a small model is a tenth of a step.
    """

    @abstractmethod
    def tokens(
        self, rows: Sequence[Row], values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, Measure]]:
        """Return the losses and measures of the rows' trained tokens, joined; ``values`` are what each row reads."""

    @abstractmethod
    def scale(self, row: Row) -> float:
        """Return the factor of the sum over a row's tokens."""

    def loss(self, item: Row, read: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.losses([item], [read])[0]

    def losses(self, items: Sequence[Row], read: Values) -> torch.Tensor:
        values = [of_row for (of_row,) in read]
        by_row = self.tokens(items, values)[0].split([len(of_row) for of_row in values])
        sums = [self.scale(row) * losses.sum() for row, losses in zip(items, by_row, strict=True)]
        return torch.stack(sums)

    def measures(self, items: Sequence[Row], read: Values) -> dict[str, Measure]:
        """Return the measures of :meth:`tokens`."""
        return self.tokens(items, [of_row for (of_row,) in read])[1]


class OnPairs(Objective[Pair]):
    """Objective with :class:`Pair` items; a pair counts its weight."""

    def count(self, item: Pair) -> float:
        """Return the pair's weight; 0 if a side has no targets, or if the sides are equal."""
        # The log-sigmoid of a pair with equal sides has no gradient, so its passes would be wasted.
        weight, sides = self.weight(item), (item.chosen, item.rejected)
        is_empty = any(not any(row.predicted for row in side) for side in sides)
        return 0.0 if is_empty or item.equal_sides else weight


def at_predicted(rows: Sequence[Row], name: TargetValue, like: torch.Tensor) -> torch.Tensor:
    """Return the rows' values of their predicted targets (``Row.predicted``), joined, like ``like``."""
    # The model predicts no first token, so a row's value of such a target is a placeholder.
    values = [value for row in rows for value in getattr(row, name)[row.unpredicted :]]
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def side_statistic(
    rows: Sequence[Row], values: Sequence[torch.Tensor], reduction: Reduction
) -> torch.Tensor:
    """Reduce a side's values of the target tokens (``Row.predicted``) to a scalar of their dtype.

    ``none``: sum over tokens. ``tokens``: mean over tokens. ``turns``: sum over turns of the mean over a turn's tokens.
    """
    tokens = torch.cat(list(values))
    if reduction == "none":
        return tokens.sum()
    if reduction == "tokens":
        return tokens.mean()
    # Each turn is in one row only, so the lengths of the rows' turns divide the joined tokens.
    turns = tokens.split([len(turn) for row in rows for turn in row.predicted])
    return torch.stack([turn.mean() for turn in turns]).sum()


class SFT(OnRows):
    """Weighted mean of -log p over the target tokens of an optimizer step, on :class:`Row` items.

    A token has the same weight in any row, micro-batch or rank.
    """

    name = "sft"

    def loss(self, item: Row, read: Sequence[torch.Tensor]) -> torch.Tensor:
        return -item.weight * read[0].sum()


class DPO(OnPairs):
    """DPO, IPO, SimPO or ORPO on :class:`Pair` items, with a ``reference`` if ``settings.needs_reference``."""

    def __init__(self, settings: DPOSettings | None = None) -> None:
        self.settings = settings or DPOSettings()
        if self.settings.kind == "kto":
            raise UserError("kind=kto has a loss of single sides", "use the objective KTO")
        self.name = self.settings.kind

    def count(self, item: Pair) -> float:
        weight = super().count(item)
        if weight and item.reference is None and self.settings.needs_reference:
            raise UserError(
                f"pair {item.name} has no reference log-probs",
                "compute them first: coterie.with_reference",
            )
        return weight

    def log_ratios(
        self, item: Pair, read: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log p / p_ref of the chosen and of the rejected side, reduced by ``reduction``.

        Without a need for a reference, return log p of each side.
        """
        reference = item.reference if self.settings.needs_reference else (0.0, 0.0)
        assert reference is not None, "count() raises for a pair without a reference"
        # `rows` gives the rows of the chosen side first.
        chosen, rejected = read[: len(item.chosen)], read[len(item.chosen) :]
        return (
            side_statistic(item.chosen, chosen, self.settings.reduction) - reference[0],
            side_statistic(item.rejected, rejected, self.settings.reduction) - reference[1],
        )

    def measures(self, items: Sequence[Pair], read: Values) -> dict[str, Measure]:
        """Return measures of the pairs.

        ``margin`` of the implicit rewards; ``accuracy``: share of pairs with a positive margin; ``chosen_logprob``,
        reduced by ``reduction``.
        """
        facts = self.facts(items, read, {})
        margins, chosen = (torch.stack([f[name] for f in facts]) for name in ("margin", "chosen"))
        measures = {"margin": margins, "accuracy": margins > 0, "chosen_logprob": chosen}
        return {name: Measure(values) for name, values in measures.items()}

    def facts(
        self, items: Sequence[Pair], read: Values, measures: Mapping[str, Measure]
    ) -> list[dict[str, torch.Tensor]]:
        """Return the margin of the implicit rewards of each pair, and the reduced log-prob of each side."""
        facts = []
        for pair, of_pair in zip(items, read, strict=True):
            better, worse = self.log_ratios(pair, of_pair)
            reference = (pair.reference if self.settings.needs_reference else None) or (0.0, 0.0)
            sides = {"chosen": better + reference[0], "rejected": worse + reference[1]}
            facts.append({"margin": self.settings.beta * (better - worse), **sides})
        return facts

    def loss(self, item: Pair, read: Sequence[torch.Tensor]) -> torch.Tensor:
        s = self.settings
        # Rafailov et al. 2023, equation 7: beta times the difference of log-ratios is the margin of
        # the implicit rewards. `logsigmoid` stays finite where log(sigmoid) underflows.
        better, worse = self.log_ratios(item, read)
        margin = s.beta * (better - worse)
        if s.kind == "simpo":
            # The rewards must differ by a target margin (SimPO, equation 6).
            margin = margin - s.simpo_gamma
        loss = -logsigmoid(margin)
        if s.kind == "ipo":
            # The regression has an optimum at a finite margin, also for pairs without noise.
            loss = (better - worse - 1 / (2 * s.beta)).square()
        elif s.kind == "orpo":
            loss = -s.beta * logsigmoid(_log_odds(better) - _log_odds(worse))
        if s.label_smoothing:
            # Conservative DPO: with probability s the label of the pair is swapped.
            loss = (1 - s.label_smoothing) * loss - s.label_smoothing * logsigmoid(-margin)
        if s.nll_coef:
            # Iterative RPO, equation 1: keep the chosen side likely, which the margin alone does
            # not do.
            chosen_mean = side_statistic(item.chosen, read[: len(item.chosen)], "tokens")
            loss = loss - s.nll_coef * chosen_mean
        return item.weight * loss


class KTO(Objective[LabeledTrajectory]):
    """KTO on :class:`LabeledTrajectory` items with a ``reference``, such as the sides of pairs (:func:`unpair`).

    Its divergence is that of all mismatched completions of the step, however the step is split.
    """

    name = "kto"

    def __init__(self, settings: DPOSettings | None = None) -> None:
        self.settings = settings or DPOSettings(kind="kto")
        self.divergence = 0.0
        """Estimate of KL(p, p_ref) in the current step, in nats."""

    def count(self, item: LabeledTrajectory) -> float:
        """Return the item's weight; 0 without targets. Raises ``UserError`` without reference log-probs."""
        weight = self.weight(item) if any(row.predicted for row in item.rows) else 0.0
        if weight and item.reference is None:
            raise UserError(f"{item.name} has no reference log-probs", "compute them first")
        return weight

    def prepare_step(
        self,
        items: Sequence[LabeledTrajectory],
        score: Callable[[Sequence[Row]], Sequence[Sequence[float]]],
    ) -> None:
        matched = [item for item in items if item.mismatched]
        logprobs = score([item.mismatched[0] for item in matched])
        references = [item.reference[1] for item in matched if item.reference]
        ratios = [sum(row) - ref for row, ref in zip(logprobs, references, strict=True)]
        # An estimate from few samples may be negative, but a divergence is not.
        self.divergence = max(0.0, sum(ratios) / max(1, len(ratios)))

    def loss(self, item: LabeledTrajectory, read: Sequence[torch.Tensor]) -> torch.Tensor:
        assert item.reference is not None, "count() raises without a reference"
        ratio = side_statistic(item.rows, read, "none") - item.reference[0]
        margin = self.settings.beta * (ratio - self.divergence)
        # 1 - sigmoid(x) = sigmoid(-x), which does not round to 0 for a large x.
        return item.weight * (-margin if item.success else margin).sigmoid()

    def measures(
        self, items: Sequence[LabeledTrajectory], read: Sequence[Sequence[torch.Tensor]]
    ) -> dict[str, Measure]:
        """Return ``divergence``, which is constant in a step."""
        return {"divergence": Measure(torch.full((len(items),), self.divergence))}


def _log_odds(logprob: torch.Tensor) -> torch.Tensor:
    # Below 0, so that a side of probability 1 has finite odds. `expm1` is exact near 0.
    logprob = logprob.clamp(max=-1e-6)
    return logprob - (-logprob.expm1()).log()


class Regression(OnPairs):
    """Reward model loss on :class:`Pair` items, without a reference."""

    name = "regression"
    reads: Reads = "differences"

    def loss(self, item: Pair, read: Sequence[torch.Tensor]) -> torch.Tensor:
        # The mean value of a linear head is its value of the mean hidden state (pooled regression).
        better = side_statistic(item.chosen, read[: len(item.chosen)], "tokens")
        worse = side_statistic(item.rejected, read[len(item.chosen) :], "tokens")
        return -item.weight * logsigmoid(better - worse)


class Classifier(Objective[LabeledTrajectory]):
    """Cross-entropy on :class:`LabeledTrajectory` trajectories; a turn counts the weight of its trajectory."""

    name = "classifier"
    reads: Reads = "values"

    def count(self, item: LabeledTrajectory) -> float:
        """Return the weighted number of turns, without a turn at a row's first token."""
        return self.weight(item) * sum(len(row.predicted) for row in item.rows)

    def loss(self, item: LabeledTrajectory, read: Sequence[torch.Tensor]) -> torch.Tensor:
        # Values of all target tokens `(tokens,)`, split into turns. The state after a turn is at
        # its last token, so only that value is used.
        turns = torch.cat(list(read)).split([len(t) for row in item.rows for t in row.predicted])
        logits = torch.stack([turn[-1] for turn in turns])
        # log(1 - sigmoid(v)) = log sigmoid(-v), so the label only changes the sign of the logit.
        return -item.weight * logsigmoid(logits if item.success else -logits).sum()


class ValueLoss(OnTokens):
    """Value loss on :class:`Row` items with ``values`` and ``returns``."""

    name = "value loss"
    reads: Reads = "states"
    needs: Sequence[TargetValue] = ("values", "returns")

    def __init__(self, settings: ValueLossSettings | None = None) -> None:
        self.settings = settings or ValueLossSettings()

    def scale(self, row: Row) -> float:
        return row.weight / 2

    def tokens(
        self, rows: Sequence[Row], values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, Measure]]:
        """Return the squared errors, and as measures:

        ``value`` (with extremes); ``value_error``: (V - R)²; ``value_clip_share``: share of clipped tokens.
        """
        joined, clip = torch.cat(list(values)), self.settings.clip
        # Old values and returns were computed when the rows were made, and have no gradient.
        old, returns = (at_predicted(rows, name, joined) for name in ("values", "returns"))
        near = old + (joined - old).clamp(-clip, clip)
        free, clipped = (joined - returns).square(), (near - returns).square()
        return torch.maximum(free, clipped), {
            "value": Measure(joined, extremes=True),
            "value_error": Measure(free),
            # Where the clipped error is larger, the loss does not depend on the value: no gradient.
            "value_clip_share": Measure(clipped > free),
        }
