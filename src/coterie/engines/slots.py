"""Keys and values of running sequences: one slot (row) each, every sequence from index 0 on.

Rows in use are kept together at the front: when a sequence ends, the last one moves to its place.
The object is what Transformers' attention layers call ``past_key_values``: each layer hands its new
keys and values to :meth:`Slots.update` and attends to what that returns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK = 32
"""Prompts are read, and their beginnings kept, in blocks of so many tokens."""
STEP = 64
"""Slots grow by so many tokens."""
ROWS = 16
"""Slots begin with so many rows, and their number doubles when there are too few."""


class Slots:
    """Keys and values ``[layers, rows, heads, length, width]``; rows and length grow as needed."""

    def __init__(self, layers: int, heads: int, width: int, like: Tensor) -> None:
        self._shape = (layers, ROWS, heads, STEP, width)
        self.keys = like.new_zeros(self._shape)
        self.values = like.new_zeros(self._shape)
        self._rows = torch.zeros(0, dtype=torch.long)
        self._places = self._rows
        self._length = STEP
        self._decoding = True

    def decode(self, places: Tensor, length: int) -> "Slots":
        """Next: one token for each of the first rows, at its place; attend to ``length`` keys."""
        self._grow(len(places), length)
        self._rows = torch.arange(len(places), device=places.device)
        self._places, self._length, self._decoding = places, length, True
        return self

    def prefill(self, rows: Tensor, block: int) -> "Slots":
        """Next: the tokens of one block for each of these rows."""
        self._length = (block + 1) * BLOCK
        self._grow(int(rows.max()) + 1, self._length)
        self._rows, self._decoding = rows, False
        return self

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values; returns all those to attend to."""
        keys, values, stop = self.keys[layer_idx], self.values[layer_idx], self._length
        if self._decoding:
            keys[self._rows, :, self._places] = key[:, :, 0]
            values[self._rows, :, self._places] = value[:, :, 0]
            count = len(self._rows)
            return keys[:count, :, :stop], values[:count, :, :stop]
        keys[self._rows, :, stop - BLOCK : stop] = key
        values[self._rows, :, stop - BLOCK : stop] = value
        return keys[self._rows, :, :stop], values[self._rows, :, :stop]

    def move(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to others."""
        self._grow(max(targets, default=0) + 1, length)
        for store in (self.keys, self.values):
            kept = store[:, source, :, :length]
            for target in targets:
                store[:, target, :, :length] = kept

    def read(self, row: int, block: int) -> Tensor:
        """A copy of a row's keys and values of one block: ``[2, layers, heads, BLOCK, width]``."""
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        return torch.stack((self.keys[:, row, :, span], self.values[:, row, :, span]))

    def write(self, row: int, block: int, content: Tensor) -> None:
        """Put back what :meth:`read` gave."""
        self._grow(row + 1, (block + 1) * BLOCK)
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        self.keys[:, row, :, span], self.values[:, row, :, span] = content[0], content[1]

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.keys = self.keys.new_zeros(self._shape)
        self.values = self.values.new_zeros(self._shape)

    def _grow(self, rows: int, length: int) -> None:
        have = self.keys.shape[1]
        more = max(rows, 2 * have) - have if rows > have else 0
        longer = max(stepped(length) - self.keys.shape[3], 0)
        if more or longer:
            missing = (0, 0, 0, longer, 0, 0, 0, more)
            self.keys = torch.nn.functional.pad(self.keys, missing)
            self.values = torch.nn.functional.pad(self.values, missing)


def stepped(length: int) -> int:
    """``length`` rounded up to whole steps."""
    return -(-length // STEP) * STEP


def blocks(length: int) -> int:
    """How many blocks ``length`` tokens take."""
    return -(-length // BLOCK)
