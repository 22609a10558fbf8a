"""Small random models for tests of the in-process engine: some run by compiled loops, others by Transformers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.models.loading import LoadedModel
from tests.helpers.template_models import make_model as templated
from tests.helpers.training_models import SHAPE

CHATML: dict[str, Any] = {
    **SHAPE,
    "vocab_size": 300,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SCALED = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
COMPILED = {
    "llama": LlamaConfig(**CHATML),
    "one key head a query head": LlamaConfig(**{**CHATML, "num_key_value_heads": 2}),
    "biases": LlamaConfig(**CHATML, attention_bias=True, mlp_bias=True),
    "tied": LlamaConfig(**CHATML, tie_word_embeddings=True),
    "scaled positions": LlamaConfig(**CHATML, rope_parameters=SCALED),
    "qwen2": Qwen2Config(**CHATML),
    "wide heads that share keys": LlamaConfig(**{**CHATML, "num_attention_heads": 4}, head_dim=72),
}
PLAIN = {
    "qwen3": Qwen3Config(**CHATML, head_dim=8),
    "gemma": GemmaConfig(**CHATML, head_dim=8),
    "other activation": LlamaConfig(**CHATML, hidden_act="gelu"),
    "positions of the length": LlamaConfig(**CHATML, rope_parameters=DYNAMIC),
}
BOTH = {"compiled": COMPILED["biases"], "by Transformers": PLAIN["qwen3"]}
"""One of each way to run."""
PROMPT = list(range(5, 55))


def random_model(config: PreTrainedConfig) -> LoadedModel:
    """Random weights, biases and norms included, with some tokenizer."""
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    some = templated("chatml")
    return LoadedModel(network, some.tokenizer, some.renderer, 128, "test")


def open_engine(one: LoadedModel, adapter: str | None = None) -> InProcessEngine:
    return InProcessEngine(one, policy="p", version="0", adapter=adapter)


def sample_completion(
    engine: InProcessEngine, prompt: Sequence[int] = PROMPT, seed: int = 0
) -> tuple[list[int], list[float]]:
    """Ids and log-probs of one completion."""
    one = asyncio.run(engine.sample(prompt, [seed], Sampling(max_tokens=20)))[0]
    return list(one.ids), list(one.logprobs)


def recompute_logprobs(
    network: torch.nn.Module, ids: Sequence[int], prompt: Sequence[int] = PROMPT
) -> list[float]:
    """Log-probs of ids after the prompt, by the model's own forward pass over the whole sequence."""
    with torch.no_grad():
        logits = network(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
