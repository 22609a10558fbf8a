"""A stub server, and the dialogues that are played on it when nothing goes wrong."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.engines.pool import running_servers
from coterie.engines.server import free_port, port_taken
from coterie.engines.settings import VLLMSettings
from coterie.models.loading import LoadedModel, load
from tests.faults.dialogues import Played, play
from tests.stub_server import StubBackend

MODEL = "tiny-exchange"
QUICK = VLLMSettings(stall_seconds=2, start_seconds=120, grace_seconds=1, restarts=2, lora_rank=4)
PATIENT = QUICK.model_copy(update={"stall_seconds": 120})
"""For a server that may compile its loops first."""


def at(*urls: str, settings: VLLMSettings = QUICK) -> VLLMSettings:
    """Settings with servers that run at these URLs."""
    return settings.model_copy(update={"urls": urls})


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
    backend, port = StubBackend(QUICK, []), free_port()
    command, environment = backend.command(MODEL, MODEL, port), backend.environment(0)
    with subprocess.Popen(command, env={**os.environ, **environment}) as process:
        try:
            while not port_taken(port) and process.poll() is None:
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


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
