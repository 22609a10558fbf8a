"""Server process that coterie starts, watches and ends.

The server runs under a child-process guard (:mod:`coterie.engines.servers.leash`), a small process that ends it and all
its descendants when this process closes the guard's input or dies, even by SIGKILL. The server writes to a log file,
whose last lines are in the error when it dies.
"""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from coterie.engines.protocol import EngineError
from coterie.engines.servers import leash

HOST = "127.0.0.1"
LOG_LINES = 12
PORT_TRIES = 3
"""Maximum number of starts, on other ports if another process takes the chosen port."""
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Launch:
    """Command, environment and log of a server."""

    name: str
    """Name in messages and of the log, such as ``vllm-0``."""
    command: Callable[[int], Sequence[str]]
    """Returns the command line for a port of 127.0.0.1."""
    environment: Mapping[str, str]
    """Additional environment variables."""
    log: Path
    """Log file, which is appended to."""
    start_seconds: float
    """Maximum time until the first answer."""
    grace_seconds: float
    """Time from SIGTERM to SIGKILL."""


class Child:
    """Running server, created with :meth:`start`."""

    def __init__(self, launch: Launch, process: Process, port: int) -> None:
        self.launch = launch
        self.port = port
        self._process = process

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @classmethod
    async def start(cls, launch: Launch, healthy: Callable[[str], Awaitable[bool]]) -> "Child":
        """Start a server and wait until it listens and ``healthy(url)``.

        Raises :class:`EngineError`, with the last lines of its log, if it ends or takes too long.
        """
        for _ in range(PORT_TRIES):
            port = free_port()
            child = cls(launch, await _spawn(launch, port), port)
            try:
                if await child._up(healthy):
                    return child
            except BaseException:
                await child.end()
                raise
            if not port_taken(port):
                break
        raise EngineError(child.obituary("before it answered"))

    async def wait(self) -> None:
        """Wait until the server has ended for any reason."""
        await self._process.wait()

    async def end(self) -> None:
        """End the server and its descendants by SIGTERM, and SIGKILL after ``grace_seconds``, and wait for it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        waiting = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting
            raise

    def kill(self) -> None:
        """Kill a server that does not answer; :meth:`wait` then returns."""
        for process in self._descendants():
            if process.ppid() == self._process.pid:
                process.kill()

    def obituary(self, when: str) -> str:
        status = self._process.returncode
        how = "is still running" if status is None else f"ended with status {status}"
        return f"{self.launch.name} {how} {when}; {self.last_words()}"

    def last_words(self) -> str:
        """Return the last lines of the log, and its path."""
        lines = self.launch.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return f"its log {self.launch.log} ends:\n  " + "\n  ".join(lines)

    async def _up(self, healthy: Callable[[str], Awaitable[bool]]) -> bool:
        """Wait until the server answers. Return False if it ends."""
        try:
            async with asyncio.timeout(self.launch.start_seconds):
                while self._process.returncode is None:
                    if self._listens() and await healthy(self.url):
                        return True
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise EngineError(
                self.obituary(f"but did not answer within {self.launch.start_seconds:g} s")
            ) from error
        return False

    def _listens(self) -> bool:
        for process in self._descendants():
            try:
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr[1] == self.port:
                        return True
            except psutil.Error:
                continue
        return False

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


async def _spawn(launch: Launch, port: int) -> Process:
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-I", "-S", str(Path(leash.__file__)), str(os.getpid()),
        str(launch.grace_seconds), *launch.command(port),
    ]  # fmt: skip
    with launch.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **launch.environment},
            start_new_session=True,
        )


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
