"""What grading in the sandbox costs: warm workers against a fresh sandboxed interpreter for each answer.

    .venv/bin/python bench/sandbox.py

Takes a minute, at most two minutes and a round; the last line is one JSON object. An answer is a small function
with a helper and ten tests. ``speedup`` is gradings a second of one worker over those where each answer gets a
sandbox of its own, with the same containment (starting it includes its proof, a trivial answer).
``speedup_bare`` is over a jail with a bare interpreter for each answer: no limits, no filter of system calls, no
channel, no time limits. ``two_workers`` is gradings a second of two workers over those of one, and needs two idle
cores. ``p99_ms`` is the 99th percentile of a grading on one worker. Measurements take turns, and the median of
rounds counts; ``spread`` is the smallest and largest ``speedup`` of a round.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import rounds
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings, make_jail

SOURCE = """
import math

def digits(n):
    return [int(d) for d in str(abs(n))]

def checksum(numbers, base=10):
    total = sum((i + 1) * d for i, n in enumerate(numbers) for d in digits(n))
    return {"checksum": total % base, "root": math.isqrt(total), "digits": digits(total)}
"""
CALLS = [f"checksum(list(range({n}, {n} + 20)), base={n + 2})" for n in range(10)]
PLAIN = "import sys; space = {}; exec(sys.argv[1], space); print([eval(call, space) for call in sys.argv[2:]])"
WARM, FRESH, ROUNDS, SECONDS = 150, 20, 5, 120


async def rate(sandbox: Sandbox, expected: list[object], count: int, taken: list[float]) -> float:
    """Gradings a second of ``count`` answers that are all there at once; ``taken`` gets seconds of each."""
    places = asyncio.Semaphore(sandbox.settings.count)

    async def one() -> None:
        async with places:
            began = time.perf_counter()
            assert (await sandbox.grade(SOURCE, CALLS, expected)).success
            taken.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return count / (time.perf_counter() - began)


def bare_rate(expected: list[object]) -> float:
    """Gradings a second where each answer has a jail and a bare interpreter."""
    command = [*make_jail(SandboxSettings())[:-1], PLAIN, SOURCE, *CALLS]
    began = time.perf_counter()
    for _ in range(FRESH):
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert told == f"{expected}\n"
    return FRESH / (time.perf_counter() - began)


async def fresh_rate(expected: list[object]) -> float:
    """Gradings a second where each answer has a sandbox of its own: the same containment, nothing warm."""
    began = time.perf_counter()
    for _ in range(FRESH):
        async with Sandbox(SandboxSettings(workers=1)) as sandbox:
            assert (await sandbox.grade(SOURCE, CALLS, expected)).success
    return FRESH / (time.perf_counter() - began)


async def main() -> None:
    """Measure in turns and print."""
    rates: dict[str, list[float]] = {"bare": [], "fresh": [], "one": [], "two": []}
    taken: list[float] = []
    async with (
        Sandbox(SandboxSettings(workers=1)) as one,
        Sandbox(SandboxSettings(workers=2)) as two,
    ):
        expected = [result.value for result in await one.run(SOURCE, CALLS)]
        for _ in rounds(ROUNDS, SECONDS):
            rates["bare"].append(bare_rate(expected))
            rates["fresh"].append(await fresh_rate(expected))
            rates["one"].append(await rate(one, expected, WARM, taken))
            rates["two"].append(await rate(two, expected, WARM, []))
            print({name: round(values[-1], 1) for name, values in rates.items()}, flush=True)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    figures = {
        "speedup": middle["one"] / middle["fresh"],
        "speedup_bare": middle["one"] / middle["bare"],
        "two_workers": statistics.median(
            two / one for one, two in zip(rates["one"], rates["two"], strict=True)
        ),
        "p99_ms": statistics.quantiles(taken, n=100)[98] * 1000,
        "p50_ms": statistics.median(taken) * 1000,
        **{f"{name}_a_second": value for name, value in middle.items()},
    }
    speedups = [one / fresh for one, fresh in zip(rates["one"], rates["fresh"], strict=True)]
    rounded = {name: round(value, 2) for name, value in figures.items()}
    spread = [round(min(speedups), 2), round(max(speedups), 2)]
    print(json.dumps({**rounded, "rounds": len(speedups), "spread": spread}))


if __name__ == "__main__":
    asyncio.run(main())
