"""Rewards of 15 plans a task: targets under shared beginnings against each candidate alone in padded batches.

    .venv/bin/python bench/plan_scoring.py

About ten minutes on two quiet cores, at most ``--seconds`` (500) and a round. SmolLM2-135M in float32; 8 tasks, each
with a prompt of 640 tokens and 15 plans of 40 tokens, under each of which the same 40 tokens of right actions are
scored. The baseline is the original's way: whole sequences in padded batches through Transformers, at the fastest of
the batch sizes 1, 4, 8 and 15, tried on one task, with ``logits_to_keep``, which projects to the vocabulary only where
the target is (the original projects everywhere). Alternating repeats, medians; the last line is one JSON object:

    speedup             seconds of the baseline over those of ours
    of_ideal            speedup over the ratio of tokens: all of the whole sequences to those of their trie
    max_diff            the largest difference of a reward (nats a token)
    peak_memory_ratio   peak memory of a process of ours over one of the baseline's
    rounds, spread      counted repeats, and the smallest and largest speedup of one of them
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.smollm2 import loaded
from bench.timing import alternate
from coterie.engines.inprocess import InProcessEngine
from coterie.models.loading import LoadedModel
from coterie.rewards.critics import mean_loglikelihoods

TASKS, PLANS = 8, 15
PROMPT, PLAN, TARGET = 640, 40, 40
BATCHES = (1, 4, 8, 15)
REPEATS = 3
IDEAL = PLANS * (PROMPT + PLAN + TARGET) / (PROMPT + PLANS * (PLAN + TARGET))
"""Tokens of the whole sequences over those of their trie."""
Task = tuple[list[list[int]], list[int]]
"""The prompts, each with its plan, and the right actions."""


def tasks() -> list[Task]:
    """Random tokens of a seed."""
    rng = random.Random(0)

    def some(count: int) -> list[int]:
        return [rng.randrange(49152) for _ in range(count)]

    found = []
    for _ in range(TASKS):
        prompt = some(PROMPT)
        found.append(([prompt + some(PLAN) for _ in range(PLANS)], some(TARGET)))
    return found


def shared(model: LoadedModel, given: list[Task]) -> list[float]:
    """Ours: all tasks in flight, what the plans of one share computed once."""

    async def score() -> list[list[float]]:
        engine = InProcessEngine(model, policy="bench", version="0")
        return await asyncio.gather(*(mean_loglikelihoods(engine, *task) for task in given))

    return [value for found in asyncio.run(score()) for value in found]


def padded(model: Any, given: list[Task], size: int) -> list[float]:
    """Whole sequences by Transformers, so many at a time."""
    found: list[float] = []
    with torch.inference_mode():
        for prompts, target in given:
            rows = torch.tensor([[*prompt, *target] for prompt in prompts])
            for part in rows.split(size):
                keep = len(target)
                said = model(input_ids=part, logits_to_keep=keep + 1, use_cache=False).logits
                logprobs = said[:, :-1].float().log_softmax(-1)
                found += logprobs.gather(-1, part[:, -keep:, None])[..., 0].mean(1).tolist()
    return found


def best_size(model: Any, given: list[Task]) -> int:
    """The batch size at which one task is scored fastest."""
    seconds = {}
    for size in BATCHES:
        began = time.perf_counter()
        padded(model, given[:1], size)
        seconds[size] = time.perf_counter() - began
    return min(seconds, key=lambda size: seconds[size])


def peak(side: str, size: int, path: str | None) -> float:
    """Bytes that a process of its own needed at most for one task."""
    command = [sys.executable, __file__, "--side", side, "--batch", str(size)]
    command += ["--model", path] if path else []
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(said.splitlines()[-1])


def compare(path: str | None, seconds: float) -> dict[str, object]:
    """All figures."""
    one, other, given = loaded(path), loaded(path), tasks()
    size = best_size(other.model, given)
    sides: dict[str, Callable[[], list[float]]] = {
        "shared": lambda: shared(one, given),
        "padded": lambda: padded(other.model, given, size),
    }
    times = alternate(sides, REPEATS, seconds)
    for name, median in times.medians().items():
        print(f"{name:>8}: {median:.2f} s")
    speedup = times.ratio("padded", "shared")
    found, right = sides["shared"](), sides["padded"]()
    return {
        "speedup": speedup,
        "of_ideal": speedup / IDEAL,
        "max_diff": max(abs(a - b) for a, b in zip(found, right, strict=True)),
        "peak_memory_ratio": peak("shared", size, path) / peak("padded", size, path),
        "batch": size,
        "rounds": times.rounds(),
        "spread": times.spread("padded", "shared"),
    }


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=500, help="begin no round that ends later")
    parser.add_argument("--side", choices=["shared", "padded"], help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.side:
        model = loaded(args.model)
        if args.side == "shared":
            shared(model, tasks()[:1])
        else:
            padded(model.model, tasks()[:1], args.batch)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    print(json.dumps(compare(args.model, args.seconds)))


if __name__ == "__main__":
    main()
