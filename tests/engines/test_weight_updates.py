"""Random interleavings of updates, requests and faults over fake servers, in simulated time.

A token's id is the number of the weights that sampled it, so every label of a completion can be checked.
"""

import asyncio
import random
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx2
import pytest

from coterie.engines import pool as pools
from coterie.engines.connections import Address
from coterie.engines.endpoint import FinalFault, TransientFault
from coterie.engines.pool import TRAINER_TOLERANCE, ServerPool, vllm_pool
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.engines.server import WATCH_SECONDS
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import TOKENS, Health, ServerClient, VLLMBackend

RUNS = 100
VERSIONS = 4
STEP = 0.05
"""Seconds per token."""
LOADING = 0.3
"""Seconds in which a server has a part of the new weights."""
HALF = 99
"""Number of weights that are a mixture of two."""
SETTINGS = VLLMSettings(stall_seconds=3, start_seconds=60, restarts=1000, attempts=12)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Event loop that does not wait: its time jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something else"
        self._loop.now += timeout
        return super().select(0)


class Machine:
    """Server with a part of vLLM's behavior: pauses, in-flight updates, aborts, labels."""

    def __init__(self, weights: int) -> None:
        self.gone = asyncio.Event()
        self.hangs = False
        self.broken = False
        self.calls: list[str] = []
        """Routes of the calls, in order."""
        self.at: dict[str, Callable[[Machine], None]] = {}
        """What happens at the first call of a route."""
        self.begin(weights)

    def begin(self, weights: int) -> None:
        self.gone.set()
        self.gone = asyncio.Event()
        self.weights, self.label, self.paused, self.engineless = weights, "default", False, False
        self.aborts = 0

    async def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        call, gone = asyncio.ensure_future(self._answer(path, body)), self.gone
        dead = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait([call, dead], return_when=asyncio.FIRST_COMPLETED)
            if gone.is_set():
                raise TransientFault("no connection")
            return call.result()
        finally:
            call.cancel()
            dead.cancel()

    async def _answer(self, path: str, body: Mapping[str, Any]) -> Any:
        route, _, query = path.partition("?")
        self.calls.append(route)
        self.at.pop(route, lambda _: None)(self)
        await asyncio.sleep(0.001)
        while self.hangs or self.engineless:
            await asyncio.sleep(STEP)
        if route == "/pause":
            self.paused = True
            self.aborts += "abort" in query
        elif route == "/resume":
            self.paused = False
        elif route in ("/collective_rpc", "/update_weights"):
            self.weights = HALF
            await asyncio.sleep(LOADING)
            if self.broken:
                raise TransientFault("status 500")
            folders = body.get("kwargs") or body["update_info"]
            self.weights = number(next(iter(folders.values())))
        elif route in ("/update_weight_version", "/finish_weight_update"):
            (self.label,) = body.values()
        elif route == "/v1/models":
            return {"data": [{"id": "talker"}]}
        elif route == TOKENS:
            return await self._sample(body)
        return {"version": "0.32", "weight_version": self.label}

    async def _sample(self, body: Mapping[str, Any]) -> Any:
        if not body:
            raise FinalFault("method", status=405)
        prompt, count = body["token_ids"], body["sampling_params"]["max_tokens"]
        ids, labels, aborts = list[int](), list[str](), self.aborts
        while len(ids) < count and aborts == self.aborts:
            await asyncio.sleep(STEP)
            if not self.paused and aborts == self.aborts:
                ids.append(self.weights)
                labels.append(self.label)
        starts = [i for i, label in enumerate(labels) if not i or label != labels[i - 1]]
        ends = [*starts[1:], len(ids)][: len(starts)]
        spans = [
            {"version": labels[start], "start": start, "end": end}
            for start, end in zip(starts, ends, strict=True)
        ]
        choice = {"token_ids": ids, "weight_versions": spans}
        choice["logprobs"] = {"content": [{"logprob": -0.1}] * len(ids)}
        known = [None, *({token: {"logprob": -1.0 - self.weights}} for token in prompt[1:])]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        reply = {"model": body["model"], "choices": [choice], "usage": usage}
        return reply | ({"prompt_logprobs": known} if count == 1 else {})


Result = TypeVar("Result")
MACHINES: dict[str, Machine] = {}


class FakeClient(ServerClient):
    """Client of a machine, without sockets."""

    def __init__(self, address: Address, model: str, decode: Any, end_ids: frozenset[int]) -> None:
        self.address, self.url = address, address.url
        self.model, self._decode, self._ends = model, decode, end_ids
        self.versioned, self.adapter, self.vllm = False, False, ""

    async def close(self) -> None: ...

    async def health(self) -> Health:
        machine = MACHINES[self.url]
        if machine.gone.is_set() or machine.engineless:
            return "dead"
        return "silent" if machine.hangs else "healthy"

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        return httpx2.Response(200, json=await MACHINES[self.url].answer(path, body or {}))


class FakeProcess:
    """Process of a machine."""

    def __init__(self, index: int) -> None:
        self.url = f"http://own-{index}"

    async def launch(self, model: str, name: str) -> Address:
        await asyncio.sleep(1.0)
        MACHINES[self.url] = Machine(number(model))
        return Address(self.url)

    async def ended(self) -> str:
        await MACHINES[self.url].gone.wait()
        return "was killed"

    async def last_words(self) -> str:
        return ""

    async def kill(self) -> None:
        MACHINES[self.url].gone.set()

    async def end(self) -> None: ...


RENDERER: Any = SimpleNamespace(
    tokenizer=lambda text, add_special_tokens: {"input_ids": list(range(16))},
    decode=lambda ids: "x" * len(ids),
    end_ids=frozenset(),
)


def number(path: str | Path) -> int:
    return int(Path(path).name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder of a checkpoint for each version."""
    root = tmp_path_factory.mktemp("weights")
    for index in range(VERSIONS):
        (root / str(index)).mkdir()
        (root / str(index) / "config.json").write_text("{}")
    return [root / str(index) for index in range(VERSIONS)]


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pools, "ServerClient", FakeClient)
    yield
    MACHINES.clear()


@asynccontextmanager
async def opened(
    own: bool, servers: int, slots: int, first: Path, **settings: int
) -> AsyncIterator[ServerPool]:
    MACHINES.clear()
    urls = () if own else tuple(f"http://external-{index}" for index in range(servers))
    MACHINES.update((url, Machine(0)) for url in urls)
    update = {"servers": servers, "requests_per_server": slots, "urls": urls}
    changed = SETTINGS.model_copy(update=update | settings)
    async with vllm_pool(
        first, RENDERER, changed, Path("logs"), policy="talker", version="0",
        backend=VLLMBackend(changed, []), process=FakeProcess,
    ) as pool:  # fmt: skip
        yield pool


def simulate(work: Coroutine[Any, Any, Result]) -> Result:
    async def limited() -> Result:
        async with asyncio.timeout(1000):
            return await work

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(limited())


async def talk(pool: ServerPool, draw: random.Random, answers: list[Completion]) -> None:
    """Sample at random times, and check the versions of every token."""
    for _ in range(3):
        await asyncio.sleep(draw.uniform(0, 1))
        oldest = int(pool.version)
        with suppress(EngineError):
            prompt = [draw.randrange(50) for _ in range(4)]
            (said,) = await pool.sample(prompt, [0], Sampling(max_tokens=draw.choice((1, 4, 12))))
            versions = said.versions or ((pool.version, len(said.ids)),)
            assert [int(name) for name, count in versions for _ in range(count)] == [*said.ids]
            assert min(said.ids) >= oldest, "a server answered that missed an update"
            answers.append(said)


async def harm(draw: random.Random) -> None:
    """Kill, hang, break or restart servers at random times; mend them all at the end."""
    for _ in range(3):
        await asyncio.sleep(draw.uniform(0, 2))
        url, machine = draw.choice(sorted(MACHINES.items()))
        kind = draw.choice(("kill", "kill engine", "hang", "break", "restart"))
        if "own" in url and kind in ("kill", "restart"):
            machine.gone.set()
        elif (
            kind == "kill engine"
        ):  # calls hang until an external server is restarted, or coterie kills its own
            machine.engineless = True
            await asyncio.sleep(draw.uniform(0, 4))
            if "external" in url:
                machine.begin(0)
        elif kind == "kill":
            machine.gone.set()
            await asyncio.sleep(draw.uniform(0, 2))
            machine.begin(0)
        elif kind == "restart":
            machine.begin(0)
        elif kind == "hang":
            machine.hangs = True
            await asyncio.sleep(draw.uniform(0, 8))
            machine.hangs = False
        else:
            machine.broken = True
            await asyncio.sleep(draw.uniform(0, 2))
            machine.broken = False


async def run(seed: int, own: bool, folders: list[Path]) -> list[Completion]:
    draw, answers = random.Random(seed), list[Completion]()
    async with opened(own, draw.choice((1, 2, 3)), draw.choice((1, 4)), folders[0]) as pool:
        talking = [asyncio.ensure_future(talk(pool, draw, answers)) for _ in range(2)]
        harming = asyncio.ensure_future(harm(draw))
        for index in range(1, VERSIONS - 1):
            await asyncio.sleep(draw.uniform(0, 2))
            with suppress(EngineError):
                await pool.load(folders[index], str(index))
        await asyncio.gather(*talking, harming)
        with suppress(EngineError):
            await pool.load(folders[-1], str(VERSIONS - 1))
        await asyncio.sleep(60)
        assert all(member.ready for member in pool.members)
        assert {machine.weights for machine in MACHINES.values()} == {VERSIONS - 1}
    return answers


@pytest.mark.parametrize("own", [True, False], ids=["own", "external"])
def test_no_token_has_a_version_that_did_not_sample_it(own: bool, folders: list[Path]) -> None:
    answers, spans = 0, 0
    for seed in range(RUNS):
        try:
            done = simulate(run(seed, own, folders))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        answers += len(done)
        spans += sum(len(one.versions) > 1 for one in done)
    assert answers > 4 * RUNS, "most requests are answered"
    assert spans > RUNS / 10, "many requests are in flight during an update"


SHORT = Sampling(max_tokens=4)
UPDATE = ("/pause", "/update_weights", "/finish_weight_update", "/resume", "/v1/models")


def kill_server(machine: Machine) -> None:
    machine.gone.set()


def kill_engine(machine: Machine) -> None:
    machine.engineless = True


def stop_answers(machine: Machine) -> None:
    machine.hangs = True


async def until_ready(pool: ServerPool) -> None:
    while not all(member.ready for member in pool.members):
        await asyncio.sleep(STEP)


@pytest.mark.parametrize("phase", [*UPDATE, "", "restart"])
@pytest.mark.parametrize("harm", [kill_server, kill_engine])
def test_a_dead_server_or_engine_is_restarted_within_seconds(
    harm: Callable[[Machine], None], phase: str, folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    launch, machines = FakeProcess.launch, list[Machine]()

    async def noted(self: FakeProcess, model: str, name: str) -> Address:
        address = await launch(self, model, name)
        machines.append(MACHINES[self.url])
        if phase == "restart" and len(machines) == 3:
            machines[2].at["/v1/models"] = harm
        return address

    monkeypatch.setattr(FakeProcess, "launch", noted)

    async def run() -> None:
        loop, deaths = asyncio.get_running_loop(), 1 + (phase == "restart")
        async with opened(True, 2, 4, folders[0], stall_seconds=500) as pool:
            victim = MACHINES["http://own-0"]
            if phase in UPDATE:
                victim.at[phase] = harm
            else:
                harm(victim)
            start = loop.time()
            await pool.load(folders[1], "1")
            (said,) = await pool.sample([1, 2], [0], SHORT)
            assert set(said.ids) == {1} and loop.time() - start < 2 * WATCH_SECONDS
            while len(machines) < 2 + deaths:
                await asyncio.sleep(STEP)
            await until_ready(pool)
            assert loop.time() - start < 3 * WATCH_SECONDS * deaths
            assert pool.stats.restarts == deaths
            assert [machine.weights for machine in MACHINES.values()] == [1, 1]

    simulate(run())


@pytest.mark.parametrize("own", [True, False], ids=["own", "external"])
@pytest.mark.parametrize("phase", ["/pause", "/v1/models", TOKENS])
def test_a_server_that_hangs_in_an_update_delays_it_for_a_limit_and_catches_up(
    phase: str, own: bool, folders: list[Path]
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with opened(own, 2, 4, folders[0]) as pool:
            victim = next(iter(MACHINES.values()))
            victim.at[phase] = stop_answers
            start = loop.time()
            await pool.load(folders[1], "1")
            assert loop.time() - start < 2 * SETTINGS.stall_seconds
            assert [member.ready for member in pool.members] == [False, True]
            victim.hangs = False
            await until_ready(pool)
            assert [machine.weights for machine in MACHINES.values()] == [1, 1]
            assert pool.stats.restarts == own

    simulate(run())


def test_a_launch_with_weights_that_are_gone_is_no_restart(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS.__dict__, "restarts", 1)
    launch, models = FakeProcess.launch, list[int]()

    async def checked(self: FakeProcess, model: str, name: str) -> Address:
        models.append(number(model))
        address = await launch(self, model, name)
        if models[2:] == [0]:
            await pools_[0].load(folders[1], "1")  # and the folder before it is removed
            raise EngineError("has no folder of its weights")
        return address

    pools_ = list[ServerPool]()
    monkeypatch.setattr(FakeProcess, "launch", checked)

    async def run() -> None:
        async with opened(True, 2, 4, folders[0]) as pool:
            pools_.append(pool)
            kill_server(MACHINES["http://own-0"])
            while len(models) < 4:
                await asyncio.sleep(STEP)
            await until_ready(pool)
            assert models == [0, 0, 0, 1] and pool.members[0].restarts == 1

    simulate(run())


def test_a_request_that_waits_for_a_slot_leaves_a_server_that_falls_behind(
    folders: list[Path],
) -> None:
    async def run() -> None:
        async with opened(False, 2, 1, folders[0]) as pool:
            first, second = MACHINES.values()
            talks = [asyncio.create_task(pool.sample([n], [0], SHORT)) for n in range(4)]
            await asyncio.sleep(STEP)
            assert [member.load for member in pool.members] == [2, 2]
            before, first.broken = first.calls.count(TOKENS), True
            pool.members[0].fence("is behind")
            answers = [one.ids for (one,) in await asyncio.gather(*talks)]
            assert answers == [(0,) * 4] * 4
            assert first.calls.count(TOKENS) == before and second.calls.count(TOKENS) >= 4

    simulate(run())


def test_a_pool_that_is_closed_catches_up_no_more(folders: list[Path]) -> None:
    async def run() -> None:
        async with opened(False, 2, 1, folders[0]) as pool:
            next(iter(MACHINES.values())).broken = True
            await pool.load(folders[1], "1")
            await asyncio.sleep(1)
            assert len(asyncio.all_tasks()) > 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    simulate(run())


@pytest.mark.parametrize("servers", [1, 2])
def test_a_delivery_is_compared_with_the_trainer(servers: int, folders: list[Path]) -> None:
    async def run() -> None:
        async with opened(True, servers, 4, folders[0]) as pool:
            close, other = ([-2.0 + shift] * 15 for shift in (TRAINER_TOLERANCE - 0.01, 1.0))
            await pool.load(folders[1], "1", expected=close)
            with pytest.raises(EngineError, match=r"trainer .* \(-1.* and -2.*\) differ by 1\.000"):
                await pool.load(folders[1], "2", expected=other)
            with pytest.raises(EngineError, match=r"loading .* failed: the trainer"):
                await pool.sample([1], [0], SHORT)

    simulate(run())
