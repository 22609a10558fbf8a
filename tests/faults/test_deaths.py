"""Servers that die: they are started again within a bound, and what was said is as if they had not."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from coterie.engines import vllm
from coterie.engines.pool import ServerPool, running_servers, vllm_pool
from coterie.engines.protocol import EngineError, EngineGone, Sampling
from coterie.engines.server_process import free_port
from coterie.engines.settings import VLLMSettings
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from tests.faults.conftest import MODEL, QUICK, Played, at, play
from tests.helpers.stub_server import StubBackend


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@asynccontextmanager
async def opened(
    model: LoadedModel, logs: Path, settings: VLLMSettings = QUICK, name: str | Path = MODEL
) -> AsyncIterator[ServerPool]:
    backend = StubBackend(settings, [])
    async with vllm_pool(
        name, model.renderer, settings, logs, policy="talker", version="0", backend=backend
    ) as pool:
        yield pool


def server_process(pool: ServerPool, index: int) -> psutil.Process:
    path = pool.members[index].client.url.removeprefix("unix:")
    for process in psutil.Process().children(recursive=True):
        if any(c.laddr == path for c in process.net_connections("unix")):
            return process
    raise AssertionError(f"nothing of ours listens on {path}")


async def play_harmed(pool: ServerPool, model: LoadedModel, harm: Callable[[], None]) -> Played:
    """Do harm as soon as something has been sampled."""
    playing = asyncio.create_task(play(pool, model))
    while not pool.stats.sampled_tokens:
        await asyncio.sleep(0.001)
    harm()
    return await playing


@pytest.mark.parametrize("harm", [psutil.Process.kill, psutil.Process.suspend])
def test_a_server_that_dies_or_hangs_is_started_again_and_its_requests_are_retried(
    harm: Callable[[psutil.Process], None], model: LoadedModel, quiet: Played, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(vllm, "HEALTH_SECONDS", 1.0)

    async def run() -> None:
        async with opened(model, tmp_path) as pool:
            process = server_process(pool, 0)
            assert await play_harmed(pool, model, lambda: harm(process)) == quiet
            assert pool.stats.restarts == 1 and pool.stats.failures == 0
            assert pool.stats.retries > 0
            assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    asyncio.run(run())


def test_restarts_are_bounded_and_the_rest_goes_on_without_the_server(
    model: LoadedModel, quiet: Played, tmp_path: Path
) -> None:
    settings = QUICK.model_copy(update={"servers": 2, "restarts": 0})

    async def run() -> None:
        async with opened(model, tmp_path, settings) as pool:
            first, second = (server_process(pool, index) for index in (0, 1))
            assert await play_harmed(pool, model, first.kill) == quiet
            second.kill()
            with pytest.raises(EngineGone, match="no server is left") as gone:
                await play(pool, model)  # ends the stage: no item is to blame
            assert "failed after 1 starts" in str(gone.value)
            assert str(tmp_path / "vllm-1.log") in str(gone.value)

    asyncio.run(run())


def test_a_server_that_does_not_start_or_is_missing_says_why(
    model: LoadedModel, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    async def enter(pool: AbstractAsyncContextManager[ServerPool]) -> None:
        async with pool:
            pass

    with pytest.raises(UserError, match=r"ended with status 1 before it answered") as error:
        asyncio.run(enter(opened(model, tmp_path, name=folder)))
    assert str(tmp_path / "vllm-0.log") in str(error.value) and str(folder) in str(error.value)
    url = f"http://127.0.0.1:{free_port()}"
    missing = running_servers(model.renderer, at(url), policy="talker", version="0")
    with pytest.raises(UserError, match=f"no inference server answers at {url}"):
        asyncio.run(enter(missing))


def test_children_are_gone_when_the_pool_is_closed(model: LoadedModel, tmp_path: Path) -> None:
    async def run() -> list[psutil.Process]:
        settings = QUICK.model_copy(update={"servers": 2})
        before = psutil.Process().children(recursive=True)
        async with opened(model, tmp_path, settings):
            now = psutil.Process().children(recursive=True)
        return [process for process in now if process not in before]

    started = asyncio.run(run())
    assert len(started) == 4  # two servers, each with its guard
    assert not [process for process in started if process.is_running()]


HOLDER = """
import asyncio, sys
from pathlib import Path
from coterie.models.loading import load
from tests.faults.test_deaths import opened

async def main():
    async with opened(load("tiny-exchange"), Path(sys.argv[1])) as pool:
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_children_are_gone_when_their_holder_is(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "up\n"
        started = psutil.Process(holder.pid).children(recursive=True)
        os.kill(holder.pid, how)
        holder.wait(30)
    assert len(started) >= 2
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive


def test_a_call_that_is_cancelled_leaves_nothing_behind(model: LoadedModel, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as pool:
            process = server_process(pool, 0)
            process.suspend()
            call = asyncio.create_task(pool.sample([1, 2, 3], [0, 1], Sampling(max_tokens=4)))
            await asyncio.sleep(0.5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert [member.load for member in pool.members] == [0]
            with pytest.raises(EngineError, match="no answer within"):
                await pool.sample([1, 2, 3], [0], Sampling(max_tokens=4, timeout=0.5))

    asyncio.run(run())
