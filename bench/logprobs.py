"""Log-probs of 15 continuations under one prefix: the engine's tries against padded batches.

    .venv/bin/python bench/logprobs.py

About two minutes on two quiet cores, at most ``--seconds`` (300) and a round. SmolLM2-135M in float32, a
prefix of 320 tokens and continuations of 40 (8:1). The baseline is Transformers: whole sequences in padded
batches, at the fastest of the batch sizes 1, 4 and 15, through ``model(..., logits_to_keep=...)``, which
projects to the vocabulary only where a log-prob is wanted. Alternating repeats, medians; the last line is
one JSON object:

    speedup         seconds of the baseline over those of the engine
    of_ideal        speedup over the ratio of tokens: all of the whole sequences to those of their trie
    max_diff        the largest difference of a log-prob (nats)
    rounds, spread  counted repeats, and the smallest and largest speedup of one of them
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.smollm2 import loaded
from bench.timing import alternate
from coterie.engines.inprocess import InProcessEngine

PREFIX, CONTINUATION, COUNT = 320, 40, 15
BATCHES = (1, 4, 15)
REPEATS = 3
IDEAL = COUNT * (PREFIX + CONTINUATION) / (PREFIX + COUNT * CONTINUATION)
"""Tokens of the whole sequences over those of their trie."""

Scores = list[list[float]]


def padded(
    policy: Any, prefix: Sequence[int], continuations: Sequence[Sequence[int]], batch: int
) -> Scores:
    """Whole sequences by Transformers, so many at a time; all are equally long."""
    whole = [[*prefix, *continuation] for continuation in continuations]
    rows = torch.tensor(whole, device=policy.device)
    found: Scores = []
    with torch.inference_mode():
        for part in rows.split(batch):
            keep = part.shape[1] - len(prefix)
            logits = policy(input_ids=part, logits_to_keep=keep + 1, use_cache=False).logits[:, :-1]
            targets = part[:, -keep:, None]
            found += logits.float().log_softmax(-1).gather(-1, targets)[..., 0].tolist()
    return found


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="begin no round that ends later")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rng = random.Random(0)
    prefix = [rng.randrange(49152) for _ in range(PREFIX)]
    ends = [[rng.randrange(49152) for _ in range(CONTINUATION)] for _ in range(COUNT)]
    one, plain = loaded(args.model), loaded(args.model)
    engine = InProcessEngine(one, policy="bench", version="0")
    sides: dict[str, Callable[[], Scores]] = {
        "tries": lambda: asyncio.run(engine.logprobs(prefix, ends)),
        **{
            f"padded, {size} at a time": lambda size=size: padded(plain.model, prefix, ends, size)  # type: ignore[misc]
            for size in BATCHES
        },
    }
    times = alternate(sides, REPEATS, args.seconds)
    middle = times.medians()
    for name, seconds in middle.items():
        print(f"{name:>24}: {seconds:.2f} s")
    best = min((name for name in sides if name != "tries"), key=lambda name: middle[name])
    difference = max(
        abs(a - b)
        for row, other in zip(
            sides["tries"](), padded(plain.model, prefix, ends, COUNT), strict=True
        )
        for a, b in zip(row, other, strict=True)
    )
    speedup = times.ratio(best, "tries")
    found = {
        "speedup": speedup,
        "of_ideal": speedup / IDEAL,
        "max_diff": difference,
        "rounds": times.rounds(),
        "spread": times.spread(best, "tries"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
