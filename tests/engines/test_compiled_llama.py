"""Compiled steps of Llama-shaped models: the numbers of Transformers, for the weights as they now are."""

import asyncio
import os
from os.path import commonprefix
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.engines import kernels
from coterie.engines.inprocess import InProcessEngine, Runner
from coterie.engines.llama import CompiledLlama, Pages
from coterie.engines.protocol import Sampling
from coterie.engines.sequence import BLOCK
from tests.helpers.engine_models import (
    COMPILED,
    PLAIN,
    PROMPT,
    open_engine,
    random_model,
    recompute_logprobs,
    sample_completion,
)


@pytest.mark.parametrize("kind", COMPILED)
def test_sampled_and_scored_logprobs_are_those_of_transformers(kind: str) -> None:
    one = random_model(COMPILED[kind])
    assert CompiledLlama.fits(one.model)
    ids, logprobs = sample_completion(open_engine(one))
    assert logprobs == pytest.approx(recompute_logprobs(one.model, ids), abs=1e-4)
    rng, runner = np.random.default_rng(0), Runner(one, 1 << 20)
    for start in (1, 2, 32, 33, 70):
        prefix = rng.integers(0, 300, start).tolist()
        ends = [rng.integers(0, 300, n).tolist() for n in (1, 7, 40, 7)] + [[9, 9, 9]] * 2
        first = runner.score([(*prefix, *end) for end in ends], start)
        again = runner.score([(*prefix, *end) for end in ends[::-1]], start)[::-1]
        assert again == first  # now with a cached prefix, and in other rows
        for end, scores in zip(ends, first, strict=True):
            assert scores == pytest.approx(recompute_logprobs(one.model, end, prefix), abs=2e-4)
    assert not any(CompiledLlama.fits(random_model(other).model) for other in PLAIN.values())


def test_likelihoods_of_more_sequences_than_rows_beside_others_that_run() -> None:
    one = random_model(COMPILED["llama"])
    rng = np.random.default_rng(0)
    ends = [rng.integers(0, 300, 1 + n % 9).tolist() for n in range(75)]

    async def both(engine: InProcessEngine, *, score: bool) -> tuple[list[list[int]], list[float]]:
        sampling = Sampling(temperature=1.0, max_tokens=60)
        saying = asyncio.ensure_future(engine.sample(PROMPT, range(20), sampling))
        scores = []
        for _ in range(5 * score):
            await asyncio.sleep(0)
            (scores,) = await engine.logprobs(PROMPT[:3], [ends[0]])
            found = await engine.logprobs(PROMPT, ends)
            scores = [*scores, *found[74]]
        return [list(said.ids) for said in await saying], scores

    alone, _ = asyncio.run(both(open_engine(one), score=False))
    beside, scores = asyncio.run(both(open_engine(one), score=True))
    assert beside == alone
    quiet = open_engine(one)
    (last,) = asyncio.run(quiet.logprobs(PROMPT, [ends[74]]))
    assert scores[-len(last) :] == last


def test_scores_of_a_tree_are_those_of_each_of_its_paths_alone() -> None:
    rng = np.random.default_rng(1)
    paths = [rng.integers(0, 300, 90).tolist()]
    for _ in range(70):  # each leaves an earlier one somewhere, or goes on after it
        path = paths[rng.integers(len(paths))]
        stay = int(rng.integers(2, len(path) + 1))
        paths.append([*path[:stay], *rng.integers(0, 300, int(rng.integers(0, 40))).tolist()])
    one = random_model(COMPILED["llama"])
    for start in (1, 2):
        together = Runner(one, 1 << 20).score([tuple(path) for path in paths], start)
        alone = [Runner(one, 0).score([tuple(path)], start)[0] for path in paths[::9]]
        assert together[::9] == alone
        assert [len(path) - start for path in paths] == list(map(len, together))


def test_prompts_that_begin_alike_are_read_once_and_their_pages_are_shared() -> None:
    engine = open_engine(random_model(COMPILED["llama"]))
    prompts, sampling = [[*PROMPT, *PROMPT, n] for n in (7, 8)], Sampling(max_tokens=8)
    most = 0

    async def both() -> list[list[list[int]]]:
        tasks = [asyncio.ensure_future(engine.sample(p, range(16), sampling)) for p in prompts]
        nonlocal most
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            rows = engine._runner._rows
            most = max(most, rows.pages.used if isinstance(rows, CompiledLlama) else 0)
        return [[list(said.ids) for said in task.result()] for task in tasks]

    found = asyncio.run(both())
    assert engine.stats.cached_tokens == 96  # of the second prompt, in the same step
    assert most == 3 + 32  # three whole blocks of what all begin with, and a last one for each
    quiet = open_engine(random_model(COMPILED["llama"]))
    (said,) = asyncio.run(quiet.sample(prompts[1], [3], sampling))
    assert list(said.ids) == found[1][3]
    assert isinstance(rows := engine._runner._rows, CompiledLlama)
    engine.forget()
    assert rows.pages.used == 0


def test_a_table_that_grows_for_a_long_row_keeps_the_pages_of_others() -> None:
    pages = Pages(1, 1, 8)
    pages.begin(0, [], 3 * BLOCK)
    pages.begin(1, [], 70 * BLOCK)
    assert pages.table[0, :3].tolist() == [pages.page(0, block) for block in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "wide heads that share keys"])
def test_a_prompt_reads_only_what_no_earlier_sequence_began_with(kind: str) -> None:
    one, sampling, rng = (
        random_model(COMPILED[kind]),
        Sampling(max_tokens=6),
        np.random.default_rng(3),
    )
    engine, other = (open_engine(one) for _ in range(2))
    asyncio.run(other.sample(PROMPT, [0], sampling))
    size = other._runner.rows.pages.page_bytes
    small = InProcessEngine(one, policy="p", version="0", cache_bytes=9 * size)
    held = [rng.integers(0, 300, 70).tolist()]
    for seed in range(50):  # each leaves an earlier one somewhere
        path = held[rng.integers(len(held))] if seed else []
        stay = int(rng.integers(2, len(path) + 1)) if seed else 0
        prompt = [*path[:stay], *rng.integers(0, 300, int(rng.integers(1, 40))).tolist()]
        other.forget()
        (said,), (fresh,), (little,) = (
            asyncio.run(e.sample(prompt, [seed], sampling)) for e in (engine, other, small)
        )
        assert said.ids == fresh.ids == little.ids
        assert said.logprobs == fresh.logprobs == little.logprobs
        alike = (commonprefix([prompt[:-1], before]) for before in held[1:])  # noqa: RUF071
        assert said.cached == max(map(len, alike), default=0) >= little.cached
        held.append([*prompt, *said.ids[:-1]])
        assert small._runner.rows.pages.used <= 9
    assert engine.stats.cached_tokens > small.stats.cached_tokens > 300


def test_the_exponential_is_that_of_numpy() -> None:
    for x in np.linspace(-86, 87, 2001, dtype=np.float32):
        assert kernels.exp(x) == pytest.approx(np.exp(np.float64(x)), rel=3e-7)
    assert 0 < kernels.exp(np.float32(-1e30)) < 2e-38


def test_a_product_is_bitwise_the_same_for_any_number_of_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((19, 40), np.float32)
    w = rng.standard_normal((3, 40, kernels.PANEL), np.float32)
    y = np.empty((19, 3 * kernels.PANEL), np.float32)
    kernels.multiply(x, w, y)
    assert np.allclose(y, x @ np.concatenate(list(w), 1), atol=1e-5)
    for rows in (1, 2, 7, 8):
        some = np.empty((rows, y.shape[1]), np.float32)
        kernels.multiply(x[19 - rows :], w, some)
        assert np.array_equal(some, y[19 - rows :])


def test_the_number_of_threads_changes_no_bit() -> None:
    completions = []
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            one = open_engine(random_model(COMPILED["llama"]))
            completions.append(asyncio.run(one.sample(PROMPT, range(7), Sampling(max_tokens=20))))
        finally:
            torch.set_num_threads(threads)
    assert completions[0] == completions[1] == completions[2]


def test_indexes_of_compiled_loops_that_are_older_than_the_source_are_dropped(
    tmp_path: Path,
) -> None:
    source, cache = tmp_path / "kernels.py", tmp_path / "cache"
    cache.mkdir()
    for path, age in ((source, 5), (cache / "kernels.a.nbi", 9), (cache / "kernels.b.nbi", 1)):
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    kernels.drop_stale(source, str(cache))
    assert [path.name for path in cache.iterdir()] == ["kernels.b.nbi"]
