"""Rollouts of a program through the gateway: against the same world as a native environment, and with a stub engine.

    .venv/bin/python bench/gateway.py

The native side plays `exchange` in process, and the other side plays it as a program, with equal prompts and replies,
by turns. The stub engine replies at once; a second process asks it for 64 sessions at a time, each a growing
conversation, and then for one. The last line is one JSON object:

    of_native        tokens per second of the program over tokens per second of the native environment
    native_tokens_per_second, rounds, spread    counted repeats, the smallest and the largest ratio of one
    requests_per_s   requests per second with 64 sessions
    cpu_ms           milliseconds of this process's processors for such a request, on a machine with other work
    overhead_ms      median milliseconds of a request of a single session
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.gateway_client import Connection
from coterie.config.plugins import object_name
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling, Stats
from coterie.environments.exchange import AGENTS, MAX_TURNS
from coterie.environments.gateway import open_gateway
from coterie.environments.protocol import Environment, Shared
from coterie.environments.qa_metrics import marked_answer
from coterie.environments.registry import TaskSettings, make_environment
from coterie.models.loading import LoadedModel, load
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.benchmark import benchmark_settings
from tests.helpers import program_worlds
from tests.helpers.program_worlds import write_exchange

SESSIONS, ROUNDS = 64, 10
EPISODES, MAX_TOKENS = 64, 96
REPEATS = 3


def play_exchange(task: Any, session: Any) -> str:
    """Play the micro-world as the tests' program does, with a small client."""
    connection = Connection(session.base_url, session.api_key)
    histories: dict[str, list[Any]] = {
        name: [{"role": "system", "content": prompt}] for name, prompt in task["prompts"].items()
    }
    previous: str | None = None
    for number in range(MAX_TURNS):
        name, partner = AGENTS[number % 2], AGENTS[(number + 1) % 2]
        choice = connection.ask(name, histories[name])["choices"][0]
        text = choice["message"]["content"]
        histories[name].append({"role": "assistant", "content": text})
        histories[partner].append({"role": "user", "content": text})
        if choice["finish_reason"] == "length":
            return ""
        answer = marked_answer(text)
        if previous is not None and answer == previous:
            break
        previous = answer or previous
    return previous or ""


def make(rows: Path, environment: str, *overrides: str) -> Environment:
    given = [f"dataset={rows}", *overrides]
    return make_environment(benchmark_settings(TaskSettings, environment, given))


async def play(
    environment: Environment, samplers: Any, count: int, samples: int
) -> tuple[int, float]:
    """Return the sampled tokens and the seconds of all episodes."""
    tasks = environment.tasks("train", count, 0)
    episodes = [Episode(task, sample, 0, "rollout") for task in tasks for sample in range(samples)]
    async with open_gateway() as gateway:
        driver = Driver(environment, samplers, seed=0, shared=Shared(gateway))
        began, tokens = time.perf_counter(), 0
        async with driver.play_all(episodes) as playing:
            async for result in playing:
                assert result.failure is None, result.failure
                tokens += result.tokens
        return tokens, time.perf_counter() - began


def compare(rows: Path, loaded: LoadedModel) -> dict[str, Any]:
    """Play the world both ways, by turns."""
    program = ["program", f"environment.agent={object_name(play_exchange)}"]
    program += ["environment.roles=[Alice,Bob]", "environment.reward=exact"]
    # As many as the native environment has in flight.
    program += [f"environment.sessions={4 * SESSIONS}"]
    sides = {
        "native": make(rows, f"{program_worlds.__file__}:NativeExchange"),
        "program": make(rows, *program),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    totals = set[int]()

    def one_round() -> None:
        for name, environment in sides.items():
            engine = InProcessEngine(loaded, max_batch=SESSIONS)
            sampler = TokenSampler.of(
                engine, loaded.renderer, Sampling(max_tokens=MAX_TOKENS), loaded.context_length
            )
            tokens, seconds = asyncio.run(
                play(environment, dict.fromkeys(AGENTS, sampler), EPISODES // 8, 8)
            )
            speeds[name].append(tokens / seconds)
            totals.add(tokens)

    one_round()  # compiles
    for values in speeds.values():
        values.clear()
    for _ in range(REPEATS):
        one_round()
    assert len(totals) == 1, "both sides sample the same tokens"
    ratios = [p / n for n, p in zip(speeds["native"], speeds["program"], strict=True)]
    return {
        "of_native": round(statistics.median(ratios), 3),
        "native_tokens_per_second": round(statistics.median(speeds["native"])),
        "rounds": REPEATS,
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
    }


class Stub:
    """An engine that replies at once."""

    policy, version, width = "stub", "0", 128

    def __init__(self, loaded: LoadedModel) -> None:
        self.ids = (*loaded.renderer.encode_content("I know that."), *loaded.renderer.end)
        self.stats = Stats()

    async def sample(
        self, prompt: Any, seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        logprobs = (0.0,) * len(self.ids)
        return [Completion(self.ids, logprobs, "I know that.", "end", seed) for seed in seeds]


class Asking:
    """A process that holds the conversations of all sessions, so that the gateway has a core of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("gateway_client.py")), str(ROUNDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._over: dict[str, asyncio.Future[list[float]]] = {}
        self.seconds: list[float] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._read, daemon=True).start()

    async def run(self, task: Any, session: Any) -> float:
        assert self._process.stdin is not None
        self._loop = asyncio.get_running_loop()
        over = self._over[session.api_key] = self._loop.create_future()
        print(json.dumps([session.base_url, session.api_key]), file=self._process.stdin, flush=True)
        self.seconds += await over
        return 1.0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            key, seconds = json.loads(line)
            self._loop.call_soon_threadsafe(self._over[key].set_result, seconds)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure_requests(rows: Path, loaded: LoadedModel) -> dict[str, Any]:
    asking = Asking()
    try:
        program = ["program", f"environment.agent={object_name(asking.run)}"]
        environment = make(rows, *program, f"environment.sessions={SESSIONS}")
        sampler = TokenSampler.of(Stub(loaded), loaded.renderer, Sampling(), 20_000)
        asyncio.run(play(environment, {"agent": sampler}, 8, 1))  # imports and caches
        speeds, began = [], time.process_time()
        for _ in range(REPEATS):
            _, seconds = asyncio.run(play(environment, {"agent": sampler}, 8, SESSIONS // 8))
            speeds.append(SESSIONS * ROUNDS / seconds)
        cpu = (time.process_time() - began) / (REPEATS * SESSIONS * ROUNDS)
        asking.seconds.clear()
        alone = make(rows, *program, "environment.sessions=1")
        asyncio.run(play(alone, {"agent": sampler}, 20, 1))
        return {
            "requests_per_s": round(statistics.median(speeds)),
            "cpu_ms": round(1000 * cpu, 2),
            "overhead_ms": round(1000 * statistics.median(asking.seconds), 2),
        }
    finally:
        asking.close()


def main() -> None:
    loaded = load("tiny-exchange")
    with tempfile.TemporaryDirectory() as folder:
        rows = write_exchange(Path(folder) / "rows.jsonl", 60)
        result = measure_requests(rows, loaded)
        print(json.dumps(result), file=sys.stderr, flush=True)
        result = {**compare(rows, loaded), **result}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
