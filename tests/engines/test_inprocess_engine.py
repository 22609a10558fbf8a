"""The in-process engine: results in any company, ends, failures, loading."""

import asyncio
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.engines.inprocess import InProcessEngine, draw, draw_by_torch
from coterie.engines.llama import CompiledLlama
from coterie.engines.padded import Slots
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.engines.sequence import uniforms
from coterie.errors import UserError
from tests.helpers.engine_models import BOTH, PROMPT, open_engine, random_model
from tests.helpers.template_models import make_model

Job = tuple[list[int], int, Sampling]


def engine(max_batch: int = 128, heads: int = 2, cache_bytes: int = 1 << 26) -> InProcessEngine:
    return InProcessEngine(
        make_model("chatml", heads=heads), policy="p", max_batch=max_batch, cache_bytes=cache_bytes
    )


def jobs(count: int) -> list[Job]:
    """Random prompts around the sizes of blocks, with various settings."""
    rng = random.Random(0)
    shared = [rng.randrange(290) for _ in range(150)]
    made = []
    for seed in range(count):
        own = [rng.randrange(290) for _ in range(rng.choice((1, 7, 63, 64, 65, 130, 300)))]
        settings = Sampling(
            temperature=rng.choice((1.0, 0.7, 0.0)),
            top_p=rng.choice((1.0, 0.9)),
            max_tokens=rng.choice((5, 30, 70)),
        )
        made.append((shared + own if seed % 3 == 0 else own, seed, settings))
    return made


def run(
    engine: InProcessEngine, work: list[Job], order: list[int], spread: int
) -> dict[int, Completion]:
    """Complete jobs that arrive in ``order``, up to ``spread`` steps late."""
    late = random.Random(spread)

    async def one(index: int) -> Completion:
        for _ in range(late.randint(0, spread)):
            await asyncio.sleep(0)
        prompt, seed, settings = work[index]
        return (await engine.sample(prompt, [seed], settings))[0]

    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*map(one, order))

    return dict(zip(order, asyncio.run(all_of_them()), strict=True))


@pytest.mark.parametrize("heads", [1, 4])
def test_a_completion_of_a_compiled_model_is_bitwise_the_same_in_any_company(heads: int) -> None:
    work = jobs(100)
    crowd = run(engine(heads=heads), work, list(range(100)), spread=0)
    shuffled = random.Random(1).sample(range(100), 100)
    small = engine(max_batch=37, heads=heads, cache_bytes=0)
    assert run(small, work, shuffled, spread=60) == crowd
    for index in range(0, 99, 11):
        few = [index, index + 1, (index + 50) % 100]
        assert run(engine(heads=heads), work, few[:1], spread=0) == {index: crowd[index]}
        assert run(small, work, few, spread=5) == {i: crowd[i] for i in few}


def test_a_completion_by_transformers_is_the_models_own_in_any_company(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CompiledLlama, "fits", lambda _: False)
    work = [(ids, seed, replace(sampling, top_p=1.0)) for ids, seed, sampling in jobs(36)]
    order = random.Random(1).sample(range(36), 36)
    network = make_model("chatml").model
    for one, spread in ((engine(), 0), (engine(max_batch=13, cache_bytes=0), 40)):
        for index, said in run(one, work, order, spread).items():
            prompt, _, sampling = work[index]
            assert 0 < len(said.ids) <= sampling.max_tokens
            with torch.no_grad():
                logits = network(torch.tensor([[*prompt, *said.ids]])).logits[
                    0, len(prompt) - 1 : -1
                ]
            ids = torch.tensor(said.ids)[:, None]
            if sampling.temperature == 0:
                assert (logits.gather(1, ids)[:, 0] > logits.amax(-1) - 1e-4).all()
                continue
            right = (logits / sampling.temperature).log_softmax(-1).gather(1, ids)[:, 0].tolist()
            assert said.logprobs == pytest.approx(right, abs=1e-4)


def test_scores_are_bitwise_the_same_in_any_company_and_those_of_sampling() -> None:
    rng = random.Random(3)
    one = engine()
    texts = [[rng.randrange(290) for _ in range(rng.randint(2, 200))] for _ in range(40)]

    async def crowd() -> list[list[float]]:
        calls = (one.logprobs(ids[:1], [ids[1:]]) for ids in texts)
        return [scores for (scores,) in await asyncio.gather(*calls)]

    together = asyncio.run(crowd())
    for ids, scores in list(zip(texts, together, strict=True))[::7]:
        assert asyncio.run(engine().logprobs(ids[:1], [ids[1:]])) == [scores]

    async def sampled() -> tuple[Completion, list[float]]:
        (said,) = await one.sample(texts[0], [1], Sampling(max_tokens=50))
        return said, (await one.logprobs(texts[0], [said.ids]))[0]

    said, scores = asyncio.run(sampled())
    assert said.logprobs == pytest.approx(scores, abs=1e-4)


def test_one_call_with_many_seeds_equals_many_calls() -> None:
    prompt = list(range(100))
    together = asyncio.run(engine().sample(prompt, [5, 6, 7], Sampling(max_tokens=20)))
    work = [(prompt, seed, Sampling(max_tokens=20)) for seed in (5, 6, 7)]
    apart = run(engine(), work, [0, 1, 2], spread=9)
    assert together == [apart[0], apart[1], apart[2]]
    assert len({said.ids for said in together}) == 3


@pytest.mark.parametrize("draw", [draw, draw_by_torch])
def test_draws_follow_the_distribution_and_top_p_cuts_its_tail(draw: Callable[..., Any]) -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4000, 4)
    settings = np.array([(1.0, 1.0, noise) for noise in uniforms(7, 4000)])
    ids, logprobs = draw(logits, settings)
    assert (np.bincount(ids, minlength=4) / 4000).tolist() == pytest.approx(
        [0.5, 0.3, 0.15, 0.05], abs=0.025
    )
    assert np.allclose(logprobs, logits[0].numpy()[ids])
    settings[:, 1] = 0.7
    ids, logprobs = draw(logits, settings)
    assert set(ids.tolist()) == {0, 1}
    assert np.allclose(np.exp(logprobs), np.array([0.625, 0.375])[ids])


def test_draws_are_those_of_torch() -> None:
    logits = torch.randn(60, 300, generator=torch.Generator().manual_seed(0)) * 4
    heat, share = np.tile([0.0, 0.5, 1.0, 2.0], 15), np.repeat([1.0, 0.9, 0.3], 20)
    settings = np.stack([heat, share, uniforms(1, 60)], 1)
    ids, logprobs = draw(logits, settings)
    theirs, their_logprobs = draw_by_torch(logits, settings)
    assert np.array_equal(ids, theirs)
    assert np.allclose(logprobs, their_logprobs, atol=1e-5)


def test_a_stop_string_across_tokens_ends_it_and_only_its_text_is_cut() -> None:
    one = engine()
    prompt = [1, 2, 3]
    (free,) = asyncio.run(one.sample(prompt, [3], Sampling(max_tokens=40)))
    renderer = one.loaded.renderer
    pairs = (renderer.decode(free.ids[n - 1 : n + 1]) for n in range(8, 39))
    stop = next(pair for pair in pairs if "\ufffd" not in pair)
    (said,) = asyncio.run(one.sample(prompt, [3], Sampling(max_tokens=40, stop=("nope", stop))))
    assert said.finish == "stop_string"
    assert said.ids == free.ids[: len(said.ids)]
    assert stop not in said.text
    assert renderer.decode(said.ids).startswith(said.text + stop)


def test_a_request_that_cannot_be_answered_fails_alone_and_frees_its_slot() -> None:
    one = engine(max_batch=1)
    slow = Sampling(temperature=0, max_tokens=2000, timeout=0.02)

    async def all_of_them() -> list[object]:
        canceled = asyncio.create_task(one.sample([1], [0], replace(slow, timeout=600)))
        await asyncio.sleep(0.01)
        canceled.cancel()
        return await asyncio.gather(
            one.sample([1] * 2000, [0], Sampling(max_tokens=100)),
            one.sample([99999], [0], Sampling(max_tokens=5)),
            one.sample([1], [0], slow),
            one.sample([2], [0], Sampling(max_tokens=5)),
            return_exceptions=True,
        )

    *failed, fine = asyncio.run(all_of_them())
    for error, why in zip(
        failed, ("context overflow", "ids from 0", "no answer within"), strict=True
    ):
        assert isinstance(error, EngineError) and why in str(error)
    assert isinstance(fine, list) and len(fine[0].ids) <= 5


def test_a_failing_step_fails_those_in_flight_and_leaves_the_engine_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = engine()
    before = asyncio.run(one.sample([1, 2], [0], Sampling(max_tokens=9)))

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(one._runner, "decode", broken)
    with pytest.raises(EngineError, match="out of memory"):
        asyncio.run(one.sample([1, 2], [0], Sampling(max_tokens=9)))
    monkeypatch.undo()
    assert asyncio.run(one.sample([1, 2], [0], Sampling(max_tokens=9))) == before
    assert one.stats.failures == 1


def test_load_replaces_weights_and_is_refused_for_other_shapes(tmp_path: Path) -> None:
    other = make_model("chatml", seed=1)
    other.model.save_pretrained(tmp_path / "other")
    make_model("chatml", heads=4).model.save_pretrained(tmp_path / "heads")
    ask = (list(range(100)), [0], Sampling(max_tokens=20))
    want = asyncio.run(InProcessEngine(other, policy="p", version="1").sample(*ask))
    one = engine()
    assert asyncio.run(one.sample(*ask)) != want
    with pytest.raises(UserError, match="do not fit"):
        asyncio.run(one.load(tmp_path / "heads", "1"))
    assert one.version == "0"
    asyncio.run(one.load(tmp_path / "other", "1"))
    assert one.version == "1"
    assert asyncio.run(one.sample(*ask)) == want


@pytest.mark.parametrize("way", BOTH)
def test_a_completion_in_flight_spans_a_load_and_leaves_no_old_keys(
    tmp_path: Path, way: str
) -> None:
    one, other = open_engine(random_model(BOTH[way])), random_model(BOTH[way])
    other.model.save_pretrained(tmp_path / "0")
    for weight in other.model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    other.model.save_pretrained(tmp_path / "1")
    settings = Sampling(max_tokens=50)
    (before,) = asyncio.run(open_engine(random_model(BOTH[way])).sample(PROMPT, [0], settings))
    assert len(before.ids) == 50
    later = (PROMPT + list(before.ids[:20]), [1], settings)
    (want,) = asyncio.run(open_engine(other).sample(*later))

    async def spanning(version: str) -> tuple[Completion, Completion]:
        ids: list[int] = []
        task = asyncio.create_task(one.sample(PROMPT, [0], settings, on_token=ids.append))
        while len(ids) < 20:
            await asyncio.sleep(0)
        await one.load(tmp_path / version, version)
        (beside,) = await one.sample(*later)
        (completion,) = await task
        (after,) = await one.sample(*later)
        assert after.ids == beside.ids
        assert after.logprobs == pytest.approx(beside.logprobs, abs=1e-5)
        return completion, after

    completion, after = asyncio.run(spanning("1"))
    longer = (PROMPT + list(completion.ids[:48]), [1], replace(settings, max_tokens=20))
    (fresh,), (reread,) = (asyncio.run(some.sample(*longer)) for some in (open_engine(other), one))
    assert reread.ids == fresh.ids
    assert reread.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)
    assert completion.versions == (("0", 20), ("1", 30))
    assert completion.ids[:20] == before.ids[:20] and completion.ids != before.ids
    assert after.versions == (("1", len(after.ids)),)
    assert after.ids == want.ids
    assert after.logprobs == pytest.approx(want.logprobs, abs=1e-5)
    asyncio.run(one.load(tmp_path / "0", "0"))
    completion, _ = asyncio.run(spanning("0"))
    assert completion.ids == before.ids, "equal weights and kept keys: as if nothing had happened"


def test_slots_that_grow_in_length_touch_no_rows_that_are_not_in_use() -> None:
    def resident() -> float:
        """Return MiB of memory that this process has touched and still holds."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    slots = Slots(8, 4, 64, torch.zeros(1))
    slots.reserve(600, 64)  # 4 x 16, 4 x 64, ...: room for 600 rows
    slots.reserve(2, 64, only=True)
    before = resident()
    for length in (1000, 2000, 4000):
        slots.reserve(2, length, only=True)
    assert slots.keys.nbytes > 10**10 / 2 and resident() - before < 300
