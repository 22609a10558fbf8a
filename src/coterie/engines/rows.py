"""Rows of running sequences, the interface of model steps, and shared prefixes of prompts by blocks of tokens.

The keys and values of a block depend only on the weights and the tokens up to its end, so a cache hit affects only the
speed. With compiled loops results are bitwise the same; with Transformers rounding may differ.
"""

import hashlib
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor

Block = TypeVar("Block")
BLOCK = 32
"""Tokens of a block."""


class PrefixCache(Generic[Block]):
    """Cache of at most ``max_blocks`` blocks by their :func:`block_keys`, least recently used first out.

    ``dropped`` is called with each block that is removed.
    """

    def __init__(self, max_blocks: int, dropped: Callable[[Block], None] = lambda _: None) -> None:
        self._max_blocks = max_blocks
        self._dropped = dropped
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()

    def known(self, keys: Sequence[bytes]) -> list[Block]:
        """Return the cached blocks of a prompt's keys, up to the first that is missing."""
        blocks = []
        for key in keys:
            if (block := self._blocks.get(key)) is None:
                break
            self._blocks.move_to_end(key)
            blocks.append(block)
        return blocks

    def put(self, key: bytes, block: Block) -> bool:
        """Store a block. Return False if its key is already stored or the capacity is 0."""
        if key in self._blocks or self._max_blocks < 1:
            return False
        self._blocks[key] = block
        if len(self._blocks) > self._max_blocks:
            self._drop()
        return True

    def clear(self) -> None:
        while self._blocks:
            self._drop()

    def _drop(self) -> None:
        _, block = self._blocks.popitem(last=False)
        self._dropped(block)


class BlockIndex:
    """Index of cached pages by their tokens, to find the longest match for the last, partial block of a prompt.

    Pages after the same whole blocks (the key of the last one) are sorted by their tokens, so the longest match is next
    to the insertion point of the prompt's tokens.
    """

    def __init__(self) -> None:
        self._after: dict[bytes, list[tuple[tuple[int, ...], int]]] = {}
        self._place: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    def add(self, page: int, before: bytes, ids: tuple[int, ...]) -> None:
        """Add a page with the keys and values of ``ids``, which follow the block with the key ``before``."""
        if page not in self._place:
            self._place[page] = before, ids
            insort(self._after.setdefault(before, []), (ids, page))

    def drop(self, page: int) -> None:
        if page in self._place:
            before, ids = self._place.pop(page)
            pages = self._after[before]
            del pages[bisect_left(pages, (ids, page))]
            if not pages:
                del self._after[before]

    def closest(self, before: bytes, ids: tuple[int, ...]) -> tuple[int, int]:
        """Return the page with the longest common prefix with ``ids``, and its length (0 if there is no match)."""
        pages = self._after.get(before, [])
        at = bisect_left(pages, (ids, -1))
        candidates = [(same(ids, other), page) for other, page in pages[max(at - 1, 0) : at + 1]]
        count, page = max(candidates, default=(0, 0))
        return page, count


def same(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def block_keys(ids: Sequence[int], part: bool = False) -> list[bytes]:
    """Return the key of each whole block of ``ids``: a hash of all ids up to its end.

    Equal keys mean equal prefixes. With ``part`` there is another key for the rest.
    """
    tokens = array("q", ids)
    keys: list[bytes] = []
    before = b""
    for start in range(0, len(tokens) - (0 if part else BLOCK - 1), BLOCK):
        piece = tokens[start : start + BLOCK].tobytes()
        before = hashlib.blake2b(before + piece, digest_size=16).digest()
        keys.append(before)
    return keys


class DecodingRows(Protocol):
    """Rows of :mod:`coterie.engines.compiled` or :class:`~coterie.engines.padded.PaddedRows`.

    The first rows are in use, the others are free.
    """

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row. Return the next logits ``[N, V]`` and the numbers of cached tokens."""
        ...

    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Append one token at its position to each of the first N rows. Return the next logits ``[N, V]``."""
        ...

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to free rows."""
        ...

    def arrange(self, count: int) -> Sequence[int]:
        """Reorder the first N rows for the fastest decoding. Return their old indices."""
        ...

    def leave(self, row: int, ids: Sequence[int], last: int, length: int) -> None:
        """Free a row with the tokens ``ids``, and move the last row, of ``length`` tokens, into its place."""
        ...

    def forget(self) -> None:
        """Drop the cached prefixes."""
        ...


@runtime_checkable
class ScoringRows(DecodingRows, Protocol):
    """Rows that also score tokens."""

    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Compute log-probs of ``ids[start:]`` of sequences with the same first ``start`` ids.

        Rows from ``free`` on are free.
        """
        ...
