"""Keys and values of prompt beginnings, by whole blocks of tokens, the least recently used dropped.

A block's keys and values depend only on the tokens up to its end, and are computed in the same
shape whether or not earlier blocks were found here; so what is found changes speed and no bit.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

from coterie.engines.slots import BLOCK
from coterie.trajectories.turn import digest


class PrefixCache:
    """Blocks under a hash of all tokens up to their end, within a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._blocks: OrderedDict[str, Tensor] = OrderedDict()

    @staticmethod
    def keys(prompt: Sequence[int]) -> list[str]:
        """The key of each whole block of a prompt that is followed by at least one more token."""
        keys, before = [], ""
        for stop in range(BLOCK, len(prompt), BLOCK):
            before = digest(before, list(prompt[stop - BLOCK : stop]))
            keys.append(before)
        return keys

    def get(self, key: str) -> Tensor | None:
        """A block's keys and values, if kept."""
        if (block := self._blocks.get(key)) is not None:
            self._blocks.move_to_end(key)
        return block

    def put(self, key: str, block: Tensor) -> None:
        """Keep a block, dropping the least recently used ones if need be."""
        if key in self._blocks or block.nbytes > self.limit:
            return
        self._blocks[key] = block
        self.bytes += block.nbytes
        while self.bytes > self.limit:
            self.bytes -= self._blocks.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Forget all blocks (their weights have changed)."""
        self._blocks.clear()
        self.bytes = 0
