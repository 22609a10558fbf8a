"""A stub server, and the dialogues that are played on it when nothing goes wrong."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.engines.pool import running_servers
from coterie.engines.protocol import Engine, Sampling
from coterie.engines.settings import VLLMSettings
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Shared
from coterie.models.loading import LoadedModel, load
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import TokenSampler
from tests.helpers.stub_server import stub_process

MODEL = "tiny-exchange"
QUICK = VLLMSettings(stall_seconds=2, start_seconds=120, grace_seconds=1, restarts=2, lora_rank=4)
PATIENT = QUICK.model_copy(update={"stall_seconds": 120})
"""For a server that may compile its loops first."""


def at(*urls: str, settings: VLLMSettings = QUICK) -> VLLMSettings:
    """Settings with servers that run at these URLs."""
    return settings.model_copy(update={"urls": urls})


SAMPLING = Sampling(temperature=1.2, top_p=0.98, max_tokens=64, timeout=60)
TASKS = 4


@dataclass(frozen=True)
class SampledTurn:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


Played = dict[str, list[SampledTurn] | str]
"""Per task: what was said, or why it failed."""


async def play(engine: Engine, model: LoadedModel, long: int | None = None) -> Played:
    """Play all tasks; the one of number ``long`` has a system prompt that exceeds the context."""
    environment = Exchange()
    tasks = environment.tasks("train", TASKS, 0)
    episodes = [
        Episode(task, 0, 0, "rollout", "Talk on and on. " * 400 if index == long else None)
        for index, task in enumerate(tasks)
    ]
    sampler = TokenSampler(engine, model.renderer.render, SAMPLING, model.context_length)
    cast = dict.fromkeys(environment.actors, sampler)
    driver = Driver(environment, cast, seed=5, shared=Shared())
    played: Played = {}
    async with driver.play_all(episodes) as playing:
        async for one in playing:
            name = str([task.id for task in tasks].index(one.episode.task.id))
            if one.tree is None:
                played[name] = one.failure or ""
                continue
            (leaf,) = one.tree.outcomes
            played[name] = [
                SampledTurn(turn.ids, turn.sample.logprobs, turn.parts[0].text)
                for turn in one.tree.path(leaf)
                if turn.sample
            ]
    return played


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return load(MODEL)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a stub of ``vllm serve``."""
    with stub_process(MODEL, MODEL, 1) as ((url,), _):
        yield url


@pytest.fixture(scope="session")
def quiet(server: str, model: LoadedModel) -> Played:
    """The dialogues of a run without a fault."""

    async def run() -> Played:
        async with running_servers(
            model.renderer, at(server, settings=PATIENT), policy="talker", version="0"
        ) as pool:
            return await play(pool, model)

    played = asyncio.run(run())
    assert all(isinstance(said, list) for said in played.values())
    assert sum(map(len, played.values())) >= 10
    return played
