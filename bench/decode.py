"""Decoding by the in-process engine: against Transformers' ``generate``, and under one prefix.

    .venv/bin/python bench/decode.py

About two minutes on two quiet cores. The last line is one JSON object:

    vs_generate             tiny-exchange, 32 prompts of its world, 128 forced new tokens each:
                            tokens/s over those of ``generate`` (sampling, left-padded, in float32)
    shared_prefix_speedup   SmolLM2-135M, 16 candidates of 16 tokens under one prefix of 512 tokens:
                            seconds of 16 separate prompts of 512 tokens over theirs, by the same engine

Alternating repeats, medians. Ends are off on both sides, so that all lengths are equal.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.smollm2 import loaded
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.registry import environment
from coterie.models.loading import LoadedModel, load
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message

BATCH, NEW = 32, 128
PREFIX, CANDIDATES, CANDIDATE_TOKENS = 512, 16, 16
REPEATS = 5


def endless(model: LoadedModel) -> LoadedModel:
    """The model with no token that ends a turn."""
    model.renderer.end_ids = frozenset()
    return model


def world_prompts(model: LoadedModel) -> list[list[int]]:
    """First prompts of held-out tasks."""
    world = environment("exchange")
    found = []
    for task in world.tasks("heldout", BATCH, 0):
        tree = Tree(task.id, "evaluate", 0)
        asked = Message("system", world.system_parts(task, world.agents[0]))
        found.append(list(model.renderer.render([asked], tree, world.agents[0])))
    return found


def generate(model: LoadedModel, prompts: list[list[int]]) -> int:
    """By Transformers; gives the number of new tokens."""
    width = max(map(len, prompts))
    pad = model.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        out = model.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
            eos_token_id=None,
            pad_token_id=pad,
        )
    return (out.shape[1] - width) * len(prompts)


def sample(engine: InProcessEngine, prompts: list[list[int]], count: int, new: int) -> int:
    """``count`` completions of each prompt by the engine; gives the number of new tokens."""

    async def all_of_them() -> int:
        told = Sampling(max_tokens=new)
        calls = (engine.sample(p, list(range(n, n + count)), told) for n, p in enumerate(prompts))
        return sum(len(one.ids) for found in await asyncio.gather(*calls) for one in found)

    engine.forget()
    return asyncio.run(all_of_them())


def medians(sides: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Median seconds a new token of each side, alternating."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(REPEATS + 1):
        for name, run in sides.items():
            began = time.perf_counter()
            count = run()
            if repeat:
                times[name].append((time.perf_counter() - began) / count)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights for the second figure")
    parser.add_argument("--threads", type=int, default=2)
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    tiny = endless(load("tiny-exchange"))
    prompts = world_prompts(tiny)
    engine = InProcessEngine(endless(load("tiny-exchange")), policy="bench", version="0")
    first = medians({
        "generate": lambda: generate(tiny, prompts),
        "engine": lambda: sample(engine, prompts, 1, NEW),
    })  # fmt: skip
    for name, seconds in first.items():
        print(f"tiny, batch {BATCH}, {name}: {1 / seconds:,.0f} tokens/s")
    rng = random.Random(0)
    apart = [[rng.randrange(49152) for _ in range(PREFIX)] for _ in range(CANDIDATES)]
    large = InProcessEngine(endless(loaded(told.model)), policy="bench", version="0")
    second = medians({
        "separate prompts": lambda: sample(large, apart, 1, CANDIDATE_TOKENS),
        "one prefix": lambda: sample(large, apart[:1], CANDIDATES, CANDIDATE_TOKENS),
    })  # fmt: skip
    for name, seconds in second.items():
        print(f"SmolLM2, {CANDIDATES} x {CANDIDATE_TOKENS}, {name}: {1 / seconds:,.1f} tokens/s")
    print(json.dumps({
        "vs_generate": first["generate"] / first["engine"],
        "shared_prefix_speedup": second["separate prompts"] / second["one prefix"],
        "engine_tokens_per_second": 1 / first["engine"],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
