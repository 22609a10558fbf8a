"""One connection to an MCP server, which one task owns.

The SDK's scopes of cancellation must end in the task that began them. So a task of its own opens the client, waits, and
closes it; calls come from any task. A call that is given up is told to the server and leaves the connection open.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.session import IncomingMessage, MessageHandlerFnT
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from coterie.engines.keys import find_key
from coterie.engines.servers import leash
from coterie.errors import UserError
from coterie.tools.mcp.pipes import pipes
from coterie.tools.mcp.settings import McpSettings
from coterie.tools.run import ToolUnavailable

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for a server that we end."""
SHOWN = 500
"""Last characters of what a server wrote to standard error that an error quotes."""
MAX_EVENT = 64 * 2**20
"""Bytes of one answer in a stream of events."""
MAX_PAGES = 100
"""Pages of a list of tools."""
T = TypeVar("T")
# What servers do wrong is in our errors; the SDK's log would write it to the terminal, too.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class LinkLost(ToolUnavailable):
    """The connection is gone, or never came up."""


class Link:
    """A connection, which comes up by itself."""

    def __init__(self, settings: McpSettings) -> None:
        self.suspect = True
        """Whether its tools may be others than when they were last listed."""
        self._settings = settings
        self._ended = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._said = bytearray()
        self._owner = asyncio.create_task(self._own())

    async def ready(self) -> None:
        """Wait until it has shaken hands. Raises :class:`LinkLost`; who stops waiting leaves it to come up."""
        await asyncio.shield(self._client)

    @property
    def alive(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        return not self._owner.done() and not self._ended.is_set()

    async def tools(self) -> list[types.Tool]:
        """All tools, now. Raises :class:`LinkLost`."""
        found: list[types.Tool] = []
        cursor: str | None = None
        async with self._limit(self._settings.start_seconds):
            for _ in range(MAX_PAGES):
                page = await self._ask(lambda client, at=cursor: client.list_tools(cursor=at))  # type: ignore[misc]
                found += page.tools
                if not (cursor := page.next_cursor):
                    return found
        raise self.lost(f"its list of tools has more than {MAX_PAGES} pages")

    async def call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """What a tool answers. Raises ``MCPError`` for what the server refuses, :class:`LinkLost`."""
        seconds = self._settings.seconds
        return await self._ask(
            lambda client: client.call_tool(name, arguments, read_timeout_seconds=seconds)
        )

    def drop(self) -> None:
        """Begin to close it; nobody uses it any more."""
        self._ended.set()

    async def close(self) -> None:
        """Close it; a program of ours has ended when this returns."""
        self.drop()
        if not self._client.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        self._client.exception()  # it was told, or nobody wanted to know

    async def _ask(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """Ask, until there is an answer or the connection is gone."""
        if not self.alive or not self._client.done():
            raise self.lost("the connection is closed")
        asked = asyncio.ensure_future(ask(self._client.result()))
        try:
            await asyncio.wait({asked, self._owner}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and not asked.cancelled():
                return await asked
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                raise self.lost("it went away") from error
            raise
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.wait({asked})
        raise self.lost("it went away")

    async def _own(self) -> None:
        try:
            async with _client(self._settings, self._hear, self._said) as opening:
                async with self._limit(self._settings.start_seconds):
                    client = await opening()
                self._client.set_result(client)
                await self._ended.wait()
        except (Exception, asyncio.CancelledError) as error:
            if not self._client.done():
                self._client.set_exception(self.lost(_reason(error)))
        finally:
            self._ended.set()

    @asynccontextmanager
    async def _limit(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise self.lost(f"it has not answered within {seconds:g} seconds") from error

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.suspect = True

    @property
    def open(self) -> bool:
        """Whether it has not ended yet."""
        return not self._owner.done()

    def lost(self, why: str) -> LinkLost:
        """The error that says why, and what the server wrote last."""
        said = " ".join(self._said.decode(errors="replace").split())[-SHOWN:]
        text = f"the MCP server `{self._settings.server}`: {why}"
        return LinkLost(f"{text}; it wrote: {said}" if said else text)


@asynccontextmanager
async def _client(
    settings: McpSettings, hear: MessageHandlerFnT, said: bytearray
) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """What opens the client, and closes it at the end."""
    async with AsyncExitStack() as stack:
        if settings.url is None:
            log = stack.enter_context(_tail(said))
            environment = get_default_environment() | _environment(settings)
            transport: Any = pipes(_leashed(settings), environment, settings.folder or None, log)
        else:
            headers = (
                find_key(settings.key_variable, Path()).header if settings.key_variable else {}
            )
            timeout = httpx2.Timeout(settings.start_seconds, read=None)
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers=headers, timeout=timeout)
            )
            transport = streamable_http_client(
                settings.url, http_client=http, max_sse_event_size=MAX_EVENT
            )
        client = Client(transport, message_handler=hear, cache=None)
        yield lambda: stack.enter_async_context(client)


def _leashed(settings: McpSettings) -> list[str]:
    """The command, which ends with us."""
    leashed = ["-I", "-S", leash.__file__, "--talk", str(os.getpid()), str(GRACE)]
    return [sys.executable, *leashed, *settings.command]


def _environment(settings: McpSettings) -> dict[str, str]:
    """Its variables, besides the few that every program needs."""
    environment = {}
    for name in settings.environment:
        if name not in os.environ:
            raise UserError(f"{name} is not set", f"export {name}=..., or leave it out")
        environment[name] = os.environ[name]
    return environment


@contextmanager
def _tail(said: bytearray) -> Iterator[TextIO]:
    """A file whose last characters are kept in ``said``."""
    loop = asyncio.get_running_loop()
    source, target = os.pipe()
    os.set_blocking(source, False)

    def read() -> None:
        with suppress(BlockingIOError):
            if not (more := os.read(source, 65536)):
                loop.remove_reader(source)
            said.extend(more)
            del said[:-SHOWN]

    loop.add_reader(source, read)
    try:
        with open(target, "w") as file:
            yield file
    finally:
        read()
        loop.remove_reader(source)
        os.close(source)


def _reason(error: BaseException) -> str:
    """The first thing that went wrong, of a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LinkLost):
        return str(error).partition("`: ")[2] or str(error)
    return str(error) or type(error).__name__
