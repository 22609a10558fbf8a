"""The model that benchmarks of training run on: SmolLM2-135M's shape with random weights of a seed.

Speed and memory do not depend on what the weights are, and a benchmark needs no download this way.
``--model PATH`` of a benchmark takes real weights instead.
"""

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from coterie.models.loading import LoadedModel, load


def model(path: str | None = None) -> Any:
    """A fresh model in float32."""
    if path:
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=False
        )
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(shape)


def loaded(path: str | None = None) -> LoadedModel:
    """The model as engines take it; the tokenizer is tiny-exchange's where the weights are random."""
    if path:
        return load(path)
    tiny, fresh = load("tiny-exchange"), model().eval()
    return LoadedModel(fresh, tiny.tokenizer, tiny.renderer, 8192, "random weights")


def tokenizer() -> PreTrainedTokenizerFast:
    """Any tokenizer with a padding token, which TRL's trainers ask for and do not use here."""
    found = load("tiny-exchange").tokenizer
    assert isinstance(found, PreTrainedTokenizerFast)
    return found
