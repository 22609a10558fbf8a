"""Attention over a trie by blocks of its nodes: on a CPU it costs what a long trie needs, and not all its pairs.

In a trie of several answers to one prompt most pairs are of nodes of different answers, and a dense mask computes these
too. Nodes stand in depth-first order, so that what neighbours attend to is nearly the same: a block of them is computed
against those keys only that some of its nodes attend to. What is left out had a weight of exactly 0.

A model is given the mask as it always was. That it is more than a tensor shows in ``scaled_dot_product_attention``
alone, whichever layer calls that, also where a layer is computed again in the backward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 128
LEAST_WIDTH = 512
"""Of tries that are narrower all pairs are cheap, and calls are not."""


@dataclass(frozen=True, slots=True)
class Block:
    """What some nodes attend to."""

    keys: Tensor
    """``[K]``: the nodes that at least one of them attends to."""
    mask: Tensor
    """Bool ``[1, 1, Q, K]``: which of those each of them attends to."""


class BlockedMask(Tensor):
    """A mask, bool ``[B, 1, W, W]``, under which attention is computed by blocks. In all else it is a plain tensor."""

    blocks: Sequence[Sequence[Block]]
    """Of each row of the batch, in order of its nodes."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Attention of all nodes to all nodes goes by blocks, everything else as if this were a tensor."""
        options = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            if func is scaled_dot_product_attention and len(args) == 3:
                mask = options["attn_mask"]
                if args[0].shape[-2] == args[1].shape[-2] == mask.shape[-1]:
                    del options["attn_mask"]
                    return _attend(mask.blocks, *args, **options)
            return func(*args, **options)


def by_blocks(mask: Tensor) -> Tensor:
    """A mask, bool ``[B, 1, W, W]``, as one that is computed by blocks, where that halves the work at least."""
    width = mask.shape[-1]
    if width < LEAST_WIDTH or mask.device.type != "cpu":
        return mask
    blocks = [list(_blocks(row)) for row in mask[:, 0]]
    if 2 * sum(one.mask.numel() for row in blocks for one in row) > mask.numel():
        return mask
    found = mask.as_subclass(BlockedMask)
    found.blocks = blocks
    return found


def _blocks(mask: Tensor) -> Iterator[Block]:
    for part in mask.split(BLOCK):
        keys = part.any(0).nonzero().squeeze(1)
        yield Block(keys, part.index_select(1, keys)[None, None])


def _attend(
    blocks: Sequence[Sequence[Block]], query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Tensor:
    """Attention ``[B, H, W, D]`` of all nodes, row by row and block by block."""
    rows = []
    for row, q, k, v in zip(blocks, query.split(1), key.split(1), value.split(1), strict=True):
        found = []
        for block, part in zip(row, q.split(BLOCK, -2), strict=True):
            kept = (k.index_select(-2, block.keys), v.index_select(-2, block.keys))
            found.append(scaled_dot_product_attention(part, *kept, attn_mask=block.mask, **options))
        rows.append(torch.cat(found, -2))
    return torch.cat(rows)
