"""The body of a Llama-shaped model on CPU in few operations, for models whose steps are small.

A decoding step of a small model is mostly the overhead of its operations. Here query, key and value
are one product, gate and up are one, and the angles of rotary positions are looked up. Products are
``weights @ inputs.T``: MKL divides a product among threads by its last dimension, and of a step the
number of rows is small (2.4 times as fast at 32 rows and two threads). The joined weights are the
storage of the model's own (which become views of it), so whatever is loaded into those is used here.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.engines.attention import attend_keys
from coterie.engines.slots import Slots
from coterie.models.logprobs import body

KINDS = ("llama", "qwen2")
FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose angles do not depend on the length of the sequence."""


class Joined:
    """Several linear maps of one input as one."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self.parts = parts
        sizes = [part.out_features for part in parts]
        self.weight = torch.cat([part.weight.detach() for part in parts])
        self.bias = None
        for part, view in zip(parts, self.weight.split(sizes), strict=True):
            part.weight.data = view
        if parts[0].bias is not None:
            self.bias = torch.cat([part.bias.detach() for part in parts])
            for part, view in zip(parts, self.bias.split(sizes), strict=True):
                part.bias.data = view
        self.at = [part.weight.data_ptr() for part in parts]

    @property
    def holds(self) -> bool:
        """Whether the maps still are what was joined."""
        return [part.weight.data_ptr() for part in self.parts] == self.at

    def __call__(self, inputs_NW: Tensor) -> Tensor:
        """All outputs, ``[outputs, N]``."""
        outputs_WN = torch.mm(self.weight, inputs_NW.t())
        return outputs_WN if self.bias is None else outputs_WN.add_(self.bias[:, None])


class Layer:
    """One decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.layer, self.linears = layer, _linears(layer)
        self.before, self.between = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = Joined([attention.o_proj])
        self.gate_up = Joined([mlp.gate_proj, mlp.up_proj])
        self.down = Joined([mlp.down_proj])
        self.width = attention.head_dim
        self.scaling = attention.scaling
        self.sizes = [
            part.out_features // self.width
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]

    @property
    def holds(self) -> bool:
        """Whether the layer's maps still are what was joined, and no adapter is around them."""
        joined = (self.qkv, self.out, self.gate_up, self.down)
        return _linears(self.layer) == self.linears and all(part.holds for part in joined)

    def __call__(
        self, x_NW: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, slots: Slots, number: int
    ) -> Tensor:
        """``x_NW`` is ``[B * Q, width]``; ``turn`` cosines and signed sines ``[D, B, Q]``."""
        queries, keys, _ = self.sizes
        cos, sin = turn
        joined_HDBQ = self.qkv(_norm(x_NW, self.before)).view(-1, *cos.shape)
        turning, value = joined_HDBQ.split([queries + keys, keys])
        turned = (turning * cos).addcmul_(turning.roll(self.width // 2, 1), sin)
        query, key = turned.split([queries, keys])
        seen = slots.update(key.permute(2, 0, 3, 1), value.permute(2, 0, 3, 1), number)
        mixed_BQHD = attend_keys(query.permute(2, 0, 3, 1), *seen, mask, self.scaling)
        x_NW = x_NW + self.out(mixed_BQHD.reshape(len(x_NW), -1)).t()
        gate, up = self.gate_up(_norm(x_NW, self.between)).chunk(2)
        return x_NW + self.down(functional.silu(gate).mul_(up).t()).t()


class FusedLlama:
    """What :func:`~coterie.models.logprobs.hidden_states` gives, for steps over slots."""

    def __init__(self, model: Any) -> None:
        inner = body(model)
        self.embedding, self.norm = inner.embed_tokens, inner.norm
        self.layers = [Layer(layer) for layer in inner.layers]
        self.width = self.layers[0].width
        everywhere = torch.arange(model.config.max_position_embeddings)[None]
        cos, sin = inner.rotary_emb(self.embedding.weight, everywhere)
        half = self.width // 2
        self.cos_DT = cos[0].T.contiguous()
        self.sin_DT = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1).T.contiguous()
        self.head = model.get_output_embeddings()

    @classmethod
    def of(cls, model: Any) -> "FusedLlama | None":
        """For a model of that shape, in float32 on CPU and without adapters; else ``None``."""
        weight, config = model.get_input_embeddings().weight, model.config
        if config.model_type not in KINDS or config.hidden_act != "silu":
            return None
        inner = body(model)
        linears = [m for layer in inner.layers for m in _linears(layer)]
        plain = all(type(m) is nn.Linear for m in (*linears, model.get_output_embeddings()))
        fixed = inner.rotary_emb.rope_type in FIXED_ROPE
        small = weight.device.type == "cpu" and weight.dtype == torch.float32
        return cls(model) if plain and fixed and small else None

    @property
    def holds(self) -> bool:
        """Whether the model's weights still are where they were."""
        return all(layer.holds for layer in self.layers)

    def __call__(self, ids: Tensor, at: Tensor, mask: Tensor, slots: Slots) -> Tensor:
        """Hidden states ``[B, Q, width]`` of ids ``[B, Q]`` at places ``at`` ``[B or 1, Q]``.

        ``mask`` is additive, ``[B or 1, 1, Q, T]``.
        """
        at = at.expand(ids.shape)
        turn = self.cos_DT[:, at], self.sin_DT[:, at]
        x_BQW = self.embedding(ids)
        x_NW = x_BQW.flatten(0, 1)
        for number, layer in enumerate(self.layers):
            x_NW = layer(x_NW, turn, mask, slots, number)
        return _norm(x_NW, self.norm).view_as(x_BQW)

    def logits(self, hidden_NW: Tensor) -> Tensor:
        """Logits ``[N, vocabulary]``."""
        return torch.mm(self.head.weight, hidden_NW.t()).t().contiguous()


def _linears(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    ]


def _norm(x_NW: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x_NW, norm.weight.shape, norm.weight, norm.variance_epsilon)
