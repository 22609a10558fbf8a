"""Log-probs of tokens of many sequences in one batch, in which shared prefixes run once.

Training, reference log-probs and engines use the same code, so their results agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from coterie.models.blocks import by_blocks
from coterie.models.logprobs import token_entropies, token_logprobs
from coterie.models.packing import CostRule, Pack, pack
from coterie.models.trie import Ids

PADDING = 0
"""Any token id: no token attends to padding."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Tries of sequences as a padded batch, and the selected tokens."""

    ids: Tensor
    """``[B, W]``: one trie (or sequence) per row, right-padded."""
    mask: Tensor | BlockMask | None
    """Nodes that each node attends to: bool ``[B, 1, W, W]``, or a block mask for FlexAttention. ``None`` (causal) if
    no row branches."""
    positions: Tensor | None
    """``[B, W]``: depth of each node; ``None`` without a mask."""
    at: Tensor
    """``[N]``: index of the parent of each selected token in the flattened ids."""
    nodes: Tensor
    """``[N]``: index of each selected token in the flattened ids."""
    labels: Tensor
    """``[N]``: the selected tokens; a node shared by several sequences occurs once."""
    rows: tuple[Tensor, ...]
    """Indices, among the N, of the selected tokens of each sequence, in order."""


def pack_batch(
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None,
    device: torch.device | str = "cpu",
    *,
    flex: bool = False,
) -> PackedBatch:
    """Pack sequences into a batch and select tokens.

    Args:
        sequences: Token ids.
        places: Positions of the selected tokens of each sequence; none is 0.
        rule: Packing rule; ``None`` for one sequence per row.
        device: Device of the batch.
        flex: Build the mask for FlexAttention.
    """
    packs = pack(sequences, rule)
    width = max(len(one.trie) for one in packs)
    ids_BW = np.full((len(packs), width), PADDING)
    at, indices, labels = [], [], []
    rows: list[Tensor] = [torch.empty(0, dtype=torch.long)] * len(sequences)
    count = 0
    for row, one in enumerate(packs):
        trie = one.trie
        ids_BW[row, : len(trie)] = trie.ids
        selected = [
            path[np.asarray(places[i], np.int64)]
            for i, path in zip(one.members, trie.paths, strict=True)
        ]
        nodes, back = np.unique(np.concatenate(selected), return_inverse=True)
        at.append(row * width + trie.parents[nodes])
        indices.append(row * width + nodes)
        labels.append(trie.ids[nodes])
        stops = np.cumsum([len(part) for part in selected])[:-1]
        for i, part in zip(one.members, np.split(back, stops), strict=True):
            rows[i] = torch.from_numpy(count + part).to(device)
        count += len(nodes)
    branches = any(not one.trie.is_chain for one in packs)
    return PackedBatch(
        torch.from_numpy(ids_BW).to(device),
        (_block_mask if flex else _mask)(packs, width, device) if branches else None,
        _positions(packs, width).to(device) if branches else None,
        torch.from_numpy(np.concatenate(at)).to(device),
        torch.from_numpy(np.concatenate(indices)).to(device),
        torch.from_numpy(np.concatenate(labels)).to(device),
        tuple(rows),
    )


def model_batch(
    model: Any, sequences: Sequence[Ids], places: Sequence[Sequence[int]], rule: CostRule | None
) -> PackedBatch:
    """Pack a batch on the model's device, with a mask for its attention implementation."""
    weight, attention = model.get_input_embeddings().weight, model.config._attn_implementation
    flex = attention == "flex_attention"
    batch = pack_batch(sequences, places, rule, weight.device, flex=flex)
    if attention == "eager" and isinstance(
        batch.mask, Tensor
    ):  # eager attention adds its mask to the scores
        lowest = torch.finfo(weight.dtype).min
        bias = torch.zeros(batch.mask.shape, dtype=weight.dtype, device=weight.device)
        batch = replace(batch, mask=bias.masked_fill_(~batch.mask, lowest))
    return batch


def sequence_logprobs(
    model: Any,
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None = None,
    *,
    temperature: float = 1.0,
) -> list[Tensor]:
    """Return the log-probs (nats, float32) of the tokens at ``places[i]`` (none is 0) of each sequence."""
    return _read(token_logprobs, model, sequences, places, rule, temperature=temperature)


def sequence_entropies(
    model: Any,
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None = None,
    *,
    temperature: float = 1.0,
    gradient: bool = False,
) -> list[Tensor]:
    """Return log-probs of the same tokens and entropies (nats) of their distributions; ``[places, 2]`` each.

    Entropies have a gradient only with ``gradient``.
    """
    options = {"temperature": temperature, "gradient": gradient}
    return _read(token_entropies, model, sequences, places, rule, **options)


def _read(
    tokens: Callable[..., Tensor],
    model: Any,
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None,
    **options: Any,
) -> list[Tensor]:
    batch = model_batch(model, sequences, places, rule)
    inputs = {"attention_mask": batch.mask, "position_ids": batch.positions, **options}
    values_N = tokens(model, batch.ids, batch.at, batch.labels, **inputs)
    return [values_N.index_select(0, row) for row in batch.rows]


def _mask(packs: Sequence[Pack], width: int, device: torch.device | str) -> Tensor:
    """Build the mask: a node attends to itself and its ancestors, padding to itself."""
    mask_BWW = torch.eye(width, dtype=torch.bool).repeat(len(packs), 1, 1)
    for row, one in enumerate(packs):
        nodes = len(one.trie)
        mask_BWW[row, :nodes, :nodes] = torch.from_numpy(one.trie.ancestors())
    return by_blocks(mask_BWW[:, None].to(device))


def _block_mask(packs: Sequence[Pack], width: int, device: torch.device | str) -> BlockMask:
    """Build the mask for FlexAttention from entry and exit times. Skips blocks without an ancestor."""
    exits_BW = torch.arange(1, width + 1).repeat(len(packs), 1)
    for row, one in enumerate(packs):
        exits_BW[row, : len(one.trie)] = torch.from_numpy(one.trie.exits)
    exits_BW = exits_BW.to(device)

    def is_above(row: Tensor, _: Tensor, node: Tensor, key: Tensor) -> Tensor:
        return (key <= node) & (node < exits_BW[row, key])

    return create_block_mask(is_above, len(packs), None, width, width, device=str(device))


def _positions(packs: Sequence[Pack], width: int) -> Tensor:
    positions_BW = torch.zeros(len(packs), width, dtype=torch.long)
    for row, one in enumerate(packs):
        positions_BW[row, : len(one.trie)] = torch.from_numpy(one.trie.depths)
    return positions_BW
