"""Beginnings of prompts, by whole blocks of tokens: their keys, and what was computed for them.

A block's keys and values depend only on weights and the tokens up to its end, so what is found changes speed; in
compiled loops it changes no bit, by Transformers nothing but rounding.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
        """Drop all blocks."""
        while self._blocks:
            self._drop()

    def _drop(self) -> None:
        _, block = self._blocks.popitem(last=False)
        self._dropped(block)


def block_keys(ids: Sequence[int]) -> list[bytes]:
    """One key for each whole block of ``ids``: a hash of all ids up to its end, so that equal keys mean
    equal beginnings."""
    tokens = array("q", ids)
    keys: list[bytes] = []
    before = b""
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        piece = tokens[start : start + BLOCK].tobytes()
        before = hashlib.blake2b(before + piece, digest_size=16).digest()
        keys.append(before)
    return keys
