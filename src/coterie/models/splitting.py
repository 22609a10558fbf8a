"""Split a step into micro-batches within a token budget, keeping items that share tries together."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.models.packing import CostRule
from coterie.models.trie import Ids

PASS_COST = 256
"""Cost of one more forward and backward pass, in tokens of padding."""


@dataclass(frozen=True, slots=True)
class Family:
    """Items that share tries."""

    items: tuple[int, ...]
    length: int
    """Number of nodes of the longest trie."""
    tries: int
    """Number of tries, which is the number of rows in a batch."""
    nodes: int
    """Number of nodes of all tries: tokens to compute."""


@dataclass(frozen=True, slots=True)
class Splitter:
    """Splitter of items, each with one or more sequences, into micro-batches."""

    sequences: Sequence[Sequence[Ids]]
    rule: CostRule | None
    """Packing rule; ``None`` for no packing."""
    budget: int
    """Maximum padded tokens of a micro-batch, unless a single item needs more."""

    def microbatches(self, families: Sequence[Family], ranks: int = 1) -> list[list[list[int]]]:
        """Return the micro-batches of each rank, as indices of items.

        Families are distributed by length, so ranks do about equal work.
        """
        families = sorted(families, key=lambda f: (f.length, f.items), reverse=True)
        return [self._cut(families[rank::ranks]) for rank in range(ranks)]

    def families(self, indices: Sequence[int]) -> list[Family]:
        """Group items that share tries. Halve a family that exceeds the budget."""
        if self.rule is None:
            return [self._single(item) for item in indices]
        owners = [item for item in indices for _ in self.sequences[item]]
        packed = self.rule.groups([ids for item in indices for ids in self.sequences[item]])
        tries: dict[int, list[int]] = {item: [] for item in indices}
        for number, group in enumerate(packed):
            for item in {owners[member] for member in group.members}:
                tries[item].append(number)
        families = []
        for items in _connected(tries):
            numbers = {number for item in items for number in tries[item]}
            length = max(packed[number].nodes for number in numbers)
            if length * len(numbers) <= self.budget or len(items) == 1:
                nodes = sum(packed[number].nodes for number in numbers)
                families.append(Family(tuple(items), length, len(numbers), nodes))
            else:
                items.sort(key=lambda item: tuple(self.sequences[item][0]))
                half = len(items) // 2
                families += self.families(items[:half]) + self.families(items[half:])
        return families

    def _single(self, item: int) -> Family:
        lengths = [len(ids) for ids in self.sequences[item]]
        return Family((item,), max(lengths), len(lengths), sum(lengths))

    def _cut(self, by_length: Sequence[Family]) -> list[list[int]]:
        """Return the cheapest micro-batches of families that are sorted by length, longest first.

        ``best[n]`` is the lowest cost of the first ``n`` families and the start of their last part. A part is within
        the budget or is a single family.
        """
        best = [(0, 0)]
        for stop in range(1, len(by_length) + 1):
            choice: tuple[int, int] | None = None
            rows = 0
            for start in range(stop - 1, -1, -1):
                rows += by_length[start].tries
                padded = rows * by_length[start].length
                if choice and padded > self.budget:
                    break
                cost = best[start][0] + padded + PASS_COST
                choice = min(choice or (cost, start), (cost, start))
            assert choice is not None
            best.append(choice)
        parts, stop = [], len(by_length)
        while stop:
            start = best[stop][1]
            parts.append([item for family in by_length[start:stop] for item in family.items])
            stop = start
        return parts[::-1]


def _connected(tries: dict[int, list[int]]) -> list[list[int]]:
    """Group items connected by common tries, in order of appearance."""
    leader = {item: item for item in tries}

    def find(item: int) -> int:
        while leader[item] != item:
            leader[item] = leader[leader[item]]
            item = leader[item]
        return item

    first: dict[int, int] = {}
    for item, numbers in tries.items():
        for number in numbers:
            leader[find(item)] = find(first.setdefault(number, item))
    groups: dict[int, list[int]] = {}
    for item in tries:
        groups.setdefault(find(item), []).append(item)
    return list(groups.values())
