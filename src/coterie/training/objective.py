"""What a training minimises. The loop knows only this protocol; each objective is one small file.

An objective sees *items*: the smallest things that can't be taken apart (a row for SFT, a pair of
rows for DPO). The loop batches items, computes the log-probs of their rows' targets, and minimises

    sum of the items' losses / sum of the items' counts

over the whole optimiser step. The denominator is one number for all micro-batches and ranks, so how
a step is split changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch

from coterie.training.measures import Measure
from coterie.trajectories.row import Row

Reads = Literal["logprobs", "entropies", "shown entropies", "values", "differences", "states"]
"""What an objective is given of each target token.

* ``logprobs``: its log-prob, shape ``(targets,)``. ``entropies``: that and the entropy of the distribution that it is
  of, ``(targets, 2)``; ``shown entropies`` have no gradient.
* ``values``: what a value head says at it, with the token seen; ``states``: what it says before it, of the state in
  which the token was chosen. Of ``differences`` of values the head's bias cancels, and is not trained: its gradient
  is nothing but rounding, which Adam would make steps of.
"""
OF_A_HEAD: tuple[Reads, ...] = ("values", "differences", "states")
TargetValue = Literal["logprobs", "advantages", "reference", "values", "returns", "old"]
"""What rows may carry for each target besides its id; fields of :class:`~coterie.trajectories.row.Row`."""
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


class Objective(Protocol[Item_contra]):
    """Turns the log-probs, or a head's values, of an item's targets into its loss.

    Examples: :class:`~coterie.training.sft.SFT`, :class:`~coterie.training.dpo.DPO`, and with values
    :class:`~coterie.training.regression.Regression`.
    """

    name: str
    reads: Reads
    needs: Sequence[TargetValue]

    def rows(self, item: Item_contra) -> Sequence[Row]:
        """The sequences whose log-probs (or values) the item needs."""
        ...

    def count(self, item: Item_contra) -> float:
        """The item's share of the denominator, >= 0; an item that counts 0 is not trained."""
        ...

    def group(self, item: Item_contra) -> str:
        """Items of one group share beginnings and come into one step together; "" is not a group."""
        ...

    def losses(
        self, items: Sequence[Item_contra], read: Sequence[Sequence[torch.Tensor]], /
    ) -> torch.Tensor:
        """Summed loss of each item, shape ``(items,)``, float32, in nats.

        ``read[i][j]`` is what it reads of the targets of row ``j`` of item ``i``, in order.
        A target at a row's first token has nothing, for nothing comes before it.
        """
        ...


@runtime_checkable
class Tempered(Protocol):
    """An objective on tokens that were sampled: it reads the distribution that they were sampled from."""

    @property
    def temperature(self) -> float: ...


@runtime_checkable
class Measured(Protocol[Item_contra]):
    """An objective that tells more of a step than its loss."""

    def measures(
        self, items: Sequence[Item_contra], read: Sequence[Sequence[torch.Tensor]], /
    ) -> Mapping[str, Measure]:
        """Numbers of the trained tokens of these items, by name; ``read`` as for ``losses``, without gradients."""
        ...
