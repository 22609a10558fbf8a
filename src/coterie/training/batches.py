"""The plan of a training: which rows make an optimiser step, and how a step is split.

A step is ``batch_rows`` rows drawn at random without replacement, so its statistics do not depend
on lengths. Within a step rows are sorted by length and cut into micro-batches of at most
``tokens_per_microbatch`` padded tokens, so that padding and passes cost least; that changes memory and
speed, not results.
All is a function of (seed, epoch): a resumed training makes the same plan.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from coterie.errors import UserError
from coterie.training.objective import Item, Objective

PASS_COST = 256
"""Padding, in tokens, that one more forward and backward pass is worth."""


@dataclass(frozen=True)
class Plan(Generic[Item]):
    """The items that are trained, in the order given, and how many were not."""

    items: Sequence[Item]
    lengths: Sequence[int]
    """Longest row of each item, in tokens."""
    widths: Sequence[int]
    """Number of rows of each item."""
    tokens: Sequence[int]
    """Tokens of all rows of each item."""
    counts: Sequence[float]
    """Each item's share of the denominator of its step."""
    names: Sequence[str]
    """Where each item came from, for messages."""
    too_long: int
    """Items dropped because a row is longer than the limit."""
    empty: int
    """Items dropped because they count 0 (no targets, no weight)."""
    seed: int
    batch_rows: int
    tokens_per_microbatch: int

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in which every item is seen once; the last may be smaller."""
        return -(-len(self.items) // self.batch_rows)

    def steps(self, first: int, stop: int) -> Iterator[list[int]]:
        """Indices of the items of each step in ``range(first, stop)``, counted over all epochs."""
        order: list[int] = []
        for step in range(first, stop):
            epoch, place = divmod(step, self.steps_per_epoch)
            if not order or place == 0:
                order = list(range(len(self.items)))
                random.Random(f"{self.seed}/{epoch}").shuffle(order)
            yield order[place * self.batch_rows : (place + 1) * self.batch_rows]

    def microbatches(self, chosen: Sequence[int], rank: int, ranks: int) -> list[list[int]]:
        """One rank's part of a step, as micro-batches.

        Items are dealt out by length, so ranks do about equal work. All ranks get equally many
        micro-batches (a sharded model needs that); one that has fewer gets empty ones.
        """
        by_length = sorted(chosen, key=lambda i: (self.lengths[i], i), reverse=True)
        hands = [self._cut(by_length[r::ranks]) for r in range(ranks)]
        longest = max(len(hand) for hand in hands)
        return hands[rank] + [[] for _ in range(longest - len(hands[rank]))]

    def _cut(self, by_length: Sequence[int]) -> list[list[int]]:
        """Micro-batches of items sorted by length (longest first) that cost least in all.

        ``best[n]`` is the least cost of the first ``n`` items and where their last part begins. A
        part is within the budget, or a single item.
        """
        best = [(0, 0)]
        for stop in range(1, len(by_length) + 1):
            found: tuple[int, int] | None = None
            rows = 0
            for start in range(stop - 1, -1, -1):
                rows += self.widths[by_length[start]]
                padded = rows * self.lengths[by_length[start]]
                if found and padded > self.tokens_per_microbatch:
                    break
                cost = best[start][0] + padded + PASS_COST
                found = min(found or (cost, start), (cost, start))
            assert found is not None
            best.append(found)
        parts, stop = [], len(by_length)
        while stop:
            start = best[stop][1]
            parts.append(list(by_length[start:stop]))
            stop = start
        return parts[::-1]


def plan(
    items: Sequence[Item],
    objective: Objective[Item],
    *,
    seed: int,
    batch_rows: int,
    tokens_per_microbatch: int,
    max_length: int,
) -> Plan[Item]:
    """Drop (and count) items that can't be trained, and plan the rest.

    Raises :class:`UserError` if none is left.
    """
    groups = [objective.rows(item) for item in items]
    counts = [objective.count(item) for item in items]
    lengths = [max(len(row.ids) for row in group) for group in groups]
    short = [i for i, length in enumerate(lengths) if length <= max_length]
    kept = [i for i in short if counts[i] > 0]
    too_long, empty = len(items) - len(short), len(short) - len(kept)
    if not kept:
        raise UserError(
            f"no row is left to train: {too_long} are longer than {max_length} tokens, "
            f"{empty} have no targets",
            "raise max_length, or give rows with targets",
        )
    return Plan(
        items=[items[i] for i in kept],
        lengths=[lengths[i] for i in kept],
        widths=[len(groups[i]) for i in kept],
        tokens=[sum(len(row.ids) for row in groups[i]) for i in kept],
        counts=[counts[i] for i in kept],
        names=[groups[i][0].origin or f"number {i}" for i in kept],
        too_long=too_long,
        empty=empty,
        seed=seed,
        batch_rows=batch_rows,
        tokens_per_microbatch=tokens_per_microbatch,
    )
