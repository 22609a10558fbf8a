"""New weights on real vLLM servers while requests are in flight, by every transfer that needs no GPU."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from coterie.engines.pool import ServerPool, vllm_pool
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.engines.vllm import ServerClient
from coterie.models.adapters import load_adapter
from coterie.models.loading import LoadedModel, load, reload
from tests.vllm.conftest import MODEL, SETTINGS
from tests.vllm.references import TOLERANCE, adapter, apart, behaviour, other_checkpoint, prompts

HOT = Sampling(temperature=1.3, max_tokens=48)
LONG = Sampling(temperature=1.3, max_tokens=400)
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def two(
    runner: asyncio.Runner, model: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerPool]:
    """A pool of two servers."""
    stack = AsyncExitStack()
    settings = SETTINGS.model_copy(update={"servers": 2})
    logs = tmp_path_factory.mktemp("logs")
    opened = vllm_pool(MODEL, model.renderer, settings, logs, policy="talker", version="0")
    yield runner.run(stack.enter_async_context(opened))
    runner.run(stack.aclose())


@pytest.fixture(scope="module", params=["/dev/shm", "disk"])
def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, LoadedModel]]:
    """Another checkpoint, in shared memory or on disk, and its model."""
    folder = tmp_path_factory.mktemp("other")
    if request.param != "disk":
        folder = Path(request.param) / f"coterie-test-{folder.name}"
    model = load(MODEL)
    reload(model, other_checkpoint(folder))
    yield folder, model
    shutil.rmtree(folder)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests end by their length only."""
    choice = ServerClient._choice

    def forever(self: ServerClient, prompt: object, parameters: dict[str, object]) -> object:
        return choice(self, prompt, {**parameters, "ignore_eos": True, "stop_token_ids": []})  # type: ignore[arg-type]

    monkeypatch.setattr(ServerClient, "_choice", forever)
    ends = property(lambda self: frozenset(), lambda self, ends: vars(self).update(_ends=ends))
    monkeypatch.setattr(ServerClient, "_ends", ends, raising=False)


async def in_flight(pool: ServerPool, prompt: tuple[int, ...]) -> asyncio.Task[list[Completion]]:
    """Start requests of 400 tokens, and return when servers have sampled some of them."""
    task = asyncio.create_task(pool.sample(prompt[:8], (5, 6), LONG))
    while not all(member.load for member in pool.members):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    return task


@pytest.mark.usefixtures("endless")
def test_requests_in_flight_go_on_with_the_new_weights_and_their_tokens_carry_both_versions(
    runner: asyncio.Runner, two: ServerPool, model: LoadedModel, other: tuple[Path, LoadedModel]
) -> None:
    (folder, changed), prompt = other, prompts(model)[0]

    async def run() -> None:
        before = await two.sample(prompt, SEEDS, HOT)
        task = await in_flight(two, prompt)
        old = two.version
        await two.load(folder, f"{old}+")
        for said in await task:
            assert [version for version, _ in said.versions] == [old, f"{old}+"]
            cut = said.versions[0][1]
            assert sum(count for _, count in said.versions) == len(said.ids) == 400
            by_old = behaviour(model, prompt[:8], said, LONG)
            by_new = behaviour(changed, prompt[:8], said, LONG)
            assert apart(said.logprobs[:cut], by_old[:cut]) < TOLERANCE
            assert apart(said.logprobs[cut:], by_new[cut:]) < TOLERANCE
            assert apart(said.logprobs[cut:], by_old[cut:]) > 0.01
        for said in await two.sample(prompt, SEEDS, HOT):
            assert not said.versions, "all tokens have the version of the engine"
            assert apart(said.logprobs, behaviour(changed, prompt, said, HOT)) < TOLERANCE
        await two.load(Path(model.source), f"{old}++")
        assert await two.sample(prompt, SEEDS, HOT) == before

    runner.run(run())


@pytest.mark.usefixtures("endless")
def test_a_request_in_flight_keeps_its_adapter_until_it_ends(
    runner: asyncio.Runner, two: ServerPool, model: LoadedModel, tmp_path: Path
) -> None:
    prompt = prompts(model)[0]
    folders = [adapter(tmp_path / str(number), seed=number) for number in range(3)]
    models = []
    for folder in folders:
        base = load(MODEL)
        models.append(replace(base, model=load_adapter(base.model, folder)))

    async def served() -> set[int]:
        return {len(await member.client.models()) for member in two.members}

    async def run() -> None:
        await two.load(folders[0], "adapter-0")
        task = await in_flight(two, prompt)
        await two.load(folders[1], "adapter-1")
        assert await served() == {3}
        (said,) = await two.sample(prompt, [1], HOT)
        assert apart(said.logprobs, behaviour(models[1], prompt, said, HOT)) < 5 * TOLERANCE
        for said in await task:
            assert said.versions == (("adapter-0", 400),)
            by_old = behaviour(models[0], prompt[:8], said, LONG)
            assert apart(said.logprobs, by_old) < 5 * TOLERANCE
        await two.load(folders[2], "adapter-2")
        assert await served() == {2}, "adapters without requests are gone"
        await two.load(Path(model.source), "base again")

    runner.run(run())


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("other", ["disk"], indirect=True)
@pytest.mark.parametrize(
    ("kill", "phase"),
    [("EngineCore", "/pause"), ("EngineCore", "/update_weights"), ("server", "/resume")],
)
def test_a_server_that_is_killed_during_an_update_catches_up_before_it_gets_a_request(
    kill: str, phase: str, runner: asyncio.Runner, two: ServerPool, model: LoadedModel,
    other: tuple[Path, LoadedModel], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (folder, changed), prompt, post = other, prompts(model)[0], ServerClient.post
    victim, killed = two.members[0], list[str]()

    async def killing(self: ServerClient, path: str, body: object) -> None:
        if path.startswith(phase) and self is victim.client and not killed:
            killed.append(path)
            server = _server_at(self.url)
            parts = [one for one in server.children(recursive=True) if kill in one.name()]
            (parts or [server])[0].kill()
        await post(self, path, body)  # type: ignore[arg-type]

    monkeypatch.setattr(ServerClient, "post", killing)

    async def run() -> None:
        task, restarts, old = await in_flight(two, prompt), two.stats.restarts, two.version
        start = time.monotonic()
        await two.load(folder, f"{old}k")
        assert killed and not victim.ready and two.members[1].ready
        assert time.monotonic() - start < SETTINGS.stall_seconds / 2, (
            "a dead server is not waited for"
        )
        answers = [*await task, *await two.sample(prompt, SEEDS, HOT)]
        while not victim.ready:
            await asyncio.sleep(0.1)
        assert two.stats.restarts == restarts + 1
        answers += [(await victim.client.complete(prompt, 1, HOT))[0]]
        for said in answers:
            spans = said.versions or ((two.version, len(said.ids)),)
            assert {version for version, _ in spans} <= {old, f"{old}k"}
        assert apart(said.logprobs, behaviour(changed, prompt, said, HOT)) < TOLERANCE
        await two.load(Path(model.source), f"{old}-")

    runner.run(run())


def test_a_folder_without_weights_fails_at_once_with_the_reason(
    runner: asyncio.Runner, two: ServerPool, model: LoadedModel, tmp_path: Path
) -> None:
    shutil.copytree(
        model.source, tmp_path, ignore=lambda *_: ["model.safetensors"], dirs_exist_ok=True
    )

    async def run() -> None:
        with pytest.raises(EngineError, match=r"has no \*\.safetensors"):
            await two.load(tmp_path, "nothing")
        await two.load(Path(model.source), "something")
        assert await two.sample(prompts(model)[0], SEEDS, HOT)

    runner.run(run())


def _server_at(url: str) -> psutil.Process:
    """Return the server that listens at a Unix socket."""
    path = url.removeprefix("unix:")
    for process in psutil.Process().children(recursive=True):
        if any(connection.laddr == path for connection in process.net_connections("unix")):
            return process
    raise AssertionError(url)
