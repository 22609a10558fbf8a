"""Rows of any Transformers model, by its own forward pass, with attention that hardly depends on the batch.

Fused attention splits its work by the shape of the whole batch. Here scores and sums are plain batched matrix products,
of rows padded to a multiple of 8 and at least 16, keys to a multiple of 64, and prompts in blocks of tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from coterie.engines.sequence import BLOCK, PrefixCache, block_keys
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.models.logprobs import (
    attending,
    body,
    hidden_states,
    masked_attention,
    vocabulary_logits,
)

NAME = "coterie_rows"
GROUP = 2
"""Query rows per product. MKL splits larger products by the padded length of the keys."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return attention ``[B, Q, H, D]`` of query ``[B, H, Q, D]`` over key and value ``[B, h, T, D]``.

    ``attention_mask`` ``[B or 1, 1, Q, T]`` is additive. Key heads shared by several query heads are not copied.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    batch, heads, length, width = query.shape
    shared, keys = key.shape[1:3]
    rows = heads // shared * length
    query = query.reshape(batch * shared, rows, width)
    key, value = key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1)
    mask = attention_mask
    if length == 1:
        mask = mask[:, 0].expand(batch, shared, keys).reshape(batch * shared, 1, keys)
    else:
        many = shared if len(mask) > 1 else 1  # one mask for all is not copied
        mask = mask.repeat(1, many, heads // shared, 1).flatten(0, 1)
    step = GROUP if length == 1 else rows
    outputs = []
    for start in range(0, rows, step):
        scores = torch.baddbmm(mask, query[:, start : start + step], key, alpha=scaling)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
        outputs.append(torch.bmm(weights, value))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
    return output.view(batch, heads, length, width).transpose(1, 2), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)

STEP = 64
"""The length of slots is a multiple of this."""
ROWS = 16
"""Initial number of slots; it is multiplied by four when there are too few."""


class Slots:
    """Keys and values ``[layers, rows, heads, length, width]`` of running sequences; rows and length grow as needed.

    Transformers gets the object as ``past_key_values``, and each layer attends to what :meth:`update` returns.
    """

    def __init__(self, layers: int, heads: int, width: int, like: Tensor) -> None:
        shape = (layers, ROWS, heads, STEP, width)
        self._like = like
        self.keys = _zeros(shape, like)
        self.values = _zeros(shape, like)
        self._rows: Tensor | slice = slice(0)
        self._cells: Tensor | None = None
        self._length = STEP
        self._used = 0

    def decode(self, positions: Tensor, length: int) -> "Slots":
        """Prepare for one token at its position in each of the first rows, attending to ``length`` keys."""
        self.reserve(len(positions), length, only=True)
        _, _, heads, stride, _ = self.keys.shape
        starts = torch.arange(len(positions) * heads, device=positions.device) * stride
        self._cells = starts + positions.repeat_interleave(heads)
        self._rows, self._length = slice(len(positions)), length
        return self

    def prefill(self, rows: Sequence[int], block: int) -> "Slots":
        """Prepare for a block of tokens in each of these rows."""
        self._length = (block + 1) * BLOCK
        self.reserve(max(rows) + 1, self._length)
        self._cells = None
        start, stop = rows[0], rows[0] + len(rows)
        together = list(rows) == list(range(start, stop))
        self._rows = slice(start, stop) if together else torch.tensor(rows, device=self.keys.device)
        return self

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values, and return all that are attended to."""
        stores, stop = (self.keys[layer_idx], self.values[layer_idx]), self._length
        for store, new in zip(stores, (key, value), strict=True):
            if self._cells is None:
                store[self._rows, :, stop - BLOCK : stop] = new
            else:
                width = new.shape[-1]
                store.view(-1, width).index_copy_(0, self._cells, new.reshape(-1, width))
        keys, values = stores
        return keys[self._rows, :, :stop], values[self._rows, :, :stop]

    def get_seq_length(self) -> int:
        """Return the number of tokens before the next ones; some models call it, although positions are passed."""
        return self._length - (BLOCK if self._cells is None else 1)

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to others."""
        self.reserve(max(targets, default=0) + 1, length)
        for store in (self.keys, self.values):
            content = store[:, source, :, :length]
            for target in targets:
                store[:, target, :, :length] = content

    def wipe(self, row: int, length: int) -> None:
        """Clear the first ``length`` tokens of a row: a masked value is multiplied by 0, which does not remove NaN."""
        for store in (self.keys, self.values):
            store[:, row, :, : stepped(length)] = 0.0

    @property
    def block_bytes(self) -> int:
        """Bytes of a block from :meth:`read`."""
        layers, _, heads, _, width = self.keys.shape
        return 2 * layers * heads * BLOCK * width * self._like.element_size()

    def read(self, row: int, block: int) -> Tensor:
        """Copy the keys and values of one block of a row: ``[2, layers, heads, BLOCK, width]``."""
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        return torch.stack((self.keys[:, row, :, span], self.values[:, row, :, span]))

    def write(self, row: int, block: int, content: Tensor) -> None:
        """Restore a block from :meth:`read`."""
        self.reserve(row + 1, (block + 1) * BLOCK)
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        self.keys[:, row, :, span], self.values[:, row, :, span] = content[0], content[1]

    def reserve(self, rows: int, length: int, *, only: bool = False) -> None:
        """Grow to at least this number of rows and tokens. With ``only`` no other rows are in use, nor copied later."""
        layers, row_count, heads, reach, width = self.keys.shape
        used, self._used = self._used, rows if only else max(rows, self._used)
        if rows <= row_count and length <= reach:
            return
        used = min(used, row_count)
        new_rows = max(rows, 4 * row_count) if rows > row_count else row_count
        new_reach = stepped(max(length, reach + reach // 2)) if length > reach else reach
        shape = (layers, new_rows, heads, new_reach, width)
        for name, old in (("keys", self.keys), ("values", self.values)):
            new = _zeros(shape, self._like)
            new[:, :used, :, :reach] = old[:, :used]
            setattr(self, name, new)


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros with the dtype and device of ``like``; on CPU in float32 untouched memory costs nothing."""
    if like.device.type == "cpu" and like.dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))
    return like.new_zeros(shape)


def stepped(length: int) -> int:
    """Round ``length`` up to a multiple of :data:`STEP`."""
    return -(-length // STEP) * STEP


PROMPTS = 32


class PaddedRows:
    """Rows computed by Transformers. The first rows are in use, the others are free."""

    def __init__(self, loaded: LoadedModel, cache_bytes: int) -> None:
        self.model = loaded.model
        weights = self.model.get_input_embeddings().weight.detach()
        self.device, self.dtype = weights.device, weights.dtype
        attention = masked_attention(self.model)
        self._attention = NAME if (attention, self.device.type) == ("sdpa", "cpu") else attention
        self.slots = Slots(*_cache_shape(self.model), weights)
        self._last = loaded.context_length - 1
        self._prefixes = PrefixCache[Tensor](cache_bytes // self.slots.block_bytes)

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row. Return the next logits ``[N, V]`` and the numbers of cached tokens."""
        self.slots.reserve(max(rows) + 1, max(map(len, prompts)) + STEP)
        keys = [block_keys(prompt[:-1]) for prompt in prompts]
        cached_counts = []
        for row, row_keys in zip(rows, keys, strict=True):
            blocks_known = self._prefixes.known(row_keys)
            for block, content in enumerate(blocks_known):
                self.slots.write(row, block, content)
            cached_counts.append(len(blocks_known))
        blocks = [-(-len(prompt) // BLOCK) for prompt in prompts]
        last_hidden: list[Tensor] = [torch.empty(0)] * len(prompts)
        for block in range(max(blocks)):
            members = [i for i in range(len(prompts)) if cached_counts[i] <= block < blocks[i]]
            for start in range(0, len(members), PROMPTS):
                part = members[start : start + PROMPTS]
                hidden = self._read([rows[i] for i in part], [prompts[i] for i in part], block)
                for row, i in zip(hidden, part, strict=True):
                    if block < len(keys[i]):
                        self._prefixes.put(keys[i][block], self.slots.read(rows[i], block))
                    else:
                        last_hidden[i] = row[(len(prompts[i]) - 1) % BLOCK]
        missing = _padded(len(prompts)) - len(prompts)
        hidden = torch.nn.functional.pad(torch.stack(last_hidden), (0, 0, 0, missing))
        logits = vocabulary_logits(self.model, hidden)[: len(prompts)]
        return logits, [count * BLOCK for count in cached_counts]

    def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Append one token at its position to each of the first N rows. Return the next logits ``[N, V]``."""
        count = len(tokens)
        fill = [0] * (_padded(count) - count)
        ids = torch.tensor([[*tokens, *fill]], device=self.device).T
        padded_positions = torch.tensor([*positions, *fill], device=self.device)
        length = stepped(max(positions) + 1)
        mask = self._mask(torch.arange(length, device=self.device) <= padded_positions[:, None])
        hidden = self._hidden(
            ids,
            padded_positions[:, None],
            mask[:, None, None],
            self.slots.decode(padded_positions, length),
        )
        return vocabulary_logits(self.model, hidden[:, 0])[:count]

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        self.slots.copy(source, targets, length)

    def arrange(self, count: int) -> Sequence[int]:
        return range(count)  # any order is as fast

    def leave(
        self, row: int, ids: Sequence[int], last_row: int, length: int, *, reuse: bool = True
    ) -> None:
        """Free a row with the tokens ``ids``, and move the last row, of ``length`` tokens, into its place."""
        self.slots.wipe(row, len(ids) + 1)
        if row != last_row:
            self.slots.copy(last_row, [row], length)
            self.slots.wipe(last_row, length)

    def forget(self) -> None:
        self._prefixes.clear()

    def _read(self, rows: list[int], prompts: list[tuple[int, ...]], block: int) -> Tensor:
        """Compute the hidden states ``[N, BLOCK, width]`` of one block of each prompt, padded at the end."""
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        ids = [[*prompt[span], *[0] * (BLOCK - len(prompt[span]))] for prompt in prompts]
        positions = torch.arange(span.start, span.stop, device=self.device)
        mask = self._mask(torch.arange(span.stop, device=self.device) <= positions[:, None])
        ids_BQ = torch.tensor(ids, device=self.device)
        positions = positions.clamp(max=self._last)  # padding may exceed the context
        return self._hidden(
            ids_BQ, positions[None], mask[None, None], self.slots.prefill(rows, block)
        )

    def _hidden(self, ids: Tensor, positions: Tensor, mask: Tensor, slots: Slots) -> Tensor:
        """Compute hidden states ``[B, Q, width]`` of ids ``[B, Q]`` at ``positions``, and fill their slots."""
        inputs = {"attention_mask": mask, "position_ids": positions, "past_key_values": slots}
        with attending(self.model, self._attention):
            return hidden_states(self.model, ids, **inputs)

    def _mask(self, seen: Tensor) -> Tensor:
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~seen, torch.finfo(self.dtype).min)


def _cache_shape(model: Any) -> tuple[int, int, int]:
    """Return layers, heads and width of a model's cache, from a forward pass because names in configs vary.

    Raises :class:`UserError` for layers that differ, or that cache more than keys and values.
    """
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    cache = body(model)(input_ids=ids, use_cache=True).past_key_values
    shapes = {
        tuple(part.shape) if isinstance(part, Tensor) else ()
        for layer in getattr(cache, "layers", [None])
        for part in (getattr(layer, "keys", None), getattr(layer, "values", None))
    }
    (shape, *other_shapes) = shapes
    if other_shapes or len(shape) != 4:
        raise UserError(
            f"the in-process engine needs caches of one shape, but this {model.config.model_type} "
            f"model has {' and '.join(map(str, sorted(shapes)))}",
            "use the vLLM engine for this model",
        )
    return len(cache.layers), shape[1], shape[3]


def _padded(rows: int) -> int:
    """Return the padded number of rows of a matrix product, for results that hardly depend on it."""
    return max(16, -(-rows // 8) * 8)
