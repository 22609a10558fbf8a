"""Keys and values of running sequences: one slot (row) each, every sequence from index 0 on.

Rows in use are kept together at the front: when a sequence ends, the last one moves to its place.
The object is what Transformers' attention layers call ``past_key_values``: each layer hands its new
keys and values to :meth:`Slots.update` and attends to what that returns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.engines.prefixes import BLOCK

STEP = 64
"""Slots are a multiple of so many tokens long."""
ROWS = 16
"""Slots begin with so many rows, and their number doubles when there are too few."""


class Slots:
    """Keys and values ``[layers, rows, heads, length, width]``; rows and length grow as needed."""

    def __init__(self, layers: int, heads: int, width: int, like: Tensor) -> None:
        self._shape = (layers, ROWS, heads, STEP, width)
        self._like = like
        self.keys = _zeros(self._shape, like)
        self.values = _zeros(self._shape, like)
        self._rows: Tensor | slice = slice(0)
        self._cells: Tensor | None = None
        self._length = STEP
        self._used = 0

    def decode(self, places: Tensor, length: int) -> "Slots":
        """Next: one token for each of the first rows, at its place; attend to ``length`` keys."""
        self.reserve(len(places), length, only=True)
        _, _, heads, stride, _ = self.keys.shape
        first = torch.arange(len(places) * heads, device=places.device) * stride
        self._cells = first + places.repeat_interleave(heads)
        self._rows, self._length = slice(len(places)), length
        return self

    def prefill(self, rows: Sequence[int], block: int) -> "Slots":
        self._length = (block + 1) * BLOCK
        self.reserve(max(rows) + 1, self._length)
        self._cells = None
        first, stop = rows[0], rows[0] + len(rows)
        together = list(rows) == list(range(first, stop))
        self._rows = slice(first, stop) if together else torch.tensor(rows, device=self.keys.device)
        return self

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values; returns all those to attend to."""
        keys, values, stop = self.keys[layer_idx], self.values[layer_idx], self._length
        if self._cells is None:
            keys[self._rows, :, stop - BLOCK : stop] = key
            values[self._rows, :, stop - BLOCK : stop] = value
        else:
            width = key.shape[-1]
            keys.view(-1, width).index_copy_(0, self._cells, key.reshape(-1, width))
            values.view(-1, width).index_copy_(0, self._cells, value.reshape(-1, width))
        return keys[self._rows, :, :stop], values[self._rows, :, :stop]

    def get_seq_length(self) -> int:
        """Tokens before those that come next: some models ask, though they are told positions and mask."""
        return self._length - (BLOCK if self._cells is None else 1)

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to others."""
        self.reserve(max(targets, default=0) + 1, length)
        for store in (self.keys, self.values):
            kept = store[:, source, :, :length]
            for target in targets:
                store[:, target, :, :length] = kept

    def wipe(self, row: int, length: int) -> None:
        """Forget what a row held, of up to ``length`` tokens: what is masked is multiplied by 0, and NaN stays NaN."""
        for store in (self.keys, self.values):
            store[:, row, :, : stepped(length)] = 0.0

    @property
    def block_bytes(self) -> int:
        """Memory of what :meth:`read` gives."""
        layers, _, heads, _, width = self._shape
        return 2 * layers * heads * BLOCK * width * self._like.element_size()

    def read(self, row: int, block: int) -> Tensor:
        """A copy of a row's keys and values of one block: ``[2, layers, heads, BLOCK, width]``."""
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        return torch.stack((self.keys[:, row, :, span], self.values[:, row, :, span]))

    def write(self, row: int, block: int, content: Tensor) -> None:
        """Put back what :meth:`read` gave."""
        self.reserve(row + 1, (block + 1) * BLOCK)
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        self.keys[:, row, :, span], self.values[:, row, :, span] = content[0], content[1]

    def reserve(self, rows: int, length: int, *, only: bool = False) -> None:
        """Have room for so many rows and tokens; growing copies what is in use, so it is done by a good part.

        ``only`` says that no other rows are in use: later growth need not copy them, nor touch their memory.
        """
        layers, have, heads, reach, width = self.keys.shape
        used, self._used = self._used, rows if only else max(rows, self._used)
        if rows <= have and length <= reach:
            return
        used = min(used, have)
        more = max(rows, 4 * have) if rows > have else have
        longer = stepped(max(length, reach + reach // 2)) if length > reach else reach
        grown = (layers, more, heads, longer, width)
        for name, old in (("keys", self.keys), ("values", self.values)):
            new = _zeros(grown, self._like)
            new[:, :used, :, :reach] = old[:, :used]
            setattr(self, name, new)


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of the kind of ``like``; on CPU in float32 the system hands pages out as they are touched,
    so that room which is never used costs nothing."""
    if like.device.type == "cpu" and like.dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))
    return like.new_zeros(shape)


def stepped(length: int) -> int:
    """``length`` rounded up to whole steps."""
    return -(-length // STEP) * STEP


def blocks(length: int) -> int:
    """How many blocks ``length`` tokens take."""
    return -(-length // BLOCK)
