"""Prefix tries of token sequences: a beginning that several sequences share is there once.

Nodes are tokens in depth-first order. ``exits[n]`` is one past the last node below ``n``, so node
``m`` is ``n`` or above it exactly if ``m <= n < exits[m]``: entry and exit times of the walk, and
all that an attention needs to know. A trie may have several roots; a single sequence is a chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Trie:
    """Sequences packed by their beginnings; all arrays are int64 ``[nodes]``."""

    ids: np.ndarray
    parents: np.ndarray
    """Node of the token before; -1 at a root."""
    depths: np.ndarray
    """Tokens before it in its sequences, which is its position."""
    exits: np.ndarray
    """One past the last node below it."""
    paths: tuple[np.ndarray, ...]
    """For each sequence, in the order given, the node of each of its tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children and there is one root: plain causal attention."""
        return bool((self.exits == len(self)).all())

    def ancestors(self) -> np.ndarray:
        """Bool ``[nodes, nodes]``: whether the column's node is the row's or above it."""
        nodes = np.arange(len(self))
        return (nodes[None] <= nodes[:, None]) & (nodes[:, None] < self.exits[None])


def build(sequences: Sequence[Ids]) -> Trie:
    """The trie of some non-empty sequences, in time linear in their tokens (and a sort).

    Raises ``ValueError`` for none, or an empty one.
    """
    if not sequences or not all(len(ids) for ids in sequences):
        raise ValueError("a trie needs at least one sequence, and none of them empty")
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
    """Indices in the order in which neighbours share most."""
    return sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))


def shared_length(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common beginning of two sequences."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length
