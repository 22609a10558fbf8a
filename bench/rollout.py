"""Whole dialogues against the same requests with no dialogue to wait for: what the driver costs.

    make test-vllm                       # once: makes .venv-vllm, which has vLLM
    .venv/bin/python bench/rollout.py

One side plays dialogues, in which a turn waits for the one before it. The other submits the very same
requests (prompt ids, seeds; each may be as long as it was) all at time 0, in order of turn: nothing can
be faster on that engine. Its prefix cache is emptied before each run. The last line is one JSON object:

    inprocess, vllm   each {"of_ceiling": tokens/s of dialogues over tokens/s of the requests at time 0,
                      "tokens_per_second", "ceiling_tokens_per_second", "cached_share",
                      "ceiling_cached_share": prompt tokens that were not computed again,
                      "rounds", "spread": counted repeats, the smallest and largest ratio of one}

Alternating repeats, medians; at most ``--seconds`` (200) and a round for each. Where no vLLM is found there
is no key ``vllm``.
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import Times, rounds
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.pool import ServerPool, vllm_pool
from coterie.engines.protocol import Engine, Sampling
from coterie.engines.settings import VLLMSettings
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Shared
from coterie.models.loading import LoadedModel, load
from coterie.record.tree import Task
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler

DIALOGUES, TURNS, MAX_TOKENS = 512, 6, 96
AT_A_TIME = 32
"""Sequences that either engine decodes at a time."""
REPEATS = 3
VLLM_PYTHON = Path(__file__).parents[1] / ".venv-vllm/bin/python"
os.environ.setdefault(
    "VLLM_CPU_KVCACHE_SPACE", "4"
)  # GiB; by itself vLLM takes much of the machine


@dataclass(frozen=True)
class Asked:
    """One request and what came of it."""

    turn: int
    prompt: tuple[int, ...]
    seed: int
    tokens: int


@dataclass(frozen=True)
class Measured:
    """One run of one side."""

    seconds: float
    tokens: int
    cached_share: float


class RecordingSampler(TokenSampler):
    """A sampler that notes what it asks the engine for."""

    asked: list[Asked]

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """As any other sampler."""
        turn = 0 if prompt.parent == prompt.tree.root else len(prompt.tree.path(prompt.parent))
        prompt_ids = self.render(prompt.messages, prompt.tree, prompt.agent)
        response = await super().respond(prompt, context)
        self.asked.append(Asked(turn, prompt_ids, prompt.seed, response.tokens))
        return response


async def dialogues(sampler: TokenSampler, environment: Any, tasks: Sequence[Task]) -> None:
    """Play all dialogues."""
    episodes = [Episode(task, 0, 0, "bench") for task in tasks]
    samplers = dict.fromkeys(environment.actors, sampler)
    driver = Driver(environment, samplers, seed=0, shared=Shared())
    async with driver.play_all(episodes) as playing:
        async for finished in playing:
            assert finished.failure is None, finished.failure


async def requests(engine: Engine, asked: Sequence[Asked], sampling: Sampling) -> None:
    """Submit all requests at once."""
    await asyncio.gather(
        *(
            engine.sample(one.prompt, [one.seed], replace(sampling, max_tokens=one.tokens))
            for one in asked
        )
    )


async def measured(
    engine: Engine, forget: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]
) -> Measured:
    """Seconds, sampled tokens and cached share of one run with an empty prefix cache."""
    await forget()
    before = replace(engine.stats)
    began = time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    after = engine.stats
    prompt = after.prompt_tokens - before.prompt_tokens
    cached = (after.cached_tokens - before.cached_tokens) / prompt
    return Measured(seconds, after.sampled_tokens - before.sampled_tokens, cached)


async def compare(
    name: str,
    engine: Engine,
    forget: Callable[[], Awaitable[None]],
    model: LoadedModel,
    seconds: float,
) -> dict[str, object]:
    """Both sides in turn, after one run that records the requests."""
    sampling = Sampling(0.7, 1.0, MAX_TOKENS)
    settings = (engine, model.renderer.render, sampling, model.context_length)
    recording = RecordingSampler(*settings)
    recording.asked = []
    environment: Any = Exchange()
    environment.max_turns = TURNS
    tasks = environment.tasks("heldout", DIALOGUES, 0)
    await dialogues(recording, environment, tasks)
    asked = sorted(recording.asked, key=lambda one: one.turn)
    sampler = TokenSampler(*settings)
    sides: dict[str, Callable[[], Awaitable[None]]] = {
        "dialogues": lambda: dialogues(sampler, environment, tasks),
        "requests": lambda: requests(engine, asked, sampling),
    }
    runs: dict[str, list[Measured]] = {side: [] for side in sides}
    for _ in rounds(REPEATS, seconds):
        for side, work in sides.items():
            runs[side].append(await measured(engine, forget, work))
    rates = {s: statistics.median(m.tokens / m.seconds for m in ms) for s, ms in runs.items()}
    shares = {s: statistics.median(m.cached_share for m in ms) for s, ms in runs.items()}
    for side in sides:
        last = runs[side][-1]
        print(
            f"{name}, {side}: {rates[side]:,.0f} tokens/s ({last.tokens:,} tokens of "
            f"{len(asked)} requests, {shares[side]:.0%} of prompt tokens cached)"
        )
    a_token = Times({side: [m.seconds / m.tokens for m in found] for side, found in runs.items()})
    return {
        "of_ceiling": rates["dialogues"] / rates["requests"],
        "rounds": a_token.rounds(),
        "spread": a_token.spread("requests", "dialogues"),
        "tokens_per_second": rates["dialogues"],
        "ceiling_tokens_per_second": rates["requests"],
        "cached_share": shares["dialogues"],
        "ceiling_cached_share": shares["requests"],
    }


@asynccontextmanager
async def served(model: str, loaded: LoadedModel, python: str) -> AsyncIterator[ServerPool]:
    """A vLLM server of the model in float32."""
    settings = VLLMSettings(
        python=python,
        dtype="float32",
        enforce_eager=True,
        arguments={"max_num_seqs": AT_A_TIME},
    )
    with tempfile.TemporaryDirectory() as logs:
        async with vllm_pool(
            model, loaded.renderer, settings, Path(logs), policy="bench", version="0"
        ) as pool:
            yield pool


async def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-exchange")
    parser.add_argument(
        "--vllm-python",
        default=str(VLLM_PYTHON) if VLLM_PYTHON.is_file() else None,
        help="an interpreter that has vLLM; default: that of make test-vllm",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=200, help="begin no round that ends later")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = load(args.model)
    engine = InProcessEngine(loaded, policy="bench", version="0", max_batch=AT_A_TIME)

    async def forget() -> None:
        engine.forget()

    found = {"inprocess": await compare("in process", engine, forget, loaded, args.seconds)}
    if args.vllm_python:
        async with served(args.model, loaded, args.vllm_python) as pool:

            async def reset() -> None:
                pool.router.clear()
                for member in pool.members:
                    assert await member.client.reset_cache()

            found["vllm"] = await compare("vLLM", pool, reset, loaded, args.seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
