"""What calls of tools cost beside the sampling: calls side by side, and many agents at a time.

    .venv/bin/python bench/tools.py
    .venv/bin/python bench/tools.py --only agents

Calls: one message with eight calls of a tool that answers after 200 ms, over one with a single call.

Agents: 512 of them, each of which calls such a tool in three messages and then answers, sampled by the packaged tiny
model on the in-process engine, 8 tokens a message. The baseline is the same sampling (the same prompts and
tokens) where the tool answers at once, and 3 x 200 ms: what it would take if no agent waited for another one's call.

About two minutes; the last line is one JSON object:

    parallel_8x200ms    time of eight calls over that of one (best: 1)
    agents_512          time with waiting calls over that of the baseline (best: 1)
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import rounds
from coterie.datasets.catalogue import Split
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.protocol import ActorKind, Grade, Pure, Shared, State, Transition
from coterie.environments.with_tools import with_tools
from coterie.models.loading import LoadedModel, load
from coterie.record.tree import Ending, Task
from coterie.record.turn import Finish, Message, Tool, ToolCall, ToolResult, call_id
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import TokenSampler
from coterie.tools.calls import Function, Tag
from coterie.tools.registry import Toolbox, ToolsSettings, open_toolbox

WAIT, SIDE_BY_SIDE, AGENTS, ROUNDS, TOKENS = 0.2, 8, 512, 3, 8
MODEL = "tiny-exchange"
LOOK = Tool("look", "Looks.", {"type": "object", "properties": {"what": {"type": "string"}}})
SETTINGS = ToolsSettings(rounds=ROUNDS, repeats="run")


class Always:
    """A syntax in which every message calls, for no packaged model calls tools by itself."""

    stop: tuple[str, ...] = ()

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """One call, whatever is said."""
        return (ToolCall(call_id(0), LOOK.name, json.dumps({"what": "it"})),)

    def show(self, results: Sequence[ToolResult]) -> str:
        """The results as they are."""
        return "\n".join(result.text for result in results)


@dataclass(frozen=True)
class Waiting:
    """A tool that answers after so many seconds."""

    seconds: float
    tools: tuple[Tool, ...] = (LOOK,)
    identity: str = "bench"

    @property
    def tags(self) -> Mapping[str, Tag]:
        """It has one parameter."""
        return {LOOK.name: Tag("what")}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """The tool."""

        async def look(given: Mapping[str, Any]) -> str:
            await asyncio.sleep(self.seconds)
            return f"{given['what']} is there"

        yield {LOOK.name: look}


class Asking(Pure):
    """One agent is asked a question and answers."""

    name, metric = "asking", "answered"
    actors: Mapping[str, ActorKind] = {"agent": "agent"}
    limits: Mapping[str, int] = {"turns": 1}

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        """Numbers."""
        return [Task(f"{split}-{number}", {"number": number}) for number in range(count)]

    def next_actors(self, state: State) -> tuple[str, ...]:
        """The agent."""
        return ("agent",)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        """The question."""
        return (Message.of("user", f"What is number {state.task.public['number']}?"),)

    async def act(
        self, state: State, taken: Any, session: Any, *, replayed: Any = ()
    ) -> Transition:
        """Over with the first answer."""
        return Transition(answer=taken[0].text, end=Ending("answered"))

    async def grade(self, state: State, session: Any) -> Grade:
        """An answer is an answer."""
        return Grade(1.0)


async def called(box: Toolbox, count: int) -> float:
    """Seconds of a message with so many calls."""
    calls = [ToolCall(call_id(n), LOOK.name, json.dumps({"what": f"{n}"})) for n in range(count)]
    began = time.perf_counter()
    results = await box.run(calls, (LOOK,), "")
    took = time.perf_counter() - began
    assert [one.text for one in results] == [f"{n} is there" for n in range(count)]
    return took


async def side_by_side() -> dict[str, float]:
    """Eight calls over one, medians of five."""
    async with open_toolbox([Waiting(WAIT)], SETTINGS) as box:
        one = [await called(box, 1) for _ in range(5)]
        eight = [await called(box, SIDE_BY_SIDE) for _ in range(5)]
    return {"parallel_8x200ms": statistics.median(eight) / statistics.median(one)}


async def played(loaded: LoadedModel, seconds: float) -> tuple[float, list[str]]:
    """Seconds that all agents take, with calls of so many seconds, and what they said."""
    engine = InProcessEngine(loaded, policy="bench", version="0", max_batch=AGENTS)
    sampling = Sampling(1.0, 1.0, TOKENS)
    sampler = TokenSampler(engine, loaded.renderer.render, sampling, loaded.context_length)
    source = Waiting(seconds)
    game = with_tools(Asking(), [source], SETTINGS, Always())
    said: dict[str, str] = {}
    async with open_toolbox([source], SETTINGS) as box:
        driver = Driver(game, {"agent": sampler}, seed=0, shared=Shared(box))
        episodes = [Episode(task, 0, 0, "rollout") for task in game.tasks("train", AGENTS, 0)]
        began = time.perf_counter()
        async with driver.play_all(episodes) as playing:
            async for one in playing:
                assert one.tree is not None, one.failure
                said[one.episode.task.id] = "|".join(t.text for t in one.tree.turns.values())
        took = time.perf_counter() - began
    return took, [said[name] for name in sorted(said)]


async def many_agents(repeats: int, seconds: float) -> dict[str, float]:
    """Waiting calls over calls that are answered at once and their waiting time, a first round not counted."""
    loaded, ratios = load(MODEL), list[float]()
    for number in rounds(repeats + 1, seconds):
        if number == 1:
            ratios = []
        at_once, words = await played(loaded, 0.0)
        waiting, again = await played(loaded, WAIT)
        assert words == again, "other tokens were sampled"
        ratios.append(waiting / (at_once + ROUNDS * WAIT))
        print({"at once": round(at_once, 2), "waiting": round(waiting, 2)}, flush=True)
    return {"agents_512": statistics.median(ratios)}


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="of the agents' part")
    parser.add_argument("--only", choices=["calls", "agents"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, float] = {}
    if options.only in (None, "calls"):
        found |= asyncio.run(side_by_side())
    if options.only in (None, "agents"):
        found |= asyncio.run(many_agents(options.repeats, options.seconds))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
