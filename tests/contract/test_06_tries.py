"""Contract 6: trie-packed loss and gradients equal the flat ones, for every kind of model we take.

In float32: loss within 1e-5, gradients within 1e-4 relative. What a trie can't be made for is
refused, and no tensor of (tokens x vocabulary) is ever made.
"""

import os
import random
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Olmo2Config,
    Qwen2Config,
    Qwen3Config,
)

from coterie.errors import UserError
from coterie.models import logprobs
from coterie.models.check import check
from coterie.models.logprobs import pack_batch, sequence_logprobs
from coterie.models.prefix_trie import CostRule, build, pack
from coterie.record.rows import Row, Target
from coterie.training.losses import DPO, SFT, DPOSettings, Objective
from coterie.training.reference import LossModule, with_reference
from tests.helpers.training_models import SETTINGS, make_pairs, make_rows, tiny_llama
from tests.helpers.training_models import SHAPE as TINY

SHAPE: dict[str, Any] = {**TINY, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
FAMILIES = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "olmo2": Olmo2Config(**SHAPE),
    "gemma": GemmaConfig(**SHAPE, head_dim=8),
    "gpt_neox": GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}),
}
ALWAYS = CostRule(0.0)
"""Packs whatever shares a token."""


def model_of(family: str):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[family])


def loss_and_gradients(model, items, objective: Objective, rule: CostRule | None):
    model.zero_grad()
    count = sum(objective.count(item) for item in items)
    loss = LossModule(model, objective, rule)(items).sum() / count
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return float(loss.detach()), torch.cat(gradients)


def assert_equal(flat, packed):
    assert flat[0] == pytest.approx(packed[0], abs=1e-5)
    assert float((flat[1] - packed[1]).norm() / flat[1].norm()) < 1e-4


def awkward_rows() -> list[Row]:
    """Rows that are equal, begin one another, part at their first token, or share nothing."""
    ids = tuple(range(2, 20))
    return [
        Row(ids, (Target(3, 6, "a"), Target(12, 18, "a"))),
        Row(ids, (Target(5, 14, "a"),), weight=0.5),
        Row(ids[:9], (Target(1, 9, "a"),)),
        Row((*ids[:9], 30, 31), (Target(0, 2, "a"), Target(10, 11, "a"))),
        Row((31, *ids[1:]), (Target(4, 9, "a"),)),
        Row((7,), (Target(0, 1, "a"),)),
        *make_rows(4),
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_packed_loss_and_gradients_are_the_flat_ones(family, objective, tmp_path):
    model = model_of(family)
    if objective == "sft":
        items: Any = awkward_rows()
        found: Objective = SFT()
    else:
        settings = SETTINGS.model_copy(update={"packing": "flat"})
        items = with_reference(
            model, make_pairs(), settings, tmp_path / "reference", reduction="none"
        )
        found = DPO(DPOSettings(beta=0.5, label_smoothing=0.1, nll_coef=0.3))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    flat = loss_and_gradients(model, items, found, None)
    assert_equal(flat, loss_and_gradients(model, items, found, ALWAYS))
    assert_equal(flat, loss_and_gradients(model, items, found, check(model).packing("auto")))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="FlexAttention is compiled, by g++ on a CPU")
@pytest.mark.skipif(
    "ATEN_CPU_CAPABILITY" in os.environ, reason="torch compiles it for the processor as it is"
)
def test_flex_attention_gives_the_same_logprobs_forward():
    """Its backward pass needs a GPU: there it is experimental until measured (`bench/results`)."""
    model, rows = tiny_llama(head_dim=16), [row for row in awkward_rows() if row.target_count > 1]
    places = [[p for p in range(1, len(row.ids)) if row.mask[p]] for row in rows]
    ids = [row.ids for row in rows]
    with torch.no_grad():
        flat = sequence_logprobs(model, ids, places, None)
        model.set_attn_implementation("flex_attention")
        flex = sequence_logprobs(model, ids, places, ALWAYS)
    for one, other in zip(flat, flex, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_trie_holds_each_shared_token_once():
    sequences = [(1, 2, 3, 4), (1, 2, 5), (1, 2), (1, 2, 3, 4), (6,)]
    trie = build(sequences)
    assert sorted(trie.ids.tolist()) == [1, 2, 3, 4, 5, 6]
    for ids, path in zip(sequences, trie.paths, strict=True):
        assert tuple(trie.ids[path].tolist()) == ids
        assert trie.parents[path].tolist() == [-1, *path[:-1].tolist()]
        assert trie.depths[path].tolist() == list(range(len(ids)))
    above = trie.ancestors()
    for node in range(len(trie)):
        climbed = {node}
        while (up := int(trie.parents[max(climbed, key=lambda n: -n)])) >= 0:
            climbed.add(up)
        assert set(np.flatnonzero(above[node]).tolist()) == climbed


def test_random_tries_are_those_of_their_sequences():
    rng = random.Random(0)
    for _ in range(50):
        sequences = [
            tuple(rng.randrange(3) for _ in range(rng.randint(1, 8)))
            for _ in range(rng.randint(1, 12))
        ]
        trie = build(sequences)
        assert len(trie) == len({ids[:n] for ids in sequences for n in range(1, len(ids) + 1)})
        for ids, path in zip(sequences, trie.paths, strict=True):
            assert tuple(trie.ids[path].tolist()) == ids


def test_what_shares_nothing_is_flat():
    rows = [(1, 2, 3), (4, 5), (6, 7, 8, 9)]
    batch = pack_batch(rows, [[1]] * 3, ALWAYS)
    assert batch.mask is None
    assert batch.positions is None
    assert batch.ids.shape == (3, 4)


def test_sequences_are_packed_only_where_it_is_cheaper():
    shared, rng = tuple(range(100)), random.Random(0)
    ends = [tuple(rng.randrange(100, 200) for _ in range(100)) for _ in range(4)]
    sequences = [(*shared, *end) for end in ends]
    assert len(pack(sequences, CostRule(1e-4))) == 1
    assert len(pack(sequences, CostRule(1e-1))) == 4, "attention would cost more than is saved"


@pytest.mark.parametrize("tied", [True, False])
def test_the_cost_of_a_pair_is_that_of_the_models_shape(tied):
    attention = 4 * 2 * 8 * 2  # heads, their width, layers
    layer = 16 * (16 + 8 + 8 + 16) + 3 * 16 * 32 + 2 * 16
    rule = CostRule.of(tiny_llama(tie_word_embeddings=tied))
    assert rule.pair == attention / (2 * (2 * layer + 16))


def test_no_tensor_of_tokens_by_vocabulary_is_made(monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 8 * 32)
    model = tiny_llama()
    sizes = []
    model.lm_head.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape)))
    rows = make_rows(12)
    places = [[p for p in range(1, len(row.ids)) if row.mask[p]] for row in rows]
    found = sequence_logprobs(model, [row.ids for row in rows], places, ALWAYS)
    torch.cat(found).sum().backward()
    assert max(shape[1] for shape in sizes) == 8
    count = sum(row.target_count for row in rows)
    assert sum(shape[1] for shape in sizes) == 2 * count - (
        count % 8 or 8
    )  # all but the last chunk twice


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (MistralConfig(**SHAPE, sliding_window=16), "sliding window of 16"),
        (
            Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1),
            "sliding attention",
        ),
        (
            MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, state_size=4),
            "linear attention",
        ),
    ],
)
def test_models_whose_attention_cannot_take_a_trie_are_refused(config, why):
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UserError, match=why) as refused:
        check(model).packing("auto")
    assert "packing=flat" in refused.value.todo


def test_a_model_that_ignores_the_mask_is_found_out():
    model = tiny_llama()
    inner = model.model.forward
    model.model.forward = lambda attention_mask=None, **inputs: inner(**inputs)
    with pytest.raises(UserError, match="does not support custom masks"):
        check(model).packing("auto")
