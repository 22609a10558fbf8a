"""Pack sequences into a trie where this costs less compute than separate rows.

Costs are in units of one token through the model's layers (2 floating-point operations per weight). Attention
of one token to one key costs ``pair = 4 * heads * head_width * layers / (2 * layer_weights)``, so

    a single sequence of L tokens   L + pair * L^2 / 2      (causal: half of all pairs)
    a trie of T nodes               T + pair * T^2          (dense mask: all pairs)

Sequences are sorted so that neighbors share the longest prefixes. A sequence joins the previous trie if this
costs less than a row of its own. The rule ignores that :mod:`coterie.models.blocks` computes fewer pairs of a
long trie. Sequences without a shared prefix stay separate. A batch without tries is a plain padded batch with
causal attention and no mask.
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
    """Sequences of a batch that share a trie."""

    trie: Trie
    members: tuple[int, ...]
    """Indices of the sequences; path ``k`` of the trie is sequence ``members[k]``."""


@dataclass(frozen=True, slots=True)
class CostRule:
    """Rule that decides which sequences share a trie."""

    pair: float
    """Cost of attention of one token to one key, relative to one token through the layers."""

    @classmethod
    def of(cls, model: Any) -> "CostRule":
        """Return the rule for a model. Does not check that its attention supports tries."""
        config = model.config.get_text_config()
        embedding = model.get_input_embeddings().weight.numel()
        weights = sum(weight.numel() for weight in body(model).parameters()) - embedding
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        attention = 4 * config.num_attention_heads * width * config.num_hidden_layers
        return cls(attention / (2 * weights))

    def groups(self, sequences: Sequence[Ids]) -> list["Group"]:
        groups: list[Group] = []
        before = np.zeros(0, np.int64)
        for index in lexicographic(sequences):
            ids = np.asarray(sequences[index])
            new = Group((index,), len(ids), True)
            if groups:
                last = groups[-1]
                nodes = last.nodes + len(ids) - shared_length(before, ids)
                joined = Group((*last.members, index), nodes, last.chain and nodes == len(ids))
                if self.cost(joined) < self.cost(last) + self.cost(new):
                    new = joined
                    groups.pop()
            groups.append(new)
            before = ids
        return groups

    def cost(self, group: "Group") -> float:
        return group.nodes + self.pair * group.nodes**2 * (0.5 if group.chain else 1.0)


@dataclass(frozen=True, slots=True)
class Group:
    """Members and size of one trie."""

    members: tuple[int, ...]
    nodes: int
    chain: bool


def pack(sequences: Sequence[Ids], rule: CostRule | None) -> list[Pack]:
    """Pack sequences into tries, in order of their first members; without a rule, one trie per sequence."""
    if rule is None:
        return [Pack(build([ids]), (i,)) for i, ids in enumerate(sequences)]
    groups = sorted(sorted(group.members) for group in rule.groups(sequences))
    return [Pack(build([sequences[i] for i in group]), tuple(group)) for group in groups]


def unpackable(model: Any) -> str:
    """Return why a model's config rules out custom masks over all keys; empty if it does not."""
    reasons = partial_attention(model.config)
    if model.config._attn_implementation.startswith("flash"):
        reasons.append("flash attention")
    return f"it has {', '.join(reasons)}" if reasons else ""
