"""Prefix tries of token sequences: build them where that saves compute, and split steps into micro-batches of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ids = Sequence[int]
PASS_COST = 256
"""Cost of one more forward and backward pass, in tokens of padding."""


@dataclass(frozen=True, slots=True)
class Trie:
    """Sequences packed by their prefixes, which share nodes; all arrays are int64 ``[nodes]``.

    Nodes are tokens in depth-first order. Node ``m`` is ``n`` or an ancestor of ``n`` if and only if
    ``m <= n < exits[m]``. There may be several roots.
    """

    ids: np.ndarray
    parents: np.ndarray
    """Node of the previous token; -1 at a root."""
    depths: np.ndarray
    """Position in the sequence, from 0."""
    exits: np.ndarray
    """One past the last descendant."""
    paths: tuple[np.ndarray, ...]
    """Nodes of the tokens of each sequence, in the order of the sequences."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Return True if the trie is a single sequence, so causal attention needs no mask."""
        return bool((self.exits == len(self)).all())

    def ancestors(self) -> np.ndarray:
        """Return bool ``[nodes, nodes]``: True where the column's node is the row's node or its ancestor."""
        nodes = np.arange(len(self))
        return (nodes[None] <= nodes[:, None]) & (nodes[:, None] < self.exits[None])


def build(sequences: Sequence[Ids]) -> Trie:
    """Build the trie of non-empty sequences. Takes a sort and time linear in the number of tokens."""
    if not sequences or not all(len(ids) for ids in sequences):
        raise ValueError("a trie needs at least one sequence and no empty sequences")
    arrays = [np.asarray(ids, dtype=np.int64) for ids in sequences]
    pieces: list[np.ndarray] = []
    parents: list[np.ndarray] = []
    depths: list[np.ndarray] = []
    cuts: list[tuple[np.ndarray, int]] = []
    paths: list[np.ndarray] = [arrays[0]] * len(arrays)
    path = previous = np.zeros(0, np.int64)
    count = 0
    # In sorted order, each sequence leaves the path of the one before it at their common prefix:
    # this is a depth-first traversal of the trie.
    for index in lexicographic(sequences):
        ids = arrays[index]
        shared = shared_length(previous, ids)
        # Nodes of the old path after the prefix get no more descendants.
        if shared < len(path):
            cuts.append((path[shared:], count))
        new = np.arange(count, count + len(ids) - shared)
        if len(new):
            pieces.append(ids[shared:])
            # The first new node is a child of the last shared one, or a root.
            parents.append(np.concatenate(([path[shared - 1] if shared else -1], new[:-1])))
            depths.append(np.arange(shared, len(ids)))
        path = np.concatenate((path[:shared], new))
        paths[index], previous = path, ids
        count += len(new)
    # The last path is never left, so its nodes end with the trie.
    exits = np.full(count, count)
    for nodes, stop in cuts:
        exits[nodes] = stop
    joined = [np.concatenate(part) for part in (pieces, parents, depths)]
    return Trie(joined[0], joined[1], joined[2], exits, tuple(paths))


def lexicographic(sequences: Sequence[Ids]) -> list[int]:
    """Return indices in an order in which neighbors share the longest prefixes."""
    return sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))


def shared_length(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the common prefix of two sequences."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length


@dataclass(frozen=True, slots=True)
class Group:
    """Members and size of one trie."""

    members: tuple[int, ...]
    nodes: int
    chain: bool


@dataclass(frozen=True, slots=True)
class CostRule:
    """Rule that decides which sequences share a trie: those whose trie costs less compute than separate rows.

    Costs are in units of one token through the layers (2 floating-point operations per weight). Attention of one token
    to one key costs ``pair = 4 * heads * head_width * layers / (2 * layer_weights)``, so

        a single sequence of L tokens   L + pair * L^2 / 2      (causal: half of all pairs)
        a trie of T nodes               T + pair * T^2          (dense mask: all pairs)

    The rule ignores that attention by blocks computes fewer pairs of a long trie.
    """

    pair: float

    @classmethod
    def of(cls, model: Any) -> "CostRule":
        """Return the rule for a model. Does not check that its attention supports tries."""
        from coterie.models.logprobs import body

        config = model.config.get_text_config()
        embedding = model.get_input_embeddings().weight.numel()
        # Embeddings are looked up, not multiplied, so they cost nothing.
        weights = sum(weight.numel() for weight in body(model).parameters()) - embedding
        width = getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads
        attention = 4 * config.num_attention_heads * width * config.num_hidden_layers
        return cls(attention / (2 * weights))

    def groups(self, sequences: Sequence[Ids]) -> list[Group]:
        """Group sequences: each joins the trie of the previous one, in sorted order, if that is cheaper."""
        groups: list[Group] = []
        previous = np.zeros(0, np.int64)
        for index in lexicographic(sequences):
            ids = np.asarray(sequences[index])
            new = Group((index,), len(ids), True)
            if groups:
                group = groups[-1]
                nodes = group.nodes + len(ids) - shared_length(previous, ids)
                # The previous sequence shares the longest prefix, so no other needs to be compared.
                # The trie is a chain as long as each sequence extends the one before it.
                joined = Group((*group.members, index), nodes, group.chain and nodes == len(ids))
                if self.cost(joined) < self.cost(group) + self.cost(new):
                    new = joined
                    groups.pop()
            groups.append(new)
            previous = ids
        return groups

    def cost(self, group: Group) -> float:
        return group.nodes + self.pair * group.nodes**2 * (0.5 if group.chain else 1.0)


@dataclass(frozen=True, slots=True)
class Pack:
    """Sequences of a batch that share a trie."""

    trie: Trie
    members: tuple[int, ...]
    """Indices of the sequences; path ``k`` of the trie is sequence ``members[k]``."""


def pack(sequences: Sequence[Ids], rule: CostRule | None) -> list[Pack]:
    """Pack sequences into tries, in order of their first members; without a rule, one trie per sequence."""
    if rule is None:
        return [Pack(build([ids]), (i,)) for i, ids in enumerate(sequences)]
    groups = sorted(sorted(group.members) for group in rule.groups(sequences))
    return [Pack(build([sequences[i] for i in group]), tuple(group)) for group in groups]


@dataclass(frozen=True, slots=True)
class Family:
    """Items that share tries, which are the rows of a batch."""

    items: tuple[int, ...]
    length: int
    """Number of nodes of the longest trie."""
    tries: int
    nodes: int
    """Number of nodes of all tries: tokens to compute."""


@dataclass(frozen=True, slots=True)
class Splitter:
    """Splitter of items, each with one or more sequences, into micro-batches that keep families together."""

    sequences: Sequence[Sequence[Ids]]
    rule: CostRule | None
    """Packing rule; ``None`` for no packing."""
    budget: int
    """Maximum padded tokens of a micro-batch, unless a single item needs more."""

    def microbatches(self, families: Sequence[Family], ranks: int = 1) -> list[list[list[int]]]:
        """Return the micro-batches of each rank, as indices of items; ranks do about equal work."""
        families = sorted(families, key=lambda f: (f.length, f.items), reverse=True)
        # Dealt out in order of length, ranks get about equal work, and wait little for each other.
        return [self._cut(families[rank::ranks]) for rank in range(ranks)]

    def families(self, indices: Sequence[int]) -> list[Family]:
        """Group items that share tries. Halve a family that exceeds the budget."""
        families: list[Family] = []
        if self.rule is None:
            for item in indices:
                lengths = [len(ids) for ids in self.sequences[item]]
                families.append(Family((item,), max(lengths), len(lengths), sum(lengths)))
            return families
        # An item with several sequences (a pair) may be in several tries, and connects them: its
        # loss needs all of them in one pass.
        owners = [item for item in indices for _ in self.sequences[item]]
        packed = self.rule.groups([ids for item in indices for ids in self.sequences[item]])
        tries: dict[int, list[int]] = {item: [] for item in indices}
        for number, group in enumerate(packed):
            for item in {owners[member] for member in group.members}:
                tries[item].append(number)
        for items in _connected(tries):
            numbers = {number for item in items for number in tries[item]}
            length = max(packed[number].nodes for number in numbers)
            if length * len(numbers) <= self.budget or len(items) == 1:
                nodes = sum(packed[number].nodes for number in numbers)
                families.append(Family(tuple(items), length, len(numbers), nodes))
            else:
                # Neighbors share the longest prefixes, so most of the sharing stays within the halves.
                items.sort(key=lambda item: tuple(self.sequences[item][0]))
                half = len(items) // 2
                families += self.families(items[:half]) + self.families(items[half:])
        return families

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
                # Further back families are longer, so no larger part fits, either.
                if choice and padded > self.budget:
                    break
                # Each pass has a fixed cost, which limits the number of small parts with little padding.
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
    owners: dict[int, list[int]] = {}
    for item, numbers in tries.items():
        for number in numbers:
            owners.setdefault(number, []).append(item)
    rank = {item: index for index, item in enumerate(tries)}
    groups: list[list[int]] = []
    seen: set[int] = set()
    for item in tries:
        group = [] if item in seen else [item]
        seen.add(item)
        for trie in group:  # grows
            neighbors = {neighbor for number in tries[trie] for neighbor in owners[number]} - seen
            seen |= neighbors
            group += neighbors
        if group:
            groups.append(sorted(group, key=rank.__getitem__))
    return groups
