"""Transfer of new weights to a paused server: files on disk or in shared memory, or from the trainer's GPU.

A transfer leaves the server with the version's name as its label. LoRA adapters need none: they are loaded under new
names, beside the adapters of requests in flight (:meth:`coterie.engines.server.Server.update`).
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from torch import Tensor

from coterie.engines.connections import Address, http_client
from coterie.engines.endpoint import ServerFault, TransientFault, request
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import HOST, ServerClient


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """Weights on the servers of a pool."""

    model: str
    """Folder or hub name of a checkpoint."""
    version: str
    adapter: Path | None = None
    """Folder of a LoRA adapter for the checkpoint."""
    adapter_name: str = ""
    """Name of the adapter, new on these servers."""


Transfer = Callable[[ServerClient, ServedWeights], Awaitable[None]]
"""Load weights into a paused server. Raises a ``ServerFault``."""
Send = Callable[[Address], None]
"""Send the trainer's weights to the server at an address, with :func:`send_weights`."""


def from_gpu(send: Send) -> Transfer:
    """Return a transfer by ``send``, to one server at a time."""
    return partial(_receive, send, asyncio.Lock())


def from_files(settings: VLLMSettings) -> Transfer:
    """Return the transfer from the files that a training publishes also if it sends weights by GPU."""
    return _reload if settings.urls or settings.transfer in ("nccl", "ipc") else _load_files


async def _reload(client: ServerClient, weights: ServedWeights) -> None:
    call = {"method": "reload_weights", "kwargs": {"weights_path": weights.model}}
    await client.post("/collective_rpc", call)
    await client.set_version(weights.version)


async def _load_files(client: ServerClient, weights: ServedWeights) -> None:
    """Have a server of ours load the files of a folder, by ``inside_vllm/coterie_worker.py``."""
    if not Path(weights.model).is_dir():  # a model of the hub
        await _reload(client, weights)
        return
    try:
        await client.post("/start_weight_update", None)
    except ServerFault:  # an earlier update was cut off
        await client.post("/finish_weight_update", {})
        await client.post("/start_weight_update", None)
    await client.post("/update_weights", {"update_info": {"folder": weights.model}})
    await client.post("/finish_weight_update", {"weight_version": weights.version})


async def _receive(
    send: Send, sending: asyncio.Lock, client: ServerClient, weights: ServedWeights
) -> None:
    await sending.acquire()
    work = asyncio.ensure_future(asyncio.to_thread(send, client.address))
    work.add_done_callback(lambda _: sending.release())  # also if this server's time is up earlier
    try:
        await asyncio.shield(work)
    except Exception as error:
        raise TransientFault(f"{client.url} did not get the weights: {error!r}") from error
    await client.set_version(weights.version)


def send_weights(weights: Mapping[str, Tensor], kind: str, address: Address, rank: int = 0) -> None:
    """Send whole weights on a GPU to the paused server at an address, by vLLM's own ``nccl`` or ``ipc``.

    Every rank of the trainer calls this, after all shards are gathered; rank 0 sends. Needs vLLM in this interpreter.
    """
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    class Source(WeightSource):
        def metadata(self) -> list[Any]:
            return [
                ParamMeta(name, weight.dtype, tuple(weight.shape))
                for name, weight in weights.items()
            ]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(weights.items())

    class Client(HTTPVLLMWeightSyncClient):  # type: ignore[misc, unused-ignore]
        def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
            asyncio.run(_call(address, "POST", f"/{path}", json))

    client = Client(address.url)
    if kind == "ipc":
        init: Any = IPCTrainerInitInfo(rank=rank)
    else:
        workers = asyncio.run(_call(address, "GET", "/get_world_size")).json()["world_size"]
        host, port = _own_address(address)
        init = NCCLTrainerInitInfo(host, port, 1 + workers, rank=rank)
    engine = WeightTransferTrainerFactory.trainer_init(init, client=client, source=Source())
    try:
        engine.send_weights()
    finally:
        engine.shutdown()
        if rank == 0:
            client.shutdown_weight_transfer_engine()


async def _call(address: Address, method: str, path: str, body: Any = None) -> httpx2.Response:
    """Send a request to a server, with the time limit of vLLM's client. Raises a ``ServerFault``."""
    async with http_client(address, 300.0) as http:
        return await request(http, method, path, body, f"{address.url}{path}: ")


def _own_address(address: Address) -> tuple[str, int]:
    """Return the address of this machine for a server, and a free port."""
    host, parts = HOST, urlsplit(address.url)
    if parts.hostname is not None:
        with socket.create_connection((parts.hostname, parts.port or 80)) as connection:
            host = connection.getsockname()[0]
    with socket.create_server((host, 0)) as probe:
        return host, probe.getsockname()[1]
