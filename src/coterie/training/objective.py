"""What a training minimises. The loop knows only this protocol; each objective is one small file.

An objective sees *items*: the smallest things that can't be taken apart (a row for SFT, a pair of
rows for DPO). The loop batches items, computes the log-probs of their rows' targets, and minimises

    sum of the items' losses / sum of the items' counts

over the whole optimiser step. The denominator is one number for all micro-batches and ranks, so how
a step is split changes nothing.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from coterie.trajectories.row import Row

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


class Objective(Protocol[Item_contra]):
    """Turns the log-probs of an item's targets into its loss.

    Examples: :class:`~coterie.training.sft.SFT`, :class:`~coterie.training.dpo.DPO`.
    """

    name: str

    def rows(self, item: Item_contra) -> Sequence[Row]:
        """The sequences whose log-probs the item needs."""
        ...

    def count(self, item: Item_contra) -> float:
        """The item's share of the denominator, >= 0; an item that counts 0 is not trained."""
        ...

    def group(self, item: Item_contra) -> str:
        """Items of one group share beginnings and come into one step together; "" is no group."""
        ...

    def losses(
        self, items: Sequence[Item_contra], logprobs: Sequence[Sequence[torch.Tensor]]
    ) -> torch.Tensor:
        """Summed loss of each item, shape ``(items,)``, float32, in nats.

        ``logprobs[i][j]`` are those of the targets of row ``j`` of item ``i``, in order. A target at
        a row's first token has no log-prob, for nothing comes before it.
        """
        ...
