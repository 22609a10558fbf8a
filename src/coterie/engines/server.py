"""Server of a pool: external, or a child process under a guard (:mod:`coterie.engines.child_guard`)."""

import asyncio
import logging
import os
import socket
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from coterie.engines.child_guard import guarded
from coterie.engines.endpoint import FinalFault, ServerFault, TransientFault
from coterie.engines.protocol import EngineError
from coterie.engines.vllm import HOST, ServerClient, VLLMBackend

logger = logging.getLogger(__name__)
LOG_LINES = 12
PORT_TRIES = 3
"""Maximum number of starts, on other ports if another process takes the chosen port."""
POLL_SECONDS = 0.25
MAX_PAUSE = 10.0
RESET_TRIES = 40


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


def absolute(path: Path | str) -> str:
    """Return a folder's absolute path, for other processes; a hub name does not change."""
    return str(Path(path).absolute()) if Path(path).is_dir() else str(path)


class Server:
    """External server, or a child process that is restarted when it dies (:meth:`start`).

    ``base`` is its name of the checkpoint.
    """

    def __init__(
        self,
        name: str,
        base: str,
        backend: VLLMBackend,
        weights: ServedWeights,
        client: ServerClient,
    ) -> None:
        self.name = name
        self.client = client
        self.backend = backend
        self.weights = weights
        self.up = True
        self.lost = ""
        """Reason why the server is permanently down, or ""."""
        self.restarts = 0
        self.load = 0
        """Number of assigned, unanswered requests."""
        self.slots = asyncio.Semaphore(backend.settings.requests_per_server)
        self.context: int | None = None
        """Maximum sequence length, if the server reports it."""
        self._base = base
        self._settings = backend.settings
        self._process: Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(
        self,
        index: int,
        connect: Callable[[str], ServerClient],
        log: Path,
        went_down: Callable[[int], None],
    ) -> None:
        """Start the server in a child process and watch it. ``went_down`` is called when it dies.

        ``connect`` makes a client for its URL. Raises :class:`EngineError` with the end of its log if it fails.
        """
        self.up, self._index, self._connect, self._log = False, index, connect, log
        self._went_down = went_down
        await self._launch()
        self._tasks = [asyncio.create_task(self._keep_up())]

    def report_stall(self) -> None:
        """Kill a child without an answer for too long unless it is healthy; it is then restarted."""
        if self._process is not None and all(task.done() for task in self._tasks[1:]):
            self._tasks[1:] = [asyncio.create_task(self._examine())]

    async def _examine(self) -> None:
        if self.up and not await self.client.healthy():
            logger.warning("%s does not answer; killing and restarting it", self.name)
            for process in self._descendants(recursive=False):
                process.kill()

    async def serve(self, weights: ServedWeights) -> None:
        """Load other weights in place, and check that the server has them. Raises a ``ServerFault``.

        A child that dies meanwhile is restarted with them.
        """
        await self._wait_until_up()
        restarts = self.restarts
        try:
            await self._load(weights)
        except TransientFault:
            await self._wait_until_up()
            if self.lost or self.restarts == restarts:
                raise

    async def _load(self, weights: ServedWeights) -> None:
        before, self.weights = self.weights, weights
        if before.adapter_name in {card.id for card in await self.client.models()}:
            body = {"lora_name": before.adapter_name}
            await self.client.post("/v1/unload_lora_adapter", body)
        self.client.model = self._base
        if weights.adapter is None:
            await self.backend.reload(self.client, weights.model)
            await self._reset_cache()
        await self.use_weights()

    async def use_weights(self) -> None:
        """Load the adapter of the weights, if any, and check that the server has the model. Raises ``ServerFault``."""
        client, weights = self.client, self.weights
        if weights.adapter is not None:
            body = {"lora_name": weights.adapter_name, "lora_path": absolute(weights.adapter)}
            await client.post("/v1/load_lora_adapter", body)
            client.model = weights.adapter_name
        cards = {card.id: card for card in await client.models()}
        if client.model not in cards:
            raise FinalFault(f"{self.name} serves {', '.join(cards)}, not {client.model}")
        self.context = cards[client.model].max_model_len or self.context

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._end()
        await self.client.close()

    async def _reset_cache(self) -> None:
        """Drop cached prefixes of the old weights, with retries because canceled requests may still use some."""
        for _ in range(RESET_TRIES):
            if await self.client.reset_cache():
                return
            await asyncio.sleep(POLL_SECONDS)
        raise TransientFault(f"{self.name} does not drop its prefix cache")

    # -- child processes --------------------------------------------------------------------------

    async def _wait_until_up(self) -> None:
        while not self.up and not self.lost:
            await asyncio.sleep(POLL_SECONDS)

    async def _launch(self) -> None:
        seconds = self._settings.start_seconds
        for _ in range(PORT_TRIES):
            port = free_port()
            await self.client.close()
            self.client = self._connect(f"http://{HOST}:{port}")
            try:
                self._process = await self._spawn(port)
                async with asyncio.timeout(seconds):
                    while self._process.returncode is None:
                        if self._listens(port) and await self.client.healthy():
                            await self.use_weights()
                            self.up = True
                            return
                        await asyncio.sleep(POLL_SECONDS)
            except (ServerFault, TimeoutError) as error:
                await self._end()
                raise EngineError(
                    f"{error!r} within {seconds:g} s; {self._last_words()}"
                ) from error
            except OSError as error:
                raise EngineError(f"{self.name} can't be started: {error}") from error
            except BaseException:
                await self._end()
                raise
            if not port_taken(port):
                break
        raise EngineError(self._obituary("before it answered"))

    async def _spawn(self, port: int) -> Process:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = self.backend.command(self.weights.model, self._base, port)
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *guarded(command, self._settings.grace_seconds),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.backend.environment(self._index)},
                start_new_session=True,
            )

    async def _end(self) -> None:
        """End the server and its descendants by SIGTERM, and SIGKILL after ``grace_seconds``, and wait for it."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        waiting = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting
            raise

    async def _keep_up(self) -> None:
        """Restart the server whenever it ends, up to the limit of restarts."""
        try:
            while not self.lost:
                await self._restart()
        except Exception as error:  # otherwise requests would wait forever
            logger.exception("%s can't be watched any more", self.name)
            self.up, self.lost = False, f"can't be watched any more: {error!r}"

    async def _restart(self) -> None:
        assert self._process is not None
        await self._process.wait()
        self.up = False
        self._went_down(self._index)
        reason = self._obituary("unexpectedly")
        logger.warning("%s", reason)
        while not self.up and not self.lost:
            if self.restarts == self._settings.restarts:
                self.lost = f"failed after {self.restarts + 1} starts: {reason}"
                break
            await asyncio.sleep(min(0.25 * 2**self.restarts, MAX_PAUSE))
            self.restarts += 1
            try:
                await self._launch()
            except EngineError as error:
                reason = str(error)

    def _obituary(self, when: str) -> str:
        assert self._process is not None
        status = self._process.returncode
        return f"{self.name} ended with status {status} {when}; {self._last_words()}"

    def _last_words(self) -> str:
        """Return the last lines of the log, and its path."""
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return f"its log {self._log} ends:\n  " + "\n  ".join(lines)

    def _listens(self, port: int) -> bool:
        """Return True if the server, and not another process, listens on the port."""
        for process in self._descendants(recursive=True):
            with suppress(psutil.Error):
                for one in process.net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN and one.laddr[1] == port:
                        return True
        return False

    def _descendants(self, *, recursive: bool) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children(recursive)
        except psutil.NoSuchProcess:
            return []


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
