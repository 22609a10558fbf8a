"""A server of ours, and the dialogues that are played on it when nothing goes wrong."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.engines.servers.backend import CoterieBackend
from coterie.engines.servers.opening import running_servers
from coterie.engines.servers.settings import ServerPoolSettings
from coterie.models.loading import LoadedModel, load
from tests.faults.dialogues import Played, play

MODEL = "tiny-exchange"
QUICK = ServerPoolSettings(stall_seconds=2, start_seconds=120, grace_seconds=1, restarts=2)
PATIENT = QUICK.model_copy(update={"stall_seconds": 120})
"""For a server that may compile its loops first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return load(MODEL)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of ``coterie serve model tiny-exchange``."""
    command = [sys.executable, "-m", "coterie", "serve", "model", MODEL, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def quiet(server: str, model: LoadedModel) -> Played:
    """The dialogues of a run without a fault."""

    async def run() -> Played:
        async with running_servers(
            CoterieBackend(), [server], None, model.renderer, PATIENT, policy="talker", version="0"
        ) as pool:
            return await play(pool, model)

    played = asyncio.run(run())
    assert all(isinstance(said, list) for said in played.values())
    assert sum(map(len, played.values())) >= 10
    return played
