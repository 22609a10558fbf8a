"""Process of a server: where it runs, apart from its supervision (:mod:`coterie.engines.server`)."""

import asyncio
import os
import socket
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import psutil
import torch

from coterie.engines.child_guard import guarded
from coterie.engines.connections import Address, relay
from coterie.engines.protocol import EngineError
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import HOST, VLLMBackend, device_lists, visible_devices

LOG_LINES = 12
POLL_SECONDS = 0.25


class ServerProcess:
    """Server that can be started again after it has ended; ``index`` is its number.

    Here it is a child process under a guard (:mod:`coterie.engines.child_guard`), on clusters a process of a node.
    """

    def __init__(self, backend: VLLMBackend, index: int, log: Path) -> None:
        self._backend = backend
        self._index = index
        self._log = log
        self._process: Process | None = None
        self._private: tempfile.TemporaryDirectory[str] | None = None
        """Folder of the server's sockets, which only this user can enter."""

    async def launch(self, model: str, name: str) -> Address:
        """Start a server of ``model`` under ``name``. Return its address as soon as it listens.

        Raises :class:`EngineError` with the end of its log if it ends before. Only :meth:`end` stops a canceled launch.
        """
        if self._private is None:
            # Names of sockets have at most 107 bytes.
            parent = None if len(os.fsencode(tempfile.gettempdir())) <= 50 else "/tmp"
            self._private = tempfile.TemporaryDirectory(prefix="coterie-", dir=parent)
        listening = Path(self._private.name, "server")
        listening.unlink(missing_ok=True)
        command = self._backend.command(model, name, {"uds": str(listening)})
        # Sockets between vLLM's own processes are in the private folder, too.
        private = {"VLLM_RPC_BASE_PATH": self._private.name}
        try:
            environment = {**self._backend.environment(self._index), **private}
            self._process = await self._spawn(command, environment)
        except OSError as error:
            raise EngineError(f"can't be started: {error}") from error
        while self._process.returncode is None:
            try:
                _, writer = await asyncio.open_unix_connection(listening)
                writer.close()
                return Address(f"unix:{listening}")
            except OSError:
                await asyncio.sleep(POLL_SECONDS)
        status, words = await self.ended(), await self.last_words()
        raise EngineError(f"{status} before it answered; {words}")

    async def ended(self) -> str:
        """Wait until the process has ended, also if it ended before. Return its status."""
        assert self._process is not None
        return f"ended with status {await self._process.wait()}"

    async def last_words(self) -> str:
        """Return the last lines of the log, and its path."""
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return f"its log {self._log} ends:\n  " + "\n  ".join(lines)

    async def kill(self) -> None:
        """Kill a process that hangs."""
        for process in self._children():
            process.kill()

    async def end(self) -> None:
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
        finally:
            if self._private is not None:
                self._private.cleanup()
                self._private = None

    async def _spawn(self, command: Sequence[str], variables: Mapping[str, str]) -> Process:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *guarded(command, self._backend.settings.grace_seconds),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                start_new_session=True,
            )

    def _children(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return []


class NodeProcess(ServerProcess):
    """Server on this node of a cluster for a driver elsewhere, with all devices that this process may use.

    A relay, which asks for ``secret``, listens on the node's address ``host``.
    """

    def __init__(
        self, kind: type[VLLMBackend], settings: VLLMSettings, log: Path, host: str, secret: str
    ) -> None:
        settings = settings.model_copy(update={"servers": 1})
        devices = device_lists(settings, visible_devices()) if torch.cuda.is_available() else []
        super().__init__(kind(settings, devices), 0, log)
        self._host, self._secret = host, secret
        self._relay = AsyncExitStack()

    async def launch(self, model: str, name: str) -> Address:
        address = await super().launch(model, name)
        path = address.url.removeprefix("unix:")
        return await self._relay.enter_async_context(relay(path, self._host, self._secret))

    async def end(self) -> None:
        await self._relay.aclose()
        await super().end()


Servers = Callable[
    [VLLMSettings, Path], AbstractAsyncContextManager[Callable[[int], ServerProcess]]
]
"""Reserves room for servers inside a block: settings and folder of logs to the process of each server."""


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
