"""Log-probs of tokens of many sequences in one batch, in which shared prefixes run once.

A wrapper with its own ``forward`` (DDP, FSDP) must call these functions inside the wrapped module.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPast

from coterie.models.prefix_trie import CostRule, Ids, Pack, pack

CHUNK_ELEMENTS = 1 << 25
"""Maximum number of logits in memory at once."""
GPU_CHUNKS = 4
"""Factor by which chunks are larger on a GPU, where kernel launches dominate small chunks."""
PEFT_PREFIX = "base_model.model."
"""Prefix of the names of the base's weights in PEFT."""
LEAST_LOGPROB = -1e4
"""Log-prob of tokens with probability 0 in entropies."""
PADDING = 0
"""Any token id: no token attends to padding."""
BLOCK = 128
"""Nodes of a block of attention over a trie."""
LEAST_WIDTH = 512
"""Minimum width of a trie for blocks: below it, all pairs cost less than the calls for blocks."""
WHOLE = {"full_attention", "global"}
"""Layer types in which tokens attend to all earlier tokens."""
WINDOWS = ("sliding_window", "attention_window_size", "keep_window_size")
"""Attention window sizes in configs without layer types."""


def token_logprobs(
    model: Any,
    ids: Tensor,
    parent_indices: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    compute: Callable[..., Tensor] | None = None,
    **inputs: Any,
) -> Tensor:
    """Return the log-probs (nats, float32, ``[N]``) of ``tokens`` predicted after ``parent_indices``.

    The vocabulary is projected only at these positions, in chunks and in float32; the backward pass recomputes the
    logits of all chunks but the last.

    Args:
        model: Causal language model.
        ids: Token ids ``[B, L]``.
        parent_indices: Indices ``[N]`` into the flattened ids of the token *before* each predicted token (its parent in
            a trie).
        tokens: Predicted tokens ``[N]``.
        temperature: Divisor of the logits.
        inputs: Arguments of the model: ``attention_mask`` (2D, additive 4D, or ``None`` for causal; right padding needs
            no mask) and ``position_ids`` ``[B, L]`` (``None`` for consecutive positions).
        compute: Function of a chunk; by default its log-probs.
    """
    compute = compute or _chunk
    # `[B, L, width]`. The layers run once; only the projection to the vocabulary is in chunks.
    hidden = hidden_states(model, ids, **inputs)
    # Not hidden[at]: siblings share a parent, and on CPU its gradient would be summed in any order.
    parents = hidden.flatten(0, 1).index_select(0, parent_indices)
    elements = CHUNK_ELEMENTS * (1 if hidden.device.type == "cpu" else GPU_CHUNKS)
    chunk = max(1, elements // model.config.get_text_config().vocab_size)
    # The projection draws no random numbers, so their state need not be kept.
    recompute = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
    pieces = []
    # At least one chunk, which may be empty: a batch without tokens has a result, too.
    for start in range(0, max(1, len(parent_indices)), chunk):
        # The backward pass begins with the last chunk, so keeping its logits takes no more memory.
        run = (
            recompute
            if torch.is_grad_enabled() and start + chunk < len(parent_indices)
            else compute
        )
        part = (parents[start : start + chunk], tokens[start : start + chunk])
        pieces.append(run(model, *part, temperature))
    return torch.cat(pieces)


def token_entropies(
    model: Any,
    ids: Tensor,
    parent_indices: Tensor,
    tokens: Tensor,
    *,
    gradient: bool = False,
    **options: Any,
) -> Tensor:
    """Return log-probs as :func:`token_logprobs` does, and the entropies of their distributions; ``[N, 2]``.

    Entropies (nats) are exact over the vocabulary and have a gradient only with ``gradient``.
    """
    compute = partial(_chunk_with_entropy, gradient=gradient)
    return token_logprobs(model, ids, parent_indices, tokens, compute=compute, **options)


def hidden_states(model: Any, ids: Tensor, **inputs: Any) -> Tensor:
    """Return the last hidden states ``[B, L, width]`` of a causal language model, with its active adapter."""
    return body(model)(input_ids=ids, use_cache=False, **inputs).last_hidden_state


def vocabulary_logits(model: Any, hidden: Tensor) -> Tensor:
    """Return the logits (float32) of last hidden states ``[..., width]``, by the model's own forward pass."""
    inner: Any = causal(model)
    flat: Any = hidden.reshape(1, -1, hidden.shape[-1])
    ids = torch.zeros(flat.shape[:2], dtype=torch.long, device=hidden.device)
    # The model's own code applies its scale, bias or soft cap of the logits. Only its layers are
    # replaced, by the given states.
    with _fixed_output(body(model), _States(last_hidden_state=flat)):
        logits = inner(input_ids=ids, use_cache=False).logits.float()
    return logits.reshape(*hidden.shape[:-1], -1)


def causal(model: Any) -> Any:
    """Return the causal language model inside a model that may have adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def body(model: Any) -> Any:
    """Return the decoder of a model: its layers without the vocabulary projection."""
    return causal(model).get_decoder()


class _States(BaseModelOutputWithPast):
    """Output of a decoder with only the last hidden states."""

    def __getattr__(self, name: str) -> None:
        """Return ``None`` for any other part, such as router logits."""


@contextmanager
def _fixed_output(module: Any, output: Any) -> Iterator[None]:
    # Another library may have put a `forward` on this module, which has to be restored.
    patched_forward = vars(module).get("forward")
    module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        if patched_forward is None:
            del module.forward
        else:
            module.forward = patched_forward


def _all_logprobs(model: Any, hidden: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(vocabulary_logits(model, hidden) / temperature, -1)


def _chunk(model: Any, hidden: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    logprobs_NV = _all_logprobs(model, hidden, temperature)
    return logprobs_NV.gather(1, tokens[:, None]).squeeze(1)


def _chunk_with_entropy(
    model: Any, hidden: Tensor, tokens: Tensor, temperature: float, *, gradient: bool
) -> Tensor:
    logprobs_NV = _all_logprobs(model, hidden, temperature)
    entropies_N = entropies(logprobs_NV if gradient else logprobs_NV.detach())
    return torch.stack([logprobs_NV.gather(1, tokens[:, None])[:, 0], entropies_N], -1)


def entropies(logprobs_NV: Tensor) -> Tensor:
    """Return the entropy (nats) of each distribution ``[N]``. Tokens with log-prob -inf contribute 0."""
    return -(logprobs_NV.exp() * logprobs_NV.clamp(min=LEAST_LOGPROB)).sum(-1)


# -- batches of tries -----------------------------------------------------------------------------


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

    @property
    def inputs(self) -> dict[str, Any]:
        """Arguments of the model beside the ids."""
        return {"attention_mask": self.mask, "position_ids": self.positions}


def pack_batch(
    sequences: Sequence[Ids],
    positions: Sequence[Sequence[int]],
    rule: CostRule | None,
    device: torch.device | str = "cpu",
    *,
    flex: bool = False,
) -> PackedBatch:
    """Pack sequences into a batch and select tokens.

    Args:
        sequences: Token ids.
        positions: Positions of the selected tokens of each sequence; none is 0.
        rule: Packing rule; ``None`` for one sequence per row.
        device: Device of the batch.
        flex: Build the mask for FlexAttention.
    """
    packs = pack(sequences, rule)
    width = max(len(pack.trie) for pack in packs)
    ids_BW = np.full((len(packs), width), PADDING)
    parents, indices, labels = [], [], []
    rows: list[Tensor] = [torch.empty(0, dtype=torch.long)] * len(sequences)
    count = 0
    for row, packed in enumerate(packs):
        trie = packed.trie
        ids_BW[row, : len(trie)] = trie.ids
        # Nodes of the selected tokens, for each sequence in the trie.
        selected = [
            path[np.asarray(positions[i], np.int64)]
            for i, path in zip(packed.members, trie.paths, strict=True)
        ]
        # A node that several sequences select is computed once; `back` has the index of each token.
        nodes, back = np.unique(np.concatenate(selected), return_inverse=True)
        # The state at a node's parent predicts its token. Indices are into the flattened ids.
        parents.append(row * width + trie.parents[nodes])
        indices.append(row * width + nodes)
        labels.append(trie.ids[nodes])
        stops = np.cumsum([len(part) for part in selected])[:-1]
        for i, part in zip(packed.members, np.split(back, stops), strict=True):
            rows[i] = torch.from_numpy(count + part).to(device)
        count += len(nodes)
    at_N, nodes_N, labels_N = (
        torch.from_numpy(np.concatenate(arrays)).to(device) for arrays in (parents, indices, labels)
    )
    # A batch of chains is an ordinary batch: causal attention needs no mask, and is faster.
    branches = any(not pack.trie.is_chain for pack in packs)
    return PackedBatch(
        torch.from_numpy(ids_BW).to(device),
        (_block_mask if flex else _mask)(packs, width, device) if branches else None,
        _positions(packs, width).to(device) if branches else None,
        at_N,
        nodes_N,
        labels_N,
        tuple(rows),
    )


def model_batch(
    model: Any, sequences: Sequence[Ids], positions: Sequence[Sequence[int]], rule: CostRule | None
) -> PackedBatch:
    """Pack a batch on the model's device, with a mask for its attention implementation."""
    weight, attention = model.get_input_embeddings().weight, model.config._attn_implementation
    flex = attention == "flex_attention"
    batch = pack_batch(sequences, positions, rule, weight.device, flex=flex)
    if attention == "eager" and isinstance(batch.mask, Tensor):  # it adds its mask to the scores
        # As in Transformers: with -inf, a row without any key would become NaN.
        lowest = torch.finfo(weight.dtype).min
        bias = torch.zeros(batch.mask.shape, dtype=weight.dtype, device=weight.device)
        batch = replace(batch, mask=bias.masked_fill_(~batch.mask, lowest))
    return batch


def sequence_logprobs(
    model: Any,
    sequences: Sequence[Ids],
    positions: Sequence[Sequence[int]],
    rule: CostRule | None = None,
    *,
    compute: Callable[..., Tensor] = token_logprobs,
    **options: Any,
) -> list[Tensor]:
    """Return the log-probs (nats, float32) of the tokens at ``positions[i]`` (none is 0) of each sequence."""
    batch = model_batch(model, sequences, positions, rule)
    values_N = compute(model, batch.ids, batch.at, batch.labels, **batch.inputs, **options)
    return [values_N.index_select(0, row) for row in batch.rows]


def _mask(packs: Sequence[Pack], width: int, device: torch.device | str) -> Tensor:
    """Build the mask: a node attends to itself and its ancestors, padding to itself."""
    # Padding attends to itself: a softmax over no keys would be NaN.
    mask_BWW = torch.eye(width, dtype=torch.bool).repeat(len(packs), 1, 1)
    for row, packed in enumerate(packs):
        nodes = len(packed.trie)
        mask_BWW[row, :nodes, :nodes] = torch.from_numpy(packed.trie.ancestors())
    return by_blocks(mask_BWW[:, None].to(device))


def _block_mask(packs: Sequence[Pack], width: int, device: torch.device | str) -> BlockMask:
    """Build the mask for FlexAttention from entry and exit times. Skips blocks without an ancestor."""
    # Padding is its own only descendant, and so attends to itself alone.
    exits_BW = torch.arange(1, width + 1).repeat(len(packs), 1)
    for row, packed in enumerate(packs):
        exits_BW[row, : len(packed.trie)] = torch.from_numpy(packed.trie.exits)
    exits_BW = exits_BW.to(device)

    def is_above(row: Tensor, _: Tensor, node: Tensor, key: Tensor) -> Tensor:
        return (key <= node) & (node < exits_BW[row, key])

    return create_block_mask(is_above, len(packs), None, width, width, device=str(device))


def _positions(packs: Sequence[Pack], width: int) -> Tensor:
    positions_BW = torch.zeros(len(packs), width, dtype=torch.long)
    for row, packed in enumerate(packs):
        positions_BW[row, : len(packed.trie)] = torch.from_numpy(packed.trie.depths)
    return positions_BW


def masked_attention(model: Any) -> str:
    """Return the name of an attention that takes any mask: ``eager`` if the model uses it, else ``sdpa``."""
    return "eager" if model.config._attn_implementation == "eager" else "sdpa"


@contextmanager
def attending(model: Any, name: str) -> Iterator[None]:
    """Use another attention inside the block; training uses the model's own."""
    config = model.config
    previous = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = previous


def partial_attention(config: Any) -> list[str]:
    """List the layers of a model that do not attend to all earlier tokens. Most matter only in long rows."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or getattr(text, "attention_layers", None)
    if kinds:
        return [f"layers of {kind.replace('_', ' ')}" for kind in sorted(set(kinds) - WHOLE)]
    sizes = {name: getattr(text, name, None) for name in WINDOWS}
    return [f"a {name.replace('_', ' ')} of {size}" for name, size in sizes.items() if size]


# -- attention by blocks on CPU -------------------------------------------------------------------


class Block(NamedTuple):
    """Keys and mask of a block of nodes, which are neighbors and attend to nearly the same keys."""

    keys: Tensor
    """``[K]``: nodes that at least one node of the block attends to. Others would have a weight of exactly 0."""
    mask: Tensor
    """Bool ``[1, 1, Q, K]``: keys that each node attends to."""


class BlockedMask(Tensor):
    """Mask, bool ``[B, 1, W, W]``, that ``scaled_dot_product_attention`` handles by blocks; else a plain tensor."""

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
                # Only self-attention of the whole trie: other shapes don't fit the blocks.
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
        # Neighbors in depth-first order have mostly the same ancestors, so a block has few keys.
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
