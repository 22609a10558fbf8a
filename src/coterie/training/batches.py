"""Trainable items, their order in an epoch, and the split of a step into micro-batches.

A step has ``batch_rows`` items, drawn at random without replacement and independently of length. Items of one group
(pairs of one tree) are drawn together, so that shared prefixes are computed once. The order is a function of (seed,
epoch), so a resumed training repeats it.

Within a step the rows are packed into tries by the cost rule of :mod:`coterie.models.packing`, and items with rows in
the same trie form a *family*. Families are sorted by length and split into micro-batches of at most
``tokens_per_microbatch`` padded tokens to minimize padding and passes. That changes memory and speed, not results.
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
    """Trainable items in their original order, and the number of dropped ones."""

    items: Sequence[Item]
    groups: Sequence[str]
    """Group of each item; items with an equal, non-empty group are drawn together."""
    sequences: Sequence[Sequence[Ids]]
    targets: Sequence[int]
    """Number of targets of each item, in all its rows."""
    counts: Sequence[float]
    """Share of each item in the denominator of its step."""
    names: Sequence[str]
    """Origin of each item, for messages."""
    too_long: int
    """Number of dropped items with a row longer than the limit."""
    empty: int
    """Number of dropped items that count 0 (no targets, no weight, equal sides)."""

    @property
    def tokens(self) -> int:
        return sum(len(ids) for sequences in self.sequences for ids in sequences)


def make_batch(items: Sequence[Item], objective: Objective[Item], max_length: int) -> Batch[Item]:
    """Drop (and count) items that can't be trained.

    Raises :class:`UserError` if no item remains, or if a remaining row lacks values that the objective needs. Rows that
    are too long may lack them, because no pass computes them.
    """
    groups = [objective.rows(item) for item in items]
    lengths = [max((len(row.ids) for row in group), default=0) for group in groups]
    short = [i for i, length in enumerate(lengths) if length <= max_length]
    counts = {i: objective.count(items[i]) for i in short}
    indices = [i for i in short if counts[i] > 0]
    check_targets([groups[i] for i in indices], objective)
    too_long, empty = len(items) - len(short), len(short) - len(indices)
    if not indices:
        raise UserError(
            f"no row can be trained: {too_long} are longer than {max_length} tokens, "
            f"{empty} have no targets",
            "raise max_length, or give rows with targets",
        )
    return Batch(
        items=[items[i] for i in indices],
        groups=[objective.group(items[i]) for i in indices],
        sequences=[[row.ids for row in groups[i]] for i in indices],
        targets=[sum(row.target_count for row in groups[i]) for i in indices],
        counts=[counts[i] for i in indices],
        names=[groups[i][0].origin or f"number {i}" for i in indices],
        too_long=too_long,
        empty=empty,
    )


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the items over all epochs, in steps of ``batch_rows``."""

    groups: Sequence[str]
    seed: int
    batch_rows: int

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of an epoch; the last may be smaller."""
        return -(-len(self.groups) // self.batch_rows)

    def steps(self, first: int, stop: int) -> Iterator[list[int]]:
        """Yield the item indices of each step in ``range(first, stop)``, counted over all epochs."""
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


def rank_microbatches(
    splitter: Splitter, families: Sequence[Family], rank: int, ranks: int
) -> list[list[int]]:
    """Return the micro-batches of one rank in a step.

    All ranks get the same number of micro-batches, as a sharded model needs; some may be empty.
    """
    parts = splitter.microbatches(families, ranks)
    count = max(map(len, parts))
    return parts[rank] + [[] for _ in range(count - len(parts[rank]))]
