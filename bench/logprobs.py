"""Log-probs of 15 continuations under one prefix: the engine's tries against padded batches.

    .venv/bin/python bench/logprobs.py

About two minutes on two quiet cores. SmolLM2-135M in float32, a prefix of 320 tokens and
continuations of 40 (8:1). The baseline is whole sequences in padded batches, at the fastest of the
batch sizes 1, 4 and 15, by the same code without packing (so it too projects to the vocabulary only
where a log-prob is wanted). Alternating repeats, medians; the last line is one JSON object:
``speedup``, and ``max_diff``, the largest difference of a log-prob (nats).
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
from bench.timing import medians
from coterie.engines.inprocess import InProcessEngine
from coterie.models.packed import sequence_logprobs

PREFIX, CONTINUATION, COUNT = 320, 40, 15
BATCHES = (1, 4, 15)
REPEATS = 3

Scores = list[list[float]]


def padded(
    policy: Any, prefix: Sequence[int], continuations: Sequence[Sequence[int]], batch: int
) -> Scores:
    """Whole sequences, so many at a time."""
    rows = [(*prefix, *continuation) for continuation in continuations]
    found: Scores = []
    with torch.inference_mode():
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            places = [range(len(prefix), len(row)) for row in part]
            found += [values.tolist() for values in sequence_logprobs(policy, part, places)]
    return found


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights")
    parser.add_argument("--threads", type=int, default=2)
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    rng = random.Random(0)
    prefix = [rng.randrange(49152) for _ in range(PREFIX)]
    ends = [[rng.randrange(49152) for _ in range(CONTINUATION)] for _ in range(COUNT)]
    one, plain = loaded(told.model), loaded(told.model)
    engine = InProcessEngine(one, policy="bench", version="0")
    sides: dict[str, Callable[[], Scores]] = {
        "tries": lambda: asyncio.run(engine.logprobs(prefix, ends)),
        **{
            f"padded, {size} at a time": lambda size=size: padded(plain.model, prefix, ends, size)  # type: ignore[misc]
            for size in BATCHES
        },
    }
    middle = medians(sides, REPEATS)
    for name, seconds in middle.items():
        print(f"{name:>24}: {seconds:.2f} s")
    best = min(seconds for name, seconds in middle.items() if name != "tries")
    difference = max(
        abs(a - b)
        for row, other in zip(
            sides["tries"](), padded(plain.model, prefix, ends, COUNT), strict=True
        )
        for a, b in zip(row, other, strict=True)
    )
    print(json.dumps({"speedup": best / middle["tries"], "max_diff": difference}))


if __name__ == "__main__":
    main()
