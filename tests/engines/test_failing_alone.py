"""A fault of one request fails that request alone: logits that are not finite, a callback that raises."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from coterie.engines.inprocess import NONE, draw, draw_by_torch
from coterie.engines.llama import CompiledLlama
from coterie.engines.protocol import EngineError, Sampling
from tests.helpers.engine_models import (
    BOTH,
    PROMPT,
    open_engine,
    random_model,
    recompute_logprobs,
    sample_completion,
)

POISON = 211
"""A token whose embedding is not finite."""
KINDS = pytest.mark.parametrize("kind", BOTH)


async def everything(calls: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_fail_their_request_alone(kind: str, value: float) -> None:
    poisoned = random_model(BOTH[kind])
    poisoned.model.get_input_embeddings().weight.data[POISON, 3] = value
    engine, network = open_engine(poisoned), poisoned.model
    ways = [Sampling(max_tokens=5, temperature=t, top_p=p) for t, p in ((1, 1), (0, 1), (1, 0.5))]
    bad = [[*PROMPT[:n], POISON, *PROMPT[n:]] for n in (40, 47, 50)]
    prompts = [*bad, PROMPT, PROMPT[:40]]
    calls = [engine.sample(p, [3], sampling) for p in prompts for sampling in ways]
    results = asyncio.run(everything(calls))
    for error in results[: len(bad) * len(ways)]:
        assert isinstance(error, EngineError) and "not finite" in str(error)
    for samples in results[len(bad) * len(ways) :]:
        assert samples[0].ids
    assert engine.stats.failures == len(bad) * len(ways)
    for prompt in (PROMPT, PROMPT[:40]):  # nor do kept prefixes hold any of it
        ids, logprobs = sample_completion(engine, prompt)
        assert logprobs == pytest.approx(recompute_logprobs(network, ids, prompt), abs=1e-4)
    scores = [engine.logprobs(PROMPT, [[7, POISON, 9]]), engine.logprobs(PROMPT, [[7, 8, 9]])]
    error, fine = asyncio.run(everything(scores))
    assert isinstance(error, EngineError) and "not finite" in str(error)
    assert fine[0] == pytest.approx(recompute_logprobs(network, [7, 8, 9]), abs=1e-4)


@KINDS
def test_a_key_that_is_not_finite_is_not_hidden(kind: str) -> None:
    """Attention's weights must not make finite numbers of it."""
    model = random_model(BOTH[kind])
    engine = open_engine(model)
    model.model.model.layers[1].self_attn.k_proj.weight.data[0] = math.nan
    with pytest.raises(EngineError, match="not finite"):
        sample_completion(engine)


@KINDS
@pytest.mark.parametrize("what", [ValueError("deaf"), asyncio.CancelledError("deaf")])
def test_a_callback_that_raises_fails_its_own_request(kind: str, what: BaseException) -> None:
    engine = open_engine(random_model(BOTH[kind]))
    alone = sample_completion(engine)
    tokens: list[int] = []

    def on_token(token: int) -> None:
        tokens.append(token)
        if len(tokens) == 3:
            raise what

    sampling = Sampling(max_tokens=20)
    calls = [
        engine.sample(PROMPT, [0], sampling),
        engine.sample(PROMPT, [0], sampling, on_token=on_token),
        engine.logprobs(PROMPT, [[7]]),
    ]
    fine, bad, scores = asyncio.run(everything(calls))
    assert list(fine[0].ids) == alone[0] and len(scores[0]) == 1
    assert isinstance(bad, EngineError) and "deaf" in str(bad) and bad.__cause__ is what
    assert len(tokens) == 3


@pytest.mark.parametrize("draw", [draw, draw_by_torch])
def test_no_token_is_drawn_without_a_distribution(draw: Callable[..., Any]) -> None:
    nan, inf = math.nan, math.inf
    bad = [[0.0, nan, 1.0], [inf, 0.0, 1.0], [-inf] * 3, [nan] * 3, [inf, -inf, inf]]
    logits = torch.tensor([*bad, [-inf, 2.0, -inf]])
    for temperature, top_p in ((1.0, 1.0), (0.0, 1.0), (0.7, 0.5)):
        settings = np.array([(temperature, top_p, 0.99)] * len(logits))
        ids, logprobs = draw(logits, settings)
        assert ids.tolist() == [NONE] * 5 + [1]
        assert np.isnan(logprobs[:5]).all() and logprobs[5] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-5, 1e-6, 5e-324])
def test_tiny_temperatures_take_the_likeliest(temperature: float) -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(0)) * 100
    logits[:, 17] = -math.inf
    settings = np.array([(temperature, 0.9, n / 50) for n in range(50)])
    ids, logprobs = draw(logits, settings)
    assert ids.tolist() == logits.argmax(-1).tolist()
    assert np.abs(logprobs).max() < 1e-6
    cold = np.maximum(settings, [0.0 if temperature <= 1e-6 else 1e-5, 0, 0])
    cold[:, 0] *= temperature > 1e-6
    assert draw_by_torch(logits, cold)[0].tolist() == ids.tolist()


def test_scaled_embeddings_are_left_to_transformers() -> None:
    class Doubled(torch.nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(ids)

    model = random_model(BOTH["compiled"])
    model.model.model.embed_tokens = Doubled(300, model.model.config.hidden_size)
    assert not CompiledLlama.fits(model.model)
    ids, logprobs = sample_completion(open_engine(model))
    assert logprobs == pytest.approx(recompute_logprobs(model.model, ids), abs=1e-4)
