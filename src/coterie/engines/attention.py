"""Attention on CPU that is nearly independent of the rest of the batch.

Fused attention splits its work by the shape of the whole batch, so that the last bits of a sequence vary with the
batch. Here scores and sums are plain batched matrix products. On AMD processors they are bitwise equal for any number
of rows and, for at most ``GROUP`` query rows per key head, for any padded key length (multiples of 64; MKL splits
larger products by their length). No processor guarantees that. Key heads shared by several query heads are not copied.
With one query it is also faster than fused attention on CPU.

The model uses it in forward passes of the engine only (:func:`attending`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "coterie_rows"
GROUP = 2


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Implement Transformers' attention interface. Return ``[B, Q, H, D]``.

    Query is ``[B, H, Q, D]``, key and value are ``[B, h, T, D]``, and ``attention_mask`` is additive,
    ``[B or 1, 1, Q, T]``.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend_keys(query, key, value, attention_mask, scaling), None


def attend_keys(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """Compute attention, with shapes as in :func:`attend`."""
    batch, heads, length, width = query.shape
    shared, keys = key.shape[1:3]
    rows = heads // shared * length
    query = query.reshape(batch * shared, rows, width)
    key, value = key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1)
    if mask is None:
        mask = query.new_zeros(())
    elif length == 1:
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
    return output.view(batch, heads, length, width).transpose(1, 2)


def masked_attention(model: Any) -> str:
    """Return the name of an attention that takes any mask: ``eager`` if the model uses it, else ``sdpa``."""
    return "eager" if model.config._attn_implementation == "eager" else "sdpa"


@contextmanager
def attending(model: Any, name: str) -> Iterator[None]:
    """Use another attention inside the block; training uses the model's own."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)
