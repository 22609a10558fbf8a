"""Whether a model follows the prompts: the share of well-formed answers in every environment, on a few easy tasks.

    .venv/bin/python bench/prompts.py MODEL
    .venv/bin/python bench/prompts.py smollm2 --tasks 8 --max-tokens 512 --seconds 1800

MODEL is what ``policy=`` of ``coterie evaluate`` takes: a packaged model, a folder, or a name on the hub. It is run by
the in-process engine, greedily. Questions come from the rows that ship with coterie; functions are ColBench's easiest
kinds, and MODEL plays the person too. A dialogue has 6 messages at most. ``exchange`` and ``persona`` are micro-worlds,
whose prompts are made for the packaged models: how others do there says little.

``--seconds`` bounds the whole. What is left of it is shared equally among the environments that are left; dialogues
that are not over when their share is used up are dropped and counted as ``unfinished``. The last line is one JSON
object:

    {"model", "tasks", "max_tokens", "seconds", "environments": {NAME: {"well_formed": share of dialogues that end with
     an answer in the form that the prompt asks for, and not a copy of its example, "cut_off": share of messages that
     ran to the limit of tokens, "score", "n": dialogues that ended, "unfinished", "failed", "seconds"}}}

NAME is a benchmark, with its method if it is not its own dialogue: ``gsm8k cot``. Shares are null where n is 0.
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from coterie.rollout.samplers import UserSampler

sys.path.insert(0, str(Path(__file__).parents[1]))
from coterie.engines.chat_model import LoadedChat
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.engines.settings import EngineSettings
from coterie.environments.protocol import (
    CUT_OFF,
    MESSAGES,
    WELL_FORMED,
    Shared,
    agents_of,
    persons_of,
)
from coterie.environments.registry import BUILT_IN, is_micro_world
from coterie.environments.settings import Method
from coterie.environments.user_simulator import ModelUserSimulator, UserSimulatorSettings
from coterie.errors import UserError
from coterie.models.loading import load
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import TokenSampler
from coterie.runs.benchmark import BenchmarkSettings, benchmark_settings
from coterie.runs.work_items import Actors
from coterie.tools.sandbox.pool import Sandbox

CASES: tuple[tuple[str, Method], ...] = (
    ("exchange", "dialogue"),
    ("persona", "dialogue"),
    ("colbench_code", "cot"),
    ("gsm8k", "cot"),
    ("arc_c", "mad"),
    *((name, "dialogue") for name in BUILT_IN["debate"].datasets),
    ("colbench_code", "dialogue"),
    ("hotpot_qa", "cot"),
    ("trivia_qa", "autoform"),
    *((name, "dialogue") for name in reversed([*BUILT_IN["information_exchange"].datasets])),
)
"""Environments and methods, about from the quickest to the slowest: what one leaves of its time goes to those after."""

TURNS = 6
"""Messages of a dialogue at most; of the agent, where a person talks too."""
AT_ONCE = 2
"""Dialogues at a time: few, so that some end on a slow machine too."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    model: str
    tasks: int
    max_tokens: int
    seconds: float


@dataclass(frozen=True)
class Found:
    """What one environment came to."""

    well_formed: float | None
    cut_off: float | None
    score: float | None
    n: int
    unfinished: int
    failed: int
    seconds: float


def summed(finished: Sequence[EpisodeResult], started: int, seconds: float) -> Found:
    """Shares over the dialogues that ended."""
    ended = [one for one in finished if one.tree is not None]
    messages = sum(int(one.metrics[MESSAGES]) for one in ended)
    cut = sum(int(one.metrics[CUT_OFF]) for one in ended)
    scores = [outcome.score for one in ended if one.tree for outcome in one.tree.outcomes.values()]
    n = len(ended)
    return Found(
        well_formed=sum(float(one.metrics[WELL_FORMED]) for one in ended) / n if n else None,
        cut_off=cut / messages if messages else None,
        score=sum(scores) / n if n else None,
        n=n,
        unfinished=started - len(finished),
        failed=len(finished) - n,
        seconds=round(seconds, 1),
    )


async def played(driver: Driver, tasks: int, seconds: float) -> Found:
    """As many dialogues as there are tasks, some at a time, and for so long at most."""
    began = time.perf_counter()
    drawn = driver.environment.tasks("heldout", tasks, 0)
    episodes = [Episode(task, 0, 0, "bench") for task in drawn]
    finished: list[EpisodeResult] = []
    try:
        async with asyncio.timeout(seconds):
            for start in range(0, len(episodes), AT_ONCE):
                async with driver.play_all(episodes[start : start + AT_ONCE]) as playing:
                    async for one in playing:
                        finished.append(one)
                        if one.failure:
                            print(f"failed: {one.failure}", file=sys.stderr)
    except TimeoutError:
        pass
    return summed(finished, len(episodes), time.perf_counter() - began)


async def measure(options: Options, end: float) -> dict[str, Found]:
    """All environments, one after the other; a line is printed for each."""
    loaded = load(options.model, device=EngineSettings().device_name)
    engine = InProcessEngine(loaded, policy="bench", version="0")
    sampling = Sampling(0.0, 1.0, options.max_tokens)
    sampler = TokenSampler(engine, loaded.renderer.render, sampling, loaded.context_length)
    user_simulator = UserSimulatorSettings(model=options.model)
    chat = LoadedChat(engine, user_simulator)
    found: dict[str, Found] = {}
    async with Sandbox() as sandbox:
        for place, (name, method) in enumerate(CASES):
            source = "easy" if name == "colbench_code" else "sample"
            rows = [] if is_micro_world(name) else [f"dataset.source={source}"]
            overrides = [f"method={method}", f"environment.turns={TURNS}", *rows]
            environment = benchmark_settings(BenchmarkSettings, name, overrides).build_environment()
            script = getattr(environment, "script", None)
            persons = {
                person: UserSampler(
                    script or ModelUserSimulator(chat, user_simulator, environment, person)
                )
                for person in persons_of(environment)
            }
            samplers = dict.fromkeys(agents_of(environment), sampler)
            driver = Actors(environment, persons, Shared(sandbox)).driver(samplers, 0)
            share = (end - time.perf_counter()) / (len(CASES) - place)
            title = name if method == "dialogue" else f"{name} {method}"
            found[title] = await played(driver, options.tasks, share)
            show(title, found[title])
    return found


def show(title: str, found: Found) -> None:
    """One row of the table."""
    shares = (found.well_formed, found.cut_off, found.score)
    cells = " ".join(f"{'-' if one is None else f'{one:.2f}':>11}" for one in shares)
    counts = f"{found.n:4} {found.unfinished:10} {found.failed:6} {found.seconds:7.1f}"
    print(f"{title:22} {cells} {counts}", flush=True)


def main() -> None:
    """Measure, print a table, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a packaged model, a folder, or a name on the hub")
    parser.add_argument("--tasks", type=int, default=4, help="of each environment; default: 4")
    parser.add_argument("--max-tokens", type=int, default=256, help="of a message; default: 256")
    parser.add_argument("--seconds", type=float, default=540, help="for everything; default: 540")
    options = Options(**vars(parser.parse_args()))
    end = time.perf_counter() + options.seconds
    heads = " ".join(f"{head:>11}" for head in ("well formed", "cut off", "score"))
    print(f"{'environment':22} {heads}    n unfinished failed seconds", flush=True)
    try:
        found = asyncio.run(measure(options, end))
    except UserError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps({**asdict(options), "environments": {k: asdict(v) for k, v in found.items()}}))


if __name__ == "__main__":
    main()
