"""Attention whose result for a sequence does not depend on what shares its batch (on CPU).

Fused attention splits its work by the shape of the whole batch, so that a sequence's last bits vary
with its neighbours. Here scores and sums are plain batched matrix products, which were found to be
bitwise equal for any number of rows and, for at most ``GROUP`` query rows per key head, for any
padded key length (multiples of 64; MKL blocks larger products by their length). Key heads shared by
several query heads are not copied. With one query it is also faster than fused attention on CPU.
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
    """Transformers' attention interface: query ``[B, H, Q, D]``, key and value ``[B, h, T, D]``.

    ``attention_mask`` is additive, ``[B or 1, 1, Q, T]``. Returns ``[B, Q, H, D]``.
    """
    batch, heads, length, width = query.shape
    shared = key.shape[1]
    group = heads // shared
    query = (query * (width**-0.5 if scaling is None else scaling)).reshape(
        batch, shared, group * length, width
    )
    step = GROUP if length == 1 else group * length
    outputs = [
        _attend(query[:, :, start : start + step], key, value, attention_mask, length)
        for start in range(0, group * length, step)
    ]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
    return output.view(batch, heads, length, width).transpose(1, 2).contiguous(), None


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, length: int) -> Tensor:
    scores = torch.matmul(query, key.transpose(2, 3))
    if mask is not None:
        batch, shared, rows, keys = scores.shape
        scores = scores.view(batch, shared, rows // length, length, keys) + mask[:, :, None]
        scores = scores.view(batch, shared, rows, keys)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value)


def use_rows(model: Any) -> None:
    """Make ``model`` attend with :func:`attend`."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    model.set_attn_implementation(NAME)


@contextmanager
def attending(model: Any, name: str) -> Iterator[None]:
    """With another attention for a while, such as ``sdpa`` for whole sequences."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
