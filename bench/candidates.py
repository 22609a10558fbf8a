"""Memory of many candidates of long prompts: pages that they share, against keys and values of their own.

    .venv/bin/python bench/candidates.py

SmolLM2's shape in float32 on CPU, five prompts of 1,800 tokens that have their first 300 in common, 16 candidates
of 32 tokens each, all at once. Each side has a process of its own:

    shared    the compiled engine (`engines/llama.py`)
    own       its path for other models: Transformers, a slot for each sequence (`engines/padded.py`)

Two minutes a round; at most three rounds, and none begins that would end after ``--seconds`` (300).
Medians; the last line is one JSON object:

    memory    what the process takes more at its peak than with the model alone: the second over the first
    time      seconds, the same way
    spread    the smallest and the largest ``time`` of a round
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.smollm2 import loaded
from bench.timing import Times, rounds
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.llama import CompiledLlama
from coterie.engines.protocol import Sampling

PROMPTS, COMMON, LENGTH, CANDIDATES, NEW = 5, 300, 1800, 16, 32
REPEATS = 3


def peak() -> float:
    """GiB that this process has taken at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


async def side() -> dict[str, float]:
    """Sample all candidates at once."""
    engine = InProcessEngine(loaded(None), policy="bench", version="0")
    rng = random.Random(0)
    common = [rng.randrange(49152) for _ in range(COMMON)]
    prompts = [
        [*common, *(rng.randrange(49152) for _ in range(LENGTH - COMMON))] for _ in range(PROMPTS)
    ]
    sampling, before, began = Sampling(max_tokens=NEW), peak(), time.perf_counter()
    await asyncio.gather(
        *(engine.sample(prompt, range(CANDIDATES), sampling) for prompt in prompts)
    )
    return {"gib": peak() - before, "seconds": time.perf_counter() - began}


def main() -> None:
    """Run both sides, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=("shared", "own"), help="only this one, in this process")
    parser.add_argument("--seconds", type=float, default=300, help="begin no round that ends later")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        if options.side == "own":
            CompiledLlama.fits = staticmethod(lambda _: False)  # type: ignore[method-assign]
        print(json.dumps(asyncio.run(side())))
        return
    times, memory = Times(), {name: list[float]() for name in ("shared", "own")}
    for _ in rounds(REPEATS, options.seconds):
        for name in memory:
            call = [sys.executable, __file__, "--side", name, "--threads", str(options.threads)]
            said = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout
            found = json.loads(said.splitlines()[-1])
            print(f"{name}: {found['gib']:.2f} GiB, {found['seconds']:.1f} s", flush=True)
            memory[name].append(found["gib"])
            times.add(name, found["seconds"])
    gib = {name: statistics.median(found) for name, found in memory.items()}
    print(json.dumps({
        "memory": gib["own"] / gib["shared"],
        "time": times.ratio("own", "shared"),
        "rounds": times.rounds(),
        "spread": times.spread("own", "shared"),
        "gib": gib,
        "seconds": times.medians(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
