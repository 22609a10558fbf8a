"""How far one driver carries: throughput over 1 to 16 servers, its processor time, and its memory.

    .venv/bin/python bench/scale.py

Real rollouts (:func:`coterie.runs.work_items.play`, a pool of servers, a store) of dialogues of six turns, with stubs
of ``vllm serve`` in one other process (``tests/helpers/stub_server.py``): a completion takes 50 ms to 5 s,
heavy-tailed, at 20 tokens a second, and a server works on ``SLOTS`` requests at a time. So the servers need almost
no processor, and the throughput of N servers falls short of N times that of one only where the driver leaves a slot
empty.

* ``linear_N``: tokens per second with N servers, over N times those with one in the same run. The number of dialogues
  in flight is ``IN_FLIGHT`` for each server, constant. A window begins after some seconds; a request counts with the
  share of its time that is in the window.
* ``driver_cores``: processor time of the driver in the window with the most servers, over the window.
* ``memory_gb``: most memory of a driver with ``DIALOGUES`` dialogues in flight from the first to the last, in a
  process of its own.

Takes about three minutes; nothing else may run. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from coterie.engines.pool import ServerPool, running_servers
from coterie.engines.protocol import Completion, Sampling
from coterie.engines.settings import VLLMSettings
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Shared
from coterie.models.loading import LoadedModel, load
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.record.tree import Task
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.work_items import play
from tests.helpers.stub_server import LONGEST, TOKENS_PER_SECOND, stub_process

MODEL = "tiny-exchange"
SERVERS = (1, 2, 4, 8, 16)
SLOTS = 8
"""Requests that a server works on at a time (``max_num_seqs`` of vLLM)."""
IN_FLIGHT = 3 * SLOTS
"""Dialogues for each server."""
TURNS, MAX_TOKENS = 6, 100
DIALOGUES = 5000
WARM_UP, WINDOW = 3.0, 10.0
"""Seconds before and in the window."""


class Dialogues(Exchange):
    """Dialogues with a session each, so that at most ``max_sessions`` are in flight."""

    pure = False

    def __init__(self, max_sessions: int) -> None:
        super().__init__()
        self.max_turns = TURNS
        self.max_sessions = max_sessions

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[Any]:
        """A session without resources."""
        yield None


class TimedPool:
    """A pool that notes when each completion came and how many tokens it has."""

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool
        self.ends: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """As the pool."""
        completions = await self._pool.sample(prompt, seeds, sampling)
        self.ends += [(time.monotonic(), len(one.ids)) for one in completions]
        return completions

    def tokens(self, begin: float, end: float) -> float:
        """Tokens sampled in a window, at an even rate."""
        total = 0.0
        for at, count in self.ends:
            start = at - count / TOKENS_PER_SECOND
            total += max(min(at, end) - max(start, begin), 0) * TOKENS_PER_SECOND
        return total


async def rollout(
    urls: Sequence[str], model: LoadedModel, in_flight: int, dialogues: int, window: bool
) -> dict[str, float]:
    """Play dialogues: until a window has passed, or all of them."""
    environment: Any = Dialogues(in_flight)
    settings = VLLMSettings(urls=tuple(urls), stall_seconds=300)
    episodes = [Episode(task, 0, 0, "rollout") for task in environment.tasks("train", dialogues, 0)]
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "store.sqlite") as store:
        async with running_servers(
            model.renderer, settings, policy="talker", version="0"
        ) as servers:
            pool: Any = TimedPool(servers)
            sampling = Sampling(1.0, 1.0, MAX_TOKENS, timeout=3600)
            sampler = TokenSampler(pool, model.renderer.render, sampling, model.context_length)
            samplers = dict.fromkeys(environment.actors, sampler)
            driver = Driver(environment, samplers, seed=1, shared=Shared())
            began = time.monotonic()
            rolling = play(store, driver, episodes, Silent(), lambda: pool.stats.sampled_tokens)
            task = asyncio.ensure_future(rolling)
            if window:
                await asyncio.sleep(WARM_UP)
            begin, cpu, turns = time.monotonic(), time.process_time(), len(pool.ends)
            done = len(store.finished_keys(0, "rollout"))
            await asyncio.wait((task,), timeout=WINDOW if window else None)
            end, cpu = time.monotonic(), time.process_time() - cpu
            turns, done = len(pool.ends) - turns, len(store.finished_keys(0, "rollout")) - done
            if window:
                assert not task.done(), "too few dialogues for the window"
                await asyncio.sleep(LONGEST + 0.5)  # for the requests that are in flight at its end
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            else:
                task.result()
            return {
                "tokens_per_second": pool.tokens(begin, end) / (end - begin),
                "turns_per_second": turns / (end - begin),
                "dialogues_per_second": done / (end - begin),
                "driver_cores": cpu / (end - begin),
                "failed": len(store.failures(0)),
                "retries": pool.stats.retries,
                "seconds": end - began,
            }


def measured(count: int, in_flight: int, dialogues: int, window: bool) -> dict[str, float]:
    """Play with ``count`` servers. Also measure the processor time of the stubs over all of it."""
    model = load(MODEL)
    options = ("--latencies", "--slots", str(SLOTS))
    with stub_process(MODEL, "talker", count, *options) as (urls, process):
        stub = psutil.Process(process.pid)
        cpu, began = sum(stub.cpu_times()[:2]), time.monotonic()
        found = asyncio.run(rollout(urls, model, in_flight, dialogues, window))
        found["stub_cores"] = (sum(stub.cpu_times()[:2]) - cpu) / (time.monotonic() - began)
    found["memory_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return found


def main() -> None:
    """Measure each number of servers, then the memory, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", nargs=4, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        count, in_flight, dialogues, window = args.one
        print(json.dumps(measured(count, in_flight, dialogues, bool(window))))
        return

    def run(*numbers: int) -> dict[str, float]:
        command = [sys.executable, __file__, "--one", *map(str, numbers)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found: dict[str, float] = json.loads(output.splitlines()[-1])
        text = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        print(f"{numbers[0]} servers, {numbers[1]} dialogues in flight: {text}", flush=True)
        return found

    rates = {}
    for count in SERVERS:
        enough = round(SLOTS * count * (WARM_UP + WINDOW + LONGEST) / 0.23 / TURNS)
        last = run(count, IN_FLIGHT * count, enough + IN_FLIGHT * count, 1)
        rates[count] = last["tokens_per_second"]
    whole = run(SERVERS[-1], DIALOGUES, DIALOGUES, 0)
    found = {f"linear_{count}": rates[count] / rates[1] / count for count in (8, 16)}
    found |= {"driver_cores": last["driver_cores"], "memory_gb": whole["memory_gb"]}
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
