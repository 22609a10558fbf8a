"""Log-probs of tokens of many sequences, through one batch in which shared beginnings run once.

Used by training, by reference log-probs and by engines, so that all three compute the same thing.
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
"""Any id of the vocabulary: nothing attends to it."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Tries of sequences as a padded batch, and which of their tokens are wanted."""

    ids: Tensor
    """``[B, W]``: a trie (or a sequence by itself) in each row, padded on the right."""
    mask: Tensor | BlockMask | None
    """What each node attends to: bool ``[B, 1, W, W]``, or for FlexAttention blocks of it. ``None``: no
    row branches, so causal."""
    positions: Tensor | None
    """``[B, W]``: depth of each node, where there is a mask."""
    at: Tensor
    """``[N]``: where in the flattened ids each wanted token is read, the place of its parent."""
    nodes: Tensor
    """``[N]``: where in the flattened ids each wanted token stands itself."""
    labels: Tensor
    """``[N]``: the wanted tokens, each node once however many sequences share it."""
    rows: tuple[Tensor, ...]
    """For each sequence, which of the N are its wanted tokens, in order."""


def pack_batch(
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None,
    device: torch.device | str = "cpu",
    *,
    flex: bool = False,
) -> PackedBatch:
    """A batch of ``sequences``; ``places[i]`` are the wanted tokens of the i-th, none of them 0.

    Without a ``rule`` every sequence stands alone. ``flex`` gives the mask as FlexAttention takes it.
    """
    packs = pack(sequences, rule)
    width = max(len(one.trie) for one in packs)
    ids_BW = np.full((len(packs), width), PADDING)
    at, stands, labels = [], [], []
    rows: list[Tensor] = [torch.empty(0, dtype=torch.long)] * len(sequences)
    count = 0
    for row, one in enumerate(packs):
        trie = one.trie
        ids_BW[row, : len(trie)] = trie.ids
        wanted = [
            path[np.asarray(places[i], np.int64)]
            for i, path in zip(one.members, trie.paths, strict=True)
        ]
        nodes, back = np.unique(np.concatenate(wanted), return_inverse=True)
        at.append(row * width + trie.parents[nodes])
        stands.append(row * width + nodes)
        labels.append(trie.ids[nodes])
        stops = np.cumsum([len(part) for part in wanted])[:-1]
        for i, part in zip(one.members, np.split(back, stops), strict=True):
            rows[i] = torch.from_numpy(count + part).to(device)
        count += len(nodes)
    branches = any(not one.trie.is_chain for one in packs)
    return PackedBatch(
        torch.from_numpy(ids_BW).to(device),
        (_block_mask if flex else _mask)(packs, width, device) if branches else None,
        _positions(packs, width).to(device) if branches else None,
        torch.from_numpy(np.concatenate(at)).to(device),
        torch.from_numpy(np.concatenate(stands)).to(device),
        torch.from_numpy(np.concatenate(labels)).to(device),
        tuple(rows),
    )


def model_batch(
    model: Any, sequences: Sequence[Ids], places: Sequence[Sequence[int]], rule: CostRule | None
) -> PackedBatch:
    """A batch on the model's device, its mask as the model's attention takes it."""
    weight, attention = model.get_input_embeddings().weight, model.config._attn_implementation
    flex = attention == "flex_attention"
    batch = pack_batch(sequences, places, rule, weight.device, flex=flex)
    if attention == "eager" and isinstance(batch.mask, Tensor):  # which adds its mask to scores
        lowest = torch.finfo(weight.dtype).min
        added = torch.zeros(batch.mask.shape, dtype=weight.dtype, device=weight.device)
        batch = replace(batch, mask=added.masked_fill_(~batch.mask, lowest))
    return batch


def sequence_logprobs(
    model: Any,
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None = None,
    *,
    temperature: float = 1.0,
) -> list[Tensor]:
    """Log-probs (nats, float32) of the tokens at ``places[i]`` (none of them 0) of each sequence."""
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
    """Log-probs of these tokens, and entropies (nats) of the distributions that they are of; each ``[places, 2]``.

    Entropies have a gradient only where it is asked for.
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
    found_N = tokens(model, batch.ids, batch.at, batch.labels, **inputs)
    return [found_N.index_select(0, row) for row in batch.rows]


def _mask(packs: Sequence[Pack], width: int, device: torch.device | str) -> Tensor:
    """What each node attends to: itself and its ancestors; padding attends to itself."""
    mask_BWW = torch.eye(width, dtype=torch.bool).repeat(len(packs), 1, 1)
    for row, one in enumerate(packs):
        nodes = len(one.trie)
        mask_BWW[row, :nodes, :nodes] = torch.from_numpy(one.trie.ancestors())
    return by_blocks(mask_BWW[:, None].to(device))


def _block_mask(packs: Sequence[Pack], width: int, device: torch.device | str) -> BlockMask:
    """The same for FlexAttention, by entry and exit times: blocks without an ancestor are skipped."""
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
