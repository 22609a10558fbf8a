"""Prefix tries of token sequences: sequences share the nodes of common prefixes.

Nodes are tokens in depth-first order. ``exits[n]`` is one past the last descendant of ``n``. Node ``m`` is ``n`` or
an ancestor of ``n`` if and only if ``m <= n < exits[m]``, which is all that attention needs. A trie may have several
roots; a single sequence is a chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Trie:
    """Sequences packed by their prefixes; all arrays are int64 ``[nodes]``."""

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
    """Build the trie of non-empty sequences. Takes a sort and time linear in the number of tokens.

    Raises ``ValueError`` without sequences or for an empty sequence.
    """
    if not sequences or not all(len(ids) for ids in sequences):
        raise ValueError("a trie needs at least one sequence and no empty sequences")
    arrays = [np.asarray(ids, dtype=np.int64) for ids in sequences]
    order = lexicographic(sequences)
    pieces: list[np.ndarray] = []
    parents: list[np.ndarray] = []
    depths: list[np.ndarray] = []
    cuts: list[tuple[np.ndarray, int]] = []
    paths: list[np.ndarray] = [arrays[0]] * len(arrays)
    path = before = np.zeros(0, np.int64)
    count = 0
    for index in order:
        ids = arrays[index]
        shared = shared_length(before, ids)
        if shared < len(path):
            cuts.append((path[shared:], count))
        new = np.arange(count, count + len(ids) - shared)
        if len(new):
            pieces.append(ids[shared:])
            parents.append(np.concatenate(([path[shared - 1] if shared else -1], new[:-1])))
            depths.append(np.arange(shared, len(ids)))
        path = np.concatenate((path[:shared], new))
        paths[index], before = path, ids
        count += len(new)
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
