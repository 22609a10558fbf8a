"""Servers and ranks on a Ray cluster of three nodes."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil
import pytest

from coterie.clusters import Needs, ray_cluster
from coterie.clusters.ray_cluster import RayCluster
from coterie.engines.connections import Address, http_client
from coterie.engines.endpoint import ServerFault
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.pool import ServerPool, vllm_pool
from coterie.engines.protocol import Completion, Sampling
from coterie.engines.settings import VLLMSettings
from coterie.errors import UserError
from coterie.models.loading import LoadedModel, load
from tests.cluster.conftest import STUB, add_node, node_of, processes
from tests.helpers.stub_server import StubBackend

WIDE = VLLMSettings(
    servers=2,
    tensor_parallel_size=3,
    restarts=9,
    start_seconds=120,
    stall_seconds=30,
    grace_seconds=2,
)
GREEDY = Sampling(0.0, 1.0, 6, (), 120)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load("tiny-exchange")


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers be stubs instead of vLLM."""
    monkeypatch.setattr(ray_cluster, "VLLMBackend", StubBackend)


@asynccontextmanager
async def opened(
    nodes: RayCluster, model: LoadedModel, logs: Path, settings: VLLMSettings
) -> AsyncIterator[ServerPool]:
    async with nodes.servers(settings, logs) as process:
        named = {"policy": "talker", "version": "0", "process": process}
        async with vllm_pool("tiny-exchange", model.renderer, settings, logs, **named) as pool:
            yield pool


class Served(NamedTuple):
    """Two servers with three GPUs each, and the loop that they are on."""

    runner: asyncio.Runner
    pool: ServerPool


@pytest.fixture(scope="module")
def served(
    cluster: Any, model: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr(ray_cluster, "VLLMBackend", StubBackend)
        servers = opened(RayCluster("ray"), model, tmp_path_factory.mktemp("logs"), WIDE)
        pool = runner.run(servers.__aenter__())
        yield Served(runner, pool)
        runner.run(servers.__aexit__(None, None, None))
    assert not processes(STUB)


def prompt(model: LoadedModel) -> list[int]:
    ids: list[int] = model.renderer.tokenizer("The river is blue.")["input_ids"]
    return ids


def test_an_unreachable_cluster_is_refused_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    ray.shutdown()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        for cluster in ("ray", f"ray://{address}"):
            start = time.monotonic()
            with pytest.raises(UserError, match=f"no Ray cluster answers at .*{address}"):
                RayCluster(cluster)
            assert time.monotonic() - start < 15
    for cluster, problem in (
        ("ray", "no Ray cluster runs here"),
        ("ray://head", "'ray://head' is not the address"),
    ):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setenv("RAY_TMPDIR", "nowhere")
        with pytest.raises(UserError, match=problem):
            RayCluster(cluster)


def test_servers_are_on_nodes_with_room_and_give_the_tokens_of_one_process(
    cluster: Any, model: LoadedModel, served: Served
) -> None:
    one, other = (node_of(server, cluster) for server in processes(STUB))
    assert one is not other  # 3 + 3 of 4 GPUs: one server a node
    engine = InProcessEngine(model, policy="talker", version="0")
    (own,) = asyncio.run(engine.sample(prompt(model), [0], GREEDY))
    completions = served.runner.run(served.pool.sample(prompt(model), range(4), GREEDY))
    assert [said.ids for said in completions] == 4 * [own.ids]


def test_a_server_answers_only_those_who_have_its_secret(cluster: Any, served: Served) -> None:
    addresses = [member.client.address for member in served.pool.members]
    assert len({address.secret for address in addresses}) == 2
    commands = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]

    async def pause(address: Address) -> None:
        async with http_client(address, 20.0) as http:
            await http.post("/pause")

    for address in addresses:
        assert not any(address.secret in command for command in commands)
        for secret in ("", "0" * 64):
            with pytest.raises((OSError, httpx2.HTTPError)):
                served.runner.run(pause(Address(address.url, secret)))
    for member in served.pool.members:
        info = served.runner.run(member.client._send("GET", "/is_paused", None)).json()
        assert not info["is_paused"]


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        (Needs(servers=1, size=8), "a server needs 8 GPUs in one node; the largest node has 4"),
        (
            Needs(servers=3, size=3),
            "3 servers with 3 GPUs each need 9; the cluster has 8 in 2 nodes",
        ),
        (Needs(servers=4, size=2, ranks=1), "4 servers and 1 ranks need 9 GPUs; the cluster has 8"),
    ],
)
def test_a_request_for_more_than_the_cluster_has_is_refused_at_once(
    cluster: Any, needs: Needs, problem: str
) -> None:
    start = time.monotonic()
    with pytest.raises(UserError, match=problem):
        RayCluster("ray").check(needs, WIDE)
    assert time.monotonic() - start < 15


def test_busy_devices_are_reported_within_seconds(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "ROOM_SECONDS", 2.0)

    async def run() -> None:
        async with RayCluster("ray").servers(WIDE, tmp_path):
            pass

    with pytest.raises(UserError, match="2 servers with 3 GPUs each find no room: 2 GPUs"):
        asyncio.run(run())


def refusal(nodes: RayCluster, model: LoadedModel, logs: Path) -> str:
    """Return why a server that needs five GPUs of one node does not start."""

    async def run() -> None:
        five = WIDE.model_copy(update={"tensor_parallel_size": 5, "servers": 1})
        async with opened(nodes, model, logs, five):
            pass

    with pytest.raises(UserError) as caught:
        asyncio.run(run())
    assert not list(logs.iterdir())
    return str(caught.value)


def test_a_node_that_does_not_fit_is_named(
    cluster: Any, model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "coterie-0.0.1.dist-info").mkdir()
    about = "Metadata-Version: 2.1\nName: coterie\nVersion: 0.0.1\n"
    (tmp_path / "coterie-0.0.1.dist-info" / "METADATA").write_text(about)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    node = add_node(cluster, num_gpus=8, env_vars={"PYTHONPATH": path})
    try:
        nodes = RayCluster("ray")
        problem = "vllm-0 is on node 127.0.0.1 with coterie 0.0.1; this process has 0.1.0"
        assert problem in refusal(nodes, model, tmp_path / "logs")
        monkeypatch.setattr(ray_cluster, "version", lambda name: "0.0.1")
        monkeypatch.setattr(Path, "touch", lambda path: None)
        problem = "vllm-0 is on node 127.0.0.1, which can't see the folder"
        assert problem in refusal(nodes, model, tmp_path / "logs")
    finally:
        cluster.remove_node(node)


def listening_ports(server: psutil.Process) -> set[int]:
    """Return the ports of the actor of a server, one of which is its relay's."""
    actor = next(parent for parent in server.parents() if parent.cmdline()[0].startswith("ray::"))
    return {c.laddr.port for c in actor.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def kill(server: psutil.Process, cluster: Any) -> None:
    server.kill()


def remove_node(server: psutil.Process, cluster: Any) -> None:
    cluster.remove_node(node_of(server, cluster), allow_graceful=False)
    add_node(cluster)


@pytest.mark.parametrize("fault", [kill, remove_node])
def test_a_server_that_is_lost_starts_elsewhere_and_every_request_is_answered(
    cluster: Any, model: LoadedModel, served: Served, fault: Callable[[psutil.Process, Any], None]
) -> None:
    pool = served.pool
    draw = partial(pool.sample, prompt(model), range(32), Sampling(1.0, 1.0, 40, (), 120))

    async def run() -> tuple[list[Completion], list[Completion]]:
        expected = await draw()
        for member in pool.members:
            await member.client.post("/pause?mode=keep", None)
        again = asyncio.ensure_future(draw())
        while sum(member.load for member in pool.members) < 32:
            await asyncio.sleep(0.01)
        lost = max(pool.members, key=lambda member: member.load)
        port = int(lost.client.url.rpartition(":")[2])
        (server,) = [server for server in processes(STUB) if port in listening_ports(server)]
        fault(server, cluster)
        while lost.up:
            await asyncio.sleep(0.01)
        for member in pool.members:
            with suppress(ServerFault):
                await member.client.post("/resume", None)
        while not all(member.up for member in pool.members):
            assert not any(member.lost for member in pool.members)
            await asyncio.sleep(0.1)
        return expected, await again

    before = pool.stats.restarts
    expected, result = served.runner.run(run())
    assert [one.ids for one in result] == [one.ids for one in expected]
    assert pool.stats.restarts > before
