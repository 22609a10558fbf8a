"""What is wrong with one request fails that one: logits that are not numbers, a listener, text that can't be read."""

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
from tests.engine_models import BOTH, PROMPT, engine_of, loaded, recomputed, sampled

POISON = 211
"""A token whose embedding is not a number."""
KINDS = pytest.mark.parametrize("kind", BOTH)


def poisoned(kind: str, value: float = math.nan) -> Any:
    one = loaded(BOTH[kind])
    one.model.get_input_embeddings().weight.data[POISON, 3] = value
    return one


async def everything(calls: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_fail_their_request_alone(kind: str, value: float) -> None:
    one = poisoned(kind, value)
    engine, network = engine_of(one), one.model
    ways = [Sampling(max_tokens=5, temperature=t, top_p=p) for t, p in ((1, 1), (0, 1), (1, 0.5))]
    bad = [[*PROMPT[:n], POISON, *PROMPT[n:]] for n in (40, 47, 50)]

    prompts = [*bad, PROMPT, PROMPT[:40]]
    calls = [engine.sample(p, [3], sampling) for p in prompts for sampling in ways]
    found = asyncio.run(everything(calls))
    for error in found[: len(bad) * len(ways)]:
        assert isinstance(error, EngineError) and "not finite" in str(error)
    for said in found[len(bad) * len(ways) :]:
        assert said[0].ids
    assert engine.stats.failures == len(bad) * len(ways)
    for prompt in (PROMPT, PROMPT[:40]):  # nor does what was kept hold any of it
        ids, logprobs = sampled(engine, prompt)
        assert logprobs == pytest.approx(recomputed(network, ids, prompt), abs=1e-4)


@KINDS
def test_a_key_that_is_no_number_is_not_hidden(kind: str) -> None:
    """Attention's weights must not make finite numbers of it."""
    one = loaded(BOTH[kind])
    engine = engine_of(one)
    one.model.model.layers[1].self_attn.k_proj.weight.data[0] = math.nan
    with pytest.raises(EngineError, match="not finite"):
        sampled(engine)


@KINDS
def test_scores_that_are_no_numbers_fail_alone(kind: str) -> None:
    one = poisoned(kind)
    engine = engine_of(one)

    calls = [engine.logprobs(PROMPT, [[7, POISON, 9]]), engine.logprobs(PROMPT, [[7, 8, 9]])]
    bad, fine = asyncio.run(everything(calls))
    assert isinstance(bad, EngineError) and "not finite" in str(bad)
    assert fine[0] == pytest.approx(recomputed(one.model, [7, 8, 9]), abs=1e-4)


@KINDS
@pytest.mark.parametrize("what", [ValueError("deaf"), asyncio.CancelledError("deaf")])
def test_a_listener_that_raises_fails_its_own_request(kind: str, what: BaseException) -> None:
    engine = engine_of(loaded(BOTH[kind]))
    alone = sampled(engine)
    heard: list[int] = []

    def on_token(token: int) -> None:
        heard.append(token)
        if len(heard) == 3:
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
    assert len(heard) == 3


@pytest.mark.parametrize("draw", [draw, draw_by_torch])
def test_no_token_is_drawn_from_what_is_no_distribution(draw: Callable[..., Any]) -> None:
    nan, inf = math.nan, math.inf
    bad = [[0.0, nan, 1.0], [inf, 0.0, 1.0], [-inf] * 3, [nan] * 3, [inf, -inf, inf]]
    logits = torch.tensor([*bad, [-inf, 2.0, -inf]])
    for temperature, top_p in ((1.0, 1.0), (0.0, 1.0), (0.7, 0.5)):
        settings = np.array([(temperature, top_p, 0.99)] * len(logits))
        ids, logprobs = draw(logits, settings)
        assert ids.tolist() == [NONE] * 5 + [1]
        assert np.isnan(logprobs[:5]).all() and logprobs[5] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-5, 1e-6, 1e-20, 5e-324])
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


@pytest.mark.parametrize("sampling", [
    Sampling(temperature=math.nan), Sampling(temperature=math.inf), Sampling(temperature=-1.0),
    Sampling(top_p=math.nan), Sampling(top_p=0.0), Sampling(max_tokens=0), Sampling(stop=("",)),
])  # fmt: skip
def test_what_can_not_be_sampled_with_is_refused(sampling: Sampling) -> None:
    with pytest.raises(EngineError, match="can't sample with"):
        asyncio.run(engine_of(loaded(BOTH["compiled"])).sample(PROMPT, [0], sampling))


def test_embeddings_with_something_around_them_are_left_to_transformers() -> None:
    class Doubled(torch.nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(ids)

    one = loaded(BOTH["compiled"])
    doubled = Doubled(300, one.model.config.hidden_size)
    one.model.model.embed_tokens = doubled
    assert not CompiledLlama.fits(one.model)
    ids, logprobs = sampled(engine_of(one))
    assert logprobs == pytest.approx(recomputed(one.model, ids), abs=1e-4)
