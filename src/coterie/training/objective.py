"""Protocol of an objective: the loss of a batch of items, and its metrics.

An objective has *items*, the smallest units of a batch (a row for SFT, a pair for DPO). The trainer batches items,
computes the log-probs of their rows' targets, and minimizes

    sum of the items' losses / sum of the items' counts

over the whole optimizer step. The denominator is the same for all micro-batches and ranks, so the result does not
depend on how a step is split.

Metrics are averaged over the tokens of a step in the same way: each micro-batch and each rank adds its own tokens to a
:class:`Tally`, with minimum and maximum where requested, so the split changes only rounding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch
from accelerate.utils import gather_object

from coterie.errors import UserError
from coterie.record.rows import Row


@dataclass(frozen=True, slots=True)
class Measure:
    """Values of one metric, one per token."""

    values: torch.Tensor
    extremes: bool = False
    """True to report the minimum and maximum as well."""


@dataclass(slots=True)
class Tally:
    """Measures of a step so far."""

    parts: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """``[sum, count]`` or ``[sum, count, minimum, maximum]`` of each micro-batch, by name."""

    def add(self, measures: Mapping[str, Measure]) -> None:
        """Add the measures of a micro-batch."""
        for name, measure in measures.items():
            values = measure.values.float()
            if not values.numel():
                continue
            statistics = [values.sum(), values.new_tensor(values.numel())]
            statistics += [values.min(), values.max()] if measure.extremes else []
            self.parts.setdefault(name, []).append(torch.stack(statistics))

    def result(self) -> dict[str, float]:
        """Return the means by name, with ``NAME_min`` and ``NAME_max`` for extremes, and clear the tally.

        Every rank calls this and gets the same result.
        """
        own = [{name: torch.stack(parts).tolist() for name, parts in self.parts.items()}]
        self.parts.clear()
        everywhere: dict[str, list[list[float]]] = {}
        for one in gather_object(own):
            for name, parts in one.items():
                everywhere.setdefault(name, []).extend(parts)
        result: dict[str, float] = {}
        for name, parts in sorted(everywhere.items()):
            total, count, *extremes = zip(*parts, strict=True)
            result[name] = sum(total) / sum(count)
            if extremes:
                result[f"{name}_min"], result[f"{name}_max"] = min(extremes[0]), max(extremes[1])
        return result


TargetValue = Literal["logprobs", "advantages", "reference", "values", "returns", "old"]
"""Optional fields of :class:`~coterie.record.rows.Row` with one value per target."""

MEANINGS: dict[TargetValue, str] = {
    "logprobs": "the log-probs of sampling (unavailable after a change of the context)",
    "advantages": "advantages",
    "reference": "log-probs under the reference",
    "values": "values of the states before them, computed when the row was made",
    "returns": "returns",
    "old": "log-probs that the trainer computes under the sampling weights",
}

Item = TypeVar("Item")

Reads = Literal["logprobs", "entropies", "shown entropies", "values", "differences", "states"]
"""Kind of values that an objective reads at each target token.

* ``logprobs``: log-prob of the token, shape ``(targets,)``.
* ``entropies``: log-prob, and entropy of the token's distribution, ``(targets, 2)``; ``shown entropies``: without a
  gradient.
* ``values``: the value head's output at the token. ``states``: its output before the token.
* ``differences``: as ``values``, for a loss on differences. The head's bias cancels and is frozen: its gradient would
  be pure rounding error, which Adam would amplify.
"""

Item_contra = TypeVar("Item_contra", contravariant=True)


class Objective(Protocol[Item_contra]):
    """Loss of an item from the log-probs, or a head's values, of its targets.

    Examples: :class:`~coterie.training.losses.SFT`, :class:`~coterie.training.losses.DPO`, and with values
    :class:`~coterie.training.losses.Regression`.
    """

    name: str
    reads: Reads
    needs: Sequence[TargetValue]

    def rows(self, item: Item_contra) -> Sequence[Row]:
        """Return the rows whose log-probs (or values) the item needs."""
        ...

    def count(self, item: Item_contra) -> float:
        """Return the item's share of the denominator, >= 0; an item that counts 0 is dropped."""
        ...

    def group(self, item: Item_contra) -> str:
        """Return the group of the item, "" for none; items of a group share prefixes and are drawn together."""
        ...

    def losses(
        self, items: Sequence[Item_contra], read: Sequence[Sequence[torch.Tensor]], /
    ) -> torch.Tensor:
        """Return the summed loss of each item, shape ``(items,)``, float32, in nats.

        ``read[i][j]`` has the values of the targets of row ``j`` of item ``i``, in order, without a target at the row's
        first token.
        """
        ...


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


OF_A_HEAD: tuple[Reads, ...] = ("values", "differences", "states")


@runtime_checkable
class Tempered(Protocol):
    """Objective that reads log-probs at the temperature of sampling."""

    @property
    def temperature(self) -> float: ...


@runtime_checkable
class Measured(Protocol[Item_contra]):
    """Objective with metrics of its own."""

    def measures(
        self, items: Sequence[Item_contra], read: Sequence[Sequence[torch.Tensor]], /
    ) -> Mapping[str, Measure]:
        """Return measures of the items' trained tokens by name; ``read`` as for ``losses``, without gradients."""
        ...


class OnRows:
    """Objective with :class:`Row` items; a row without targets, or of weight 0, counts 0."""

    refuses: tuple[str, str]
    """Name of the objective and fix for a negative weight, for the error message."""

    def rows(self, item: Row) -> Sequence[Row]:
        return (item,)

    def count(self, item: Row) -> float:
        """Return the weighted number of targets, without a target at the first token."""
        if not item.weight >= 0:  # NaN too
            name, todo = self.refuses
            raise UserError(
                f"row {item.origin or '?'} has weight {item.weight}; {name} needs a weight >= 0",
                todo,
            )
        return item.weight * sum(map(len, item.predicted))

    def group(self, item: Row) -> str:
        return ""
