"""Which items can be trained, the order in which an epoch sees them, and how a step is split.

A step is ``batch_rows`` items drawn at random without replacement, so its statistics do not depend
on lengths; items of one group (pairs of one tree) are drawn together, so that what they share is
computed once. The order is a function of (seed, epoch): a resumed training draws the same one.

Within a step the rows are packed into tries by the cost rule of :mod:`coterie.models.packing`, and items whose rows are
in one trie form a *family*. Families are sorted by length and cut into micro-batches of at most
``tokens_per_microbatch`` padded tokens, so that padding and passes cost least; that changes memory and speed, not
results.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from coterie.errors import UserError
from coterie.models.splitting import Family, Splitter
from coterie.models.trie import Ids
from coterie.training.objective import Item, Objective
from coterie.training.targets import check_targets


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """The items that can be trained, in the order given, and how many can't."""

    items: Sequence[Item]
    groups: Sequence[str]
    """Which items are drawn together; "" is by itself."""
    sequences: Sequence[Sequence[Ids]]
    targets: Sequence[int]
    """How many targets each item has, in all its rows."""
    counts: Sequence[float]
    """Each item's share of the denominator of its step."""
    names: Sequence[str]
    """Where each item came from, for messages."""
    too_long: int
    """Items left out because a row is longer than the limit."""
    empty: int
    """Items left out because they count 0 (no targets, no weight, equal sides)."""

    @property
    def tokens(self) -> int:
        return sum(len(ids) for sequences in self.sequences for ids in sequences)


def usable(items: Sequence[Item], objective: Objective[Item], max_length: int) -> Batch[Item]:
    """Leave out (and count) items that can't be trained.

    Raises :class:`UserError` if none is left, and for rows that are left without the values that the objective needs
    (one that is too long has none: no pass computes them).
    """
    groups = [objective.rows(item) for item in items]
    lengths = [max((len(row.ids) for row in group), default=0) for group in groups]
    short = [i for i, length in enumerate(lengths) if length <= max_length]
    counts = {i: objective.count(items[i]) for i in short}
    kept = [i for i in short if counts[i] > 0]
    check_targets([groups[i] for i in kept], objective)
    too_long, empty = len(items) - len(short), len(short) - len(kept)
    if not kept:
        raise UserError(
            f"no row is left to train: {too_long} are longer than {max_length} tokens, "
            f"{empty} have no targets",
            "raise max_length, or give rows with targets",
        )
    return Batch(
        items=[items[i] for i in kept],
        groups=[objective.group(items[i]) for i in kept],
        sequences=[[row.ids for row in groups[i]] for i in kept],
        targets=[sum(row.target_count for row in groups[i]) for i in kept],
        counts=[counts[i] for i in kept],
        names=[groups[i][0].origin or f"number {i}" for i in kept],
        too_long=too_long,
        empty=empty,
    )


@dataclass(frozen=True, slots=True)
class Order:
    """The order of items over all epochs, in steps of ``batch_rows``."""

    groups: Sequence[str]
    seed: int
    batch_rows: int

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in which every item is seen once; the last may be smaller."""
        return -(-len(self.groups) // self.batch_rows)

    def steps(self, first: int, stop: int) -> Iterator[list[int]]:
        """Indices of the items of each step in ``range(first, stop)``, counted over all epochs."""
        order: list[int] = []
        for step in range(first, stop):
            epoch, place = divmod(step, self.steps_per_epoch)
            if not order or place == 0:
                order = self._of_epoch(epoch)
            yield order[place * self.batch_rows : (place + 1) * self.batch_rows]

    def _of_epoch(self, epoch: int) -> list[int]:
        groups: dict[str, list[int]] = {}
        for index, name in enumerate(self.groups):
            groups.setdefault(name or f"/{index}", []).append(index)
        shuffled = list(groups.values())
        random.Random(f"{self.seed}/{epoch}").shuffle(shuffled)
        return [index for group in shuffled for index in group]


def hand(splitter: Splitter, families: Sequence[Family], rank: int, ranks: int) -> list[list[int]]:
    """One rank's part of a step, as micro-batches.

    All ranks get equally many micro-batches (a sharded model needs that); one that has fewer
    gets empty ones.
    """
    hands = splitter.microbatches(families, ranks)
    longest = max(len(hand) for hand in hands)
    return hands[rank] + [[] for _ in range(longest - len(hands[rank]))]
