"""Process of a server: where it runs, apart from its supervision (:mod:`coterie.engines.server`)."""

import asyncio
import os
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import psutil
import torch

from coterie.engines.child_guard import guarded
from coterie.engines.protocol import EngineError
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import HOST, VLLMBackend, device_lists, visible_devices

LOG_LINES = 12
PORT_TRIES = 3
"""Maximum number of starts, on other ports if another process takes the chosen port."""
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

    async def launch(self, model: str, name: str) -> str:
        """Start a server of ``model`` under ``name``. Return its URL as soon as it listens.

        Raises :class:`EngineError` with the end of its log if it ends before. Only :meth:`end` stops a canceled launch.
        """
        for _ in range(PORT_TRIES):
            port = free_port()
            try:
                command = self._backend.command(model, name, port)
                self._process = await self._spawn(command, self._backend.environment(self._index))
            except OSError as error:
                raise EngineError(f"can't be started: {error}") from error
            while self._process.returncode is None:
                if self._listens(port):
                    return f"http://{self._backend.host}:{port}"
                await asyncio.sleep(POLL_SECONDS)
            if not port_taken(port):
                break
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
        for process in self._descendants(recursive=False):
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

    async def _spawn(self, command: Sequence[str], own: Mapping[str, str]) -> Process:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *guarded(command, self._backend.settings.grace_seconds),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **own},
                start_new_session=True,
            )

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


def server_here(
    kind: type[VLLMBackend], settings: VLLMSettings, host: str, log: Path
) -> ServerProcess:
    """Return the process of one server on this node, with all devices that this process may use."""
    own = settings.model_copy(update={"servers": 1})
    devices = device_lists(own, visible_devices()) if torch.cuda.is_available() else []
    return ServerProcess(kind(own, devices, host), 0, log)


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


def port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
