"""Which sequences go into one trie: those for which it is cheaper than going by themselves.

The cost rule, in units of one token through the model's layers (2 floating-point operations a
weight). Attention between a token and one key costs ``pair`` = 4 * heads * head width * layers /
(2 * weights of the layers), so

    a sequence of L tokens by itself   L + pair * L^2 / 2      (causal: half of all pairs)
    a trie of T nodes                  T + pair * T^2          (dense mask: all pairs are computed)

Sequences are sorted, so that neighbours share most, and each joins the trie before it where that
costs less than standing alone. That :mod:`coterie.models.blocks` computes fewer pairs of a long trie is
not counted. Sequences that share nothing so stay apart, and a batch in which none is joined is the plain
padded batch, with causal attention and no mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.models.context import partial_attention
from coterie.models.logprobs import body
from coterie.models.trie import Ids, Trie, build, lexicographic, shared_length


@dataclass(frozen=True, slots=True)
class Pack:
    """Some of the sequences of a batch in one trie."""

    trie: Trie
    members: tuple[int, ...]
    """Which sequences they are; path ``k`` of the trie is that of sequence ``members[k]``."""


@dataclass(frozen=True, slots=True)
class CostRule:
    """Decides what is packed."""

    pair: float
    """What attention of one token to one key costs, a token through the layers being 1."""

    @classmethod
    def of(cls, model: Any) -> "CostRule":
        """The rule for a model; whether its attention can take a trie is not asked here."""
        config = model.config.get_text_config()
        embedding = model.get_input_embeddings().weight.numel()
        weights = sum(weight.numel() for weight in body(model).parameters()) - embedding
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        attention = 4 * config.num_attention_heads * width * config.num_hidden_layers
        return cls(attention / (2 * weights))

    def cost(self, nodes: int, *, chain: bool) -> float:
        return nodes + self.pair * nodes**2 * (0.5 if chain else 1.0)

    def groups(self, sequences: Sequence[Ids]) -> list["Group"]:
        found: list[Group] = []
        before = np.zeros(0, np.int64)
        for index in lexicographic(sequences):
            ids = np.asarray(sequences[index])
            new = Group((index,), len(ids), True)
            if found:
                nodes = found[-1].nodes + len(ids) - shared_length(before, ids)
                chain = found[-1].chain and nodes == len(ids)
                joined = Group((*found[-1].members, index), nodes, chain)
                if self._costs(joined) < self._costs(found[-1]) + self._costs(new):
                    new = joined
                    found.pop()
            found.append(new)
            before = ids
        return found

    def _costs(self, group: "Group") -> float:
        return self.cost(group.nodes, chain=group.chain)


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that one trie holds."""

    members: tuple[int, ...]
    nodes: int
    chain: bool


def pack(sequences: Sequence[Ids], rule: CostRule | None) -> list[Pack]:
    """Sequences as tries, in order of their first members; each by itself without a rule."""
    if rule is None:
        return [Pack(build([ids]), (i,)) for i, ids in enumerate(sequences)]
    groups = sorted(sorted(group.members) for group in rule.groups(sequences))
    return [Pack(build([sequences[i] for i in group]), tuple(group)) for group in groups]


def unpackable(model: Any) -> str:
    """Why a model's attention is not a plain one over all keys, where its config says so; or nothing."""
    found = partial_attention(model.config)
    if model.config._attn_implementation.startswith("flash"):
        found.append("flash attention")
    return f"it has {', '.join(found)}" if found else ""
