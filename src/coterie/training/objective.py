"""Protocol of an objective that a trainer minimizes.

An objective has *items*, the smallest units of a batch (a row for SFT, a pair for DPO). The trainer batches items,
computes the log-probs of their rows' targets, and minimizes

    sum of the items' losses / sum of the items' counts

over the whole optimizer step. The denominator is the same for all micro-batches and ranks, so the result does not
depend on how a step is split.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch

from coterie.record.rows import Row
from coterie.training.measures import Measure

Reads = Literal["logprobs", "entropies", "shown entropies", "values", "differences", "states"]
"""Kind of values that an objective reads at each target token.

* ``logprobs``: log-prob of the token, shape ``(targets,)``.
* ``entropies``: log-prob, and entropy of the token's distribution, ``(targets, 2)``; ``shown entropies``: without a
  gradient.
* ``values``: the value head's output at the token. ``states``: its output before the token.
* ``differences``: as ``values``, for a loss on differences. The head's bias cancels and is frozen: its gradient would
  be pure rounding error, which Adam would amplify.
"""
OF_A_HEAD: tuple[Reads, ...] = ("values", "differences", "states")
TargetValue = Literal["logprobs", "advantages", "reference", "values", "returns", "old"]
"""Optional fields of :class:`~coterie.record.rows.Row` with one value per target."""
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


class Objective(Protocol[Item_contra]):
    """Loss of an item from the log-probs, or a head's values, of its targets.

    Examples: :class:`~coterie.training.sft.SFT`, :class:`~coterie.training.dpo.DPO`, and with values
    :class:`~coterie.training.regression.Regression`.
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
