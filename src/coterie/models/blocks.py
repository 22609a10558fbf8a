"""Block-sparse attention over a trie on CPU.

In a trie of several answers to one prompt, most pairs are nodes of different answers. A dense mask computes these
pairs too. Nodes are in depth-first order, so neighbors attend to nearly the same keys. Each block of nodes is
computed against the keys that at least one of its nodes attends to. Skipped keys have a weight of exactly 0.

For the model, the mask is a tensor. Only ``scaled_dot_product_attention`` handles it by blocks, in any layer and
also when the backward pass recomputes a layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 128
LEAST_WIDTH = 512
"""Minimum width of a trie: below it, all pairs cost less than the calls for blocks."""


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and mask of a block of nodes."""

    keys: Tensor
    """``[K]``: nodes that at least one node of the block attends to."""
    mask: Tensor
    """Bool ``[1, 1, Q, K]``: keys that each node attends to."""


class BlockedMask(Tensor):
    """Mask, bool ``[B, 1, W, W]``, that makes attention block-sparse. Otherwise a plain tensor."""

    blocks: Sequence[Sequence[Block]]
    """Blocks of each row of the batch, in order of its nodes."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute attention of all nodes to all nodes by blocks. Treat the mask as a tensor in all other calls."""
        options = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            if func is scaled_dot_product_attention and len(args) == 3:
                mask = options["attn_mask"]
                if args[0].shape[-2] == args[1].shape[-2] == mask.shape[-1]:
                    del options["attn_mask"]
                    return _attend(mask.blocks, *args, **options)
            return func(*args, **options)


def by_blocks(mask: Tensor) -> Tensor:
    """Convert a mask, bool ``[B, 1, W, W]``, into a block-sparse one if this at least halves the work."""
    width = mask.shape[-1]
    if width < LEAST_WIDTH or mask.device.type != "cpu":
        return mask
    blocks = [list(_blocks(row)) for row in mask[:, 0]]
    if 2 * sum(block.mask.numel() for row in blocks for block in row) > mask.numel():
        return mask
    blocked = mask.as_subclass(BlockedMask)
    blocked.blocks = blocks
    return blocked


def _blocks(mask: Tensor) -> Iterator[Block]:
    for part in mask.split(BLOCK):
        keys = part.any(0).nonzero().squeeze(1)
        yield Block(keys, part.index_select(1, keys)[None, None])


def _attend(
    blocks: Sequence[Sequence[Block]], query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Tensor:
    """Return attention ``[B, H, W, D]`` of all nodes, computed by rows and blocks."""
    rows = []
    for row, q, k, v in zip(blocks, query.split(1), key.split(1), value.split(1), strict=True):
        outputs = []
        for block, part in zip(row, q.split(BLOCK, -2), strict=True):
            keys, values = k.index_select(-2, block.keys), v.index_select(-2, block.keys)
            outputs.append(
                scaled_dot_product_attention(part, keys, values, attn_mask=block.mask, **options)
            )
        rows.append(torch.cat(outputs, -2))
    return torch.cat(rows)
