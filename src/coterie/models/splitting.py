"""Families of items that share tries, and micro-batches made of them within a budget of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.models.packing import CostRule
from coterie.models.trie import Ids

PASS_COST = 256
"""Padding, in tokens, that one more forward and backward pass is worth."""


@dataclass(frozen=True, slots=True)
class Family:
    """Items that share tries."""

    items: tuple[int, ...]
    length: int
    """Nodes of its longest trie."""
    tries: int
    """How many tries, and so rows of a batch, it takes."""
    nodes: int
    """Nodes of all its tries: tokens that are computed."""


@dataclass(frozen=True, slots=True)
class Splitter:
    """Splits items, each of one sequence or several, into micro-batches."""

    sequences: Sequence[Sequence[Ids]]
    rule: CostRule | None
    """Which sequences are packed together; ``None`` for none."""
    budget: int
    """Most padded tokens of a micro-batch, unless a single item needs more."""

    def microbatches(self, families: Sequence[Family], ranks: int = 1) -> list[list[list[int]]]:
        """For each rank its micro-batches, as indices of items.

        Families are dealt out by length, so ranks do about equal work.
        """
        families = sorted(families, key=lambda f: (f.length, f.items), reverse=True)
        return [self._cut(families[rank::ranks]) for rank in range(ranks)]

    def families(self, chosen: Sequence[int]) -> list[Family]:
        """Items of a step by what they share; one that is over the budget is halved."""
        if self.rule is None:
            return [self._alone(item) for item in chosen]
        owners = [item for item in chosen for _ in self.sequences[item]]
        packed = self.rule.groups([ids for item in chosen for ids in self.sequences[item]])
        tries: dict[int, list[int]] = {item: [] for item in chosen}
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

    def _alone(self, item: int) -> Family:
        lengths = [len(ids) for ids in self.sequences[item]]
        return Family((item,), max(lengths), len(lengths), sum(lengths))

    def _cut(self, by_length: Sequence[Family]) -> list[list[int]]:
        """Micro-batches of families sorted by length (longest first) that cost least in all.

        ``best[n]`` is the least cost of the first ``n`` families and where their last part begins.
        A part is within the budget, or a single family.
        """
        best = [(0, 0)]
        for stop in range(1, len(by_length) + 1):
            found: tuple[int, int] | None = None
            rows = 0
            for start in range(stop - 1, -1, -1):
                rows += by_length[start].tries
                padded = rows * by_length[start].length
                if found and padded > self.budget:
                    break
                cost = best[start][0] + padded + PASS_COST
                found = min(found or (cost, start), (cost, start))
            assert found is not None
            best.append(found)
        parts, stop = [], len(by_length)
        while stop:
            start = best[stop][1]
            parts.append([item for family in by_length[start:stop] for item in family.items])
            stop = start
        return parts[::-1]


def _connected(tries: dict[int, list[int]]) -> list[list[int]]:
    """Items joined by common tries, in the order in which they came."""
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
    found: dict[int, list[int]] = {}
    for item in tries:
        found.setdefault(find(item), []).append(item)
    return list(found.values())
