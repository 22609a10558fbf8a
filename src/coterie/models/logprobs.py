"""Log-probs of tokens, shared by training, rewards and engines.

The body of the model runs once over the sequences. Its vocabulary projection, which takes most of the memory of a
small model, runs only at the selected positions, in chunks and in float32.

Training under a wrapper with its own ``forward`` (DDP, FSDP) must call these functions inside the wrapped module.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPast

CHUNK_ELEMENTS = 1 << 25
"""Maximum number of logits in memory at once."""
GPU_CHUNKS = 4
"""Factor by which chunks are larger on a GPU, where kernel launches dominate small chunks."""
PEFT_PREFIX = "base_model.model."
"""Prefix of the names of the base's weights in PEFT."""
LEAST_LOGPROB = -1e4
"""Log-prob of tokens with probability 0 in entropies."""


def token_logprobs(
    model: Any,
    ids: Tensor,
    at: Tensor,
    tokens: Tensor,
    *,
    attention_mask: Tensor | BlockMask | None = None,
    position_ids: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return the log-probs (nats, float32, ``[N]``) of ``tokens`` predicted at positions ``at``.

    Gradients flow if enabled; the backward pass recomputes the logits of all chunks but the last.

    Args:
        model: Causal language model.
        ids: Token ids ``[B, L]``.
        at: Indices ``[N]`` into the flattened ids of the token *before* each predicted token (its parent in a trie).
        tokens: Predicted tokens ``[N]``.
        attention_mask: Mask for the model: 2D, additive 4D, or ``None`` for causal (right padding needs no mask).
        position_ids: Positions ``[B, L]``; ``None`` for consecutive positions.
        temperature: Divisor of the logits.
    """
    inputs = {"attention_mask": attention_mask, "position_ids": position_ids}
    return _in_chunks(_chunk, model, ids, at, tokens, temperature, **inputs)


def token_entropies(
    model: Any,
    ids: Tensor,
    at: Tensor,
    tokens: Tensor,
    *,
    attention_mask: Tensor | BlockMask | None = None,
    position_ids: Tensor | None = None,
    temperature: float = 1.0,
    gradient: bool = False,
) -> Tensor:
    """Return log-probs as :func:`token_logprobs` does, and the entropies of their distributions; ``[N, 2]``.

    Entropies (nats) are exact over the vocabulary and have a gradient only with ``gradient``.
    """
    inputs = {"attention_mask": attention_mask, "position_ids": position_ids}
    chunk = partial(_chunk_with_entropy, gradient=gradient)
    return _in_chunks(chunk, model, ids, at, tokens, temperature, **inputs)


def targets(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(at, tokens)`` for the tokens of ``ids`` ``[B, L]`` where ``mask`` is True.

    Raises ``ValueError`` if the first token of a row is a target.
    """
    if bool(mask[:, 0].any()):
        raise ValueError("the first token of a row can't be a target: nothing comes before it")
    flat = mask.flatten().nonzero().squeeze(1)
    return flat - 1, ids.flatten()[flat]


def hidden_states(model: Any, ids: Tensor, **inputs: Any) -> Tensor:
    """Return the last hidden states ``[B, L, width]`` of a causal language model, with its active adapter."""
    return body(model)(input_ids=ids, use_cache=False, **inputs).last_hidden_state


def vocabulary_logits(model: Any, hidden: Tensor) -> Tensor:
    """Return the logits (float32) of last hidden states ``[..., width]``.

    The model's own forward pass computes them, so scaling, soft capping or biases of logits apply.
    """
    inner: Any = causal(model)
    flat: Any = hidden.reshape(1, -1, hidden.shape[-1])
    ids = torch.zeros(flat.shape[:2], dtype=torch.long, device=hidden.device)
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
    own = vars(module).get("forward")
    module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _in_chunks(
    compute: Callable[..., Tensor],
    model: Any,
    ids: Tensor,
    at: Tensor,
    tokens: Tensor,
    temperature: float,
    **inputs: Any,
) -> Tensor:
    hidden = hidden_states(model, ids, **inputs)
    # Not hidden[at]: siblings share a parent, and on CPU its gradient would be summed in any order.
    parents = hidden.flatten(0, 1).index_select(0, at)
    elements = CHUNK_ELEMENTS * (1 if hidden.device.type == "cpu" else GPU_CHUNKS)
    chunk = max(1, elements // model.config.get_text_config().vocab_size)
    pieces = []
    for start in range(0, max(1, len(at)), chunk):
        part = (parents[start : start + chunk], tokens[start : start + chunk])
        # The backward pass begins with the last chunk, so keeping its logits takes no more memory.
        if torch.is_grad_enabled() and start + chunk < len(at):
            piece = checkpoint(
                compute, model, *part, temperature, use_reentrant=False, preserve_rng_state=False
            )
        else:
            piece = compute(model, *part, temperature)
        pieces.append(piece)
    return torch.cat(pieces)


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
