"""Ray: a placement group holds the servers, and Ray Train the ranks.

The driver connects to a running cluster. A server is a child of an actor. When the actor or its node dies, Ray moves
the bundle, and the pool starts a new actor in it.
"""

import asyncio
import os
import secrets
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.clusters import Needs, own_address
from coterie.engines.connections import Address
from coterie.engines.protocol import EngineError
from coterie.engines.server_process import ServerProcess
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import VLLMBackend
from coterie.errors import UserError

CONNECT_SECONDS = 5.0
ROOM_SECONDS = 12.0
"""Time limit for a placement."""
RESTART_SECONDS = 60.0
"""Time limit for the placement of a server that is started again, and for the start of its actor."""
END_SECONDS = 60.0


class RayCluster:
    """Connection to a Ray cluster, ``ray`` (``RAY_ADDRESS``, or the one of this machine) or ``ray://HOST:PORT``.

    Raises ``UserError`` if it does not answer.
    """

    def __init__(self, address: str = "ray") -> None:
        connect(address)
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.unit = "GPU" if any(node.get("GPU") for node in nodes) else "CPU"
        self._sizes = [node[self.unit] for node in nodes if self.unit in node]
        host = address.partition("://")[2].rpartition(":")[0]
        self.host = own_address(host) if host else ray.util.get_node_ip_address()
        """Address of the driver for the nodes."""

    def check(self, needs: Needs, vllm: VLLMSettings | None) -> None:
        """Raise ``UserError`` if the cluster has no room, or for settings of servers (``vllm``) that do not fit."""
        if vllm is not None and (vllm.devices or vllm.urls):
            raise UserError(
                "engine.vllm.devices and urls don't fit a Ray cluster, which chooses nodes and devices of servers",
                "remove them, or set cluster=none",
            )
        needs.check(self.unit, self._sizes)

    @asynccontextmanager
    async def servers(
        self, settings: VLLMSettings, log_folder: Path
    ) -> AsyncIterator[Callable[[int], ServerProcess]]:
        """Reserve room for servers. Yield a function that makes the process of each."""
        import ray

        size = settings.tensor_parallel_size
        bundle = {"CPU": 1.0} if self.unit == "CPU" else {"CPU": 1.0, "GPU": float(size)}
        group = ray.util.placement_group([bundle] * settings.servers, strategy="PACK")
        try:
            if not await asyncio.to_thread(group.wait, ROOM_SECONDS):
                free = int(ray.available_resources().get(self.unit, 0))
                raise UserError(
                    f"{settings.servers} servers with {size} {self.unit}s each find no room: {free} {self.unit}s of "
                    "the Ray cluster are free",
                    "wait for other jobs to end (`ray status` shows them), or lower engine.vllm.servers",
                )
            backend, logs = VLLMBackend(settings, []), log_folder.absolute()
            yield lambda i: ActorProcess(group, i, backend, logs / f"vllm-{i}.log")
        finally:
            ray.util.remove_placement_group(group)

    @contextmanager
    def ranks(
        self, environment: Mapping[str, str], count: int, log: Path
    ) -> Iterator[Callable[[], str]]:
        """Start ranks by Ray Train, which end with the block. Yield a function that returns why they ended, or ""."""
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        log, scratch = log.absolute(), log.absolute().with_name(".ray")
        log.touch()
        shared = {**environment, "WORLD_SIZE": str(count)}
        # Not TorchTrainer: a rank joins its process group itself.
        trainer = DataParallelTrainer(
            _rank_worker(shared, log),
            scaling_config=ScalingConfig(
                num_workers=count,
                use_gpu=self.unit == "GPU",
                resources_per_worker={"CPU": 1, self.unit: 1},
            ),
            # The driver starts all ranks again and repeats their steps since the last checkpoint.
            run_config=RunConfig(
                name="ranks",
                storage_path=str(scratch),
                failure_config=FailureConfig(max_failures=0),
            ),
        )
        problems: list[str] = []

        def fit() -> None:
            try:
                trainer.fit()
                problems.append("the ranks ended")
            except Exception as error:  # of any kind, in any rank
                problems.append(f"Ray Train ended: {str(error).strip() or repr(error)}")

        thread = threading.Thread(target=fit, daemon=True)
        thread.start()
        try:
            yield lambda: problems[0] if problems else ""
        finally:  # the ranks' connections are closed
            thread.join(END_SECONDS)
            shutil.rmtree(scratch, ignore_errors=True)


def connect(address: str) -> None:
    """Connect this process to a Ray cluster unless it is connected. Raise ``UserError`` within seconds."""
    if find_spec("ray") is None:
        raise UserError(
            f"cluster={address} needs Ray, which is not installed", "pip install 'coterie[ray]'"
        )
    import ray

    if ray.is_initialized():
        return
    started_here = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    target = address if address != "ray" else os.environ.get("RAY_ADDRESS", "")
    if not target and started_here.is_file():
        target = started_here.read_text().strip()
    fix = "start it with `ray start --head`, correct the address, or set cluster=none"
    host, _, port = target.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        problem = (
            f"{target!r} is not the address of a Ray cluster"
            if target
            else "no Ray cluster runs here"
        )
        raise UserError(problem, fix)
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(target, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: other versions
        raise UserError(f"no Ray cluster answers at {target}: {error}", fix) from error


class ActorProcess(ServerProcess):
    """Server in an actor of bundle ``index`` of a placement group; every launch makes a new actor."""

    def __init__(self, group: Any, index: int, backend: VLLMBackend, log: Path) -> None:
        super().__init__(backend, index, log)
        self._group = group
        self._actor: Any = None

    async def launch(self, model: str, name: str) -> Address:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        await self.end()
        bundle = self._group.bundle_specs[self._index]
        strategy = PlacementGroupSchedulingStrategy(self._group, self._index)
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0)}
        self._actor = _server_actor().options(scheduling_strategy=strategy, **options).remote()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        nonce = self._log.with_suffix(f".{secrets.token_hex(8)}")
        nonce.touch()
        try:
            async with asyncio.timeout(RESTART_SECONDS):
                node, its, sees = await self._ask("examine", str(nonce))
        except TimeoutError as error:
            raise EngineError("finds no room: no node has free devices for it") from error
        finally:
            nonce.unlink(missing_ok=True)
        if its != (own_version := version("coterie")):
            raise EngineError(
                f"is on node {node} with coterie {its}; this process has {own_version}"
            )
        if not sees:
            raise EngineError(
                f"is on node {node}, which can't see the folder {nonce.parent}; use a run folder that all nodes "
                "share, under the same path"
            )
        secret = secrets.token_hex()
        await self._ask("prepare", type(self._backend), self._backend.settings, self._log, secret)
        address: Address = await self._ask("call", "launch", model, name)
        return address

    async def ended(self) -> str:
        try:
            return str(await self._ask("call", "ended"))
        except EngineError as error:
            return str(error)

    async def kill(self) -> None:
        with suppress(EngineError):
            await self._ask("call", "kill")

    async def end(self) -> None:
        import ray

        if self._actor is not None:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._ask("call", "end")
            ray.kill(self._actor)
            self._actor = None

    async def _ask(self, method: str, *values: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError

        answer = asyncio.ensure_future(getattr(self._actor, method).remote(*values))
        answer.add_done_callback(
            lambda future: future.cancelled() or future.exception()
        )  # a canceled caller does not see it
        try:  # a canceled answer would end the thread of Ray Client
            return await asyncio.shield(answer)
        except RayTaskError as error:
            raise EngineError(str(error.cause)) from error
        except RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise EngineError(f"lost its actor or node ({reason})") from error


@cache
def _server_actor() -> Any:
    """Return the class of actors with a server, pickled whole: it also starts where coterie is missing or old."""
    import ray

    class ServerActor:
        process: Any = None

        async def examine(self, nonce: str) -> tuple[str, str, bool]:
            """Return the address of the node, its version of coterie, and True if it sees a file."""
            from importlib.metadata import version

            return ray.util.get_node_ip_address(), version("coterie"), os.path.exists(nonce)

        async def prepare(self, kind: Any, settings: Any, log: Path, secret: str) -> None:
            from coterie.engines.server_process import NodeProcess

            host = ray.util.get_node_ip_address()
            self.process = NodeProcess(kind, settings, log, host, secret)

        async def call(self, method: str, *words: str) -> Any:
            return self.process and await getattr(self.process, method)(*words)

    return ray.remote(ServerActor)


def _rank_worker(environment: Mapping[str, str], log: Path) -> Callable[[], None]:
    """Return the function of a worker of Ray Train, pickled whole: torch is imported when the variables are set.

    It holds the variables, since Ray's dashboard shows the configuration of a worker, and one of them is a secret.
    """

    def work() -> None:
        """Be a rank until the driver closes its connection."""
        import glob
        import os
        import socket

        import ray.train
        from ray.train.collective import broadcast_from_rank_zero

        context = ray.train.get_context()
        with socket.socket() as probe:
            probe.bind(("", 0))
            address_and_port = [ray.util.get_node_ip_address(), str(probe.getsockname()[1])]
        address, port = broadcast_from_rank_zero(address_and_port)
        os.environ |= {
            **environment,
            **{"MASTER_ADDR": address, "MASTER_PORT": port},
            **{"RANK": str(context.get_world_rank()), "LOCAL_RANK": str(context.get_local_rank())},
            # the driver's machine may have other devices
            "ACCELERATE_USE_CPU": "false" if glob.glob("/dev/nvidia[0-9]*") else "true",
        }
        if log.parent.is_dir():
            with log.open("ab") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)

        from coterie.training.rank import main

        try:
            main()
        except SystemExit as error:  # the others wait for this rank until Ray Train ends them
            raise RuntimeError(f"rank {context.get_world_rank()} ended") from error

    return work
