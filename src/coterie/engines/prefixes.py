"""Beginnings of prompts, by blocks of tokens: their keys, and what was computed for them.

A block's keys and values depend only on weights and the tokens up to its end, so what is found changes speed; in
compiled loops it changes no bit, by Transformers nothing but rounding.
"""

import hashlib
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

Block = TypeVar("Block")
BLOCK = 32
"""Tokens of a block."""


class PrefixCache(Generic[Block]):
    """Blocks under the keys of :func:`block_keys`, at most ``max_blocks``: the least recently used go first, and
    ``dropped`` hears of each."""

    def __init__(self, max_blocks: int, dropped: Callable[[Block], None] = lambda _: None) -> None:
        self._max_blocks = max_blocks
        self._dropped = dropped
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()

    def known(self, keys: Sequence[bytes]) -> list[Block]:
        """The blocks of a prompt's keys that are kept, up to the first that is not."""
        found = []
        for key in keys:
            if (block := self._blocks.get(key)) is None:
                break
            self._blocks.move_to_end(key)
            found.append(block)
        return found

    def put(self, key: bytes, block: Block) -> bool:
        """Keep a block, unless one is kept under its key (or none at all): then false."""
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
    """Kept pages by the tokens on them, to find the page that goes on most like a prompt where its whole blocks end.

    Pages after the same whole blocks (the key of the last one) are sorted by their tokens, so the most alike is a
    neighbour of the place where the prompt's own would be.
    """

    def __init__(self) -> None:
        self._after: dict[bytes, list[tuple[tuple[int, ...], int]]] = {}
        self._place: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    def add(self, page: int, before: bytes, ids: tuple[int, ...]) -> None:
        """A page holds the keys and values of ``ids``, which come after the blocks of a key."""
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
        """The page that begins most like ``ids``, and how many first tokens are the same; 0 if none begins so."""
        pages = self._after.get(before, [])
        at = bisect_left(pages, (ids, -1))
        found = [(same(ids, kept), page) for kept, page in pages[max(at - 1, 0) : at + 1]]
        count, page = max(found, default=(0, 0))
        return page, count


def same(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def block_keys(ids: Sequence[int], part: bool = False) -> list[bytes]:
    """One key for each whole block of ``ids``: a hash of all ids up to its end, so that equal keys mean
    equal beginnings. With ``part`` one more for what is left of them."""
    tokens = array("q", ids)
    keys: list[bytes] = []
    before = b""
    for start in range(0, len(tokens) - (0 if part else BLOCK - 1), BLOCK):
        piece = tokens[start : start + BLOCK].tobytes()
        before = hashlib.blake2b(before + piece, digest_size=16).digest()
        keys.append(before)
    return keys
