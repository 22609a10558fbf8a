"""Log-probabilities of given tokens: the one place where training, rewards and engines get them.

The body of the model runs once over the sequences; its vocabulary projection, the larger part of
the memory of a small model, runs only at the wanted positions and in chunks. All in float32.

Training under a wrapper with its own ``forward`` (DDP, FSDP) must call this from inside a module
that the wrapper wraps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPast

CHUNK_ELEMENTS = 1 << 24
"""Logits that exist at once: positions are projected to the vocabulary in chunks."""
GPU_CHUNKS = 8
"""How many times larger chunks are on a GPU, which waits for the kernels of small ones to be launched."""
PEFT_PREFIX = "base_model.model."
"""What PEFT puts before the names of the base's weights."""
LEAST_LOGPROB = -1e4
"""Of a token that has no probability, where entropies are computed."""


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
    """Log-probability (nats, float32) of ``tokens[n]`` as read at place ``at[n]``. Shape ``[N]``.

    ``ids`` is ``[B, L]``; ``at`` ``[N]`` indexes it flattened (the place *before* the token, or its
    parent in a trie) and ``tokens`` is ``[N]``. ``attention_mask`` is what the model takes: 2D,
    additive 4D, or ``None`` for causal (right padding then needs no mask). Gradients flow where
    they are enabled, with each chunk's logits computed again in the backward pass.
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
    """What :func:`token_logprobs` gives and, of the same logits, the entropy of the distribution there (nats, exact
    over the vocabulary). Shape ``[N, 2]``. Entropies have a gradient only where it is asked for.
    """
    inputs = {"attention_mask": attention_mask, "position_ids": position_ids}
    one = _chunk_with_entropy if gradient else _chunk_with_shown_entropy
    return _in_chunks(one, model, ids, at, tokens, temperature, **inputs)


def targets(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """``(at, tokens)`` for the tokens of ``ids`` ``[B, L]`` where ``mask`` is true.

    A row's first token has nothing before it and can't be a target (``ValueError``).
    """
    if bool(mask[:, 0].any()):
        raise ValueError("the first token of a row can't be a target: nothing comes before it")
    flat = mask.flatten().nonzero().squeeze(1)
    return flat - 1, ids.flatten()[flat]


def hidden_states(model: Any, ids: Tensor, **inputs: Any) -> Tensor:
    """Last hidden states ``[B, L, width]`` of a causal language model, adapters included."""
    return body(model)(input_ids=ids, use_cache=False, **inputs).last_hidden_state


def vocabulary_logits(model: Any, hidden: Tensor) -> Tensor:
    """Logits in float32 of last hidden states ``[..., width]``.

    The model's own forward pass goes on from them, so that whatever it does around its head (logits
    that are scaled, capped or biased) is done here too.
    """
    inner: Any = causal(model)
    flat: Any = hidden.reshape(1, -1, hidden.shape[-1])
    ids = torch.zeros(flat.shape[:2], dtype=torch.long, device=hidden.device)
    with _answering(body(model), _States(last_hidden_state=flat)):
        logits = inner(input_ids=ids, use_cache=False).logits.float()
    return logits.reshape(*hidden.shape[:-1], -1)


def causal(model: Any) -> Any:
    """The causal language model inside a model that may have adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def body(model: Any) -> Any:
    """The model without its vocabulary projection, which its forward pass calls for last hidden states."""
    return causal(model).get_decoder()


class _States(BaseModelOutputWithPast):
    """Last hidden states as a body returns them, and none of what else it may return."""

    def __getattr__(self, name: str) -> None:
        """``None`` for any other part, such as the choices of a router."""


@contextmanager
def _answering(module: Any, output: Any) -> Iterator[None]:
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
    one: Callable[..., Tensor],
    model: Any,
    ids: Tensor,
    at: Tensor,
    tokens: Tensor,
    temperature: float,
    **inputs: Any,
) -> Tensor:
    hidden = hidden_states(model, ids, **inputs)
    # Not hidden[at]: siblings share a parent, and on CPU its gradient is then summed in any order.
    wanted = hidden.flatten(0, 1).index_select(0, at)
    elements = CHUNK_ELEMENTS * (1 if hidden.device.type == "cpu" else GPU_CHUNKS)
    chunk = max(1, elements // model.config.get_text_config().vocab_size)
    pieces = []
    for start in range(0, max(1, len(at)), chunk):
        part = (wanted[start : start + chunk], tokens[start : start + chunk])
        if torch.is_grad_enabled():
            piece = checkpoint(
                one, model, *part, temperature, use_reentrant=False, preserve_rng_state=False
            )
        else:
            piece = one(model, *part, temperature)
        pieces.append(piece)
    return torch.cat(pieces)


def _all_logprobs(model: Any, hidden: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(vocabulary_logits(model, hidden) / temperature, -1)


def _chunk(model: Any, hidden: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    logprobs_NV = _all_logprobs(model, hidden, temperature)
    return logprobs_NV.gather(1, tokens[:, None]).squeeze(1)


def _chunk_with_entropy(model: Any, hidden: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    logprobs_NV = _all_logprobs(model, hidden, temperature)
    return torch.stack([logprobs_NV.gather(1, tokens[:, None])[:, 0], entropies(logprobs_NV)], -1)


def _chunk_with_shown_entropy(
    model: Any, hidden: Tensor, tokens: Tensor, temperature: float
) -> Tensor:
    logprobs_NV = _all_logprobs(model, hidden, temperature)
    entropies_N = entropies(logprobs_NV.detach())
    return torch.stack([logprobs_NV.gather(1, tokens[:, None])[:, 0], entropies_N], -1)


def entropies(logprobs_NV: Tensor) -> Tensor:
    """Entropy (nats) of each distribution over a vocabulary; ``[N]``. What is ruled out (-inf) adds nothing."""
    return -(logprobs_NV.exp() * logprobs_NV.clamp(min=LEAST_LOGPROB)).sum(-1)
