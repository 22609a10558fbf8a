"""Connection to one MCP server. A task owns the SDK's client, and reconnects when the connection is lost."""

import asyncio
import hashlib
import json
import logging
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.client.session import IncomingMessage, MessageHandlerFnT
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from coterie.engines.child_guard import guarded
from coterie.engines.endpoint import find_key
from coterie.errors import UserError
from coterie.record.turn import Tool
from coterie.tools.calls import ToolError, ToolUnavailable, check_tools, cut_text
from coterie.tools.mcp.source import McpSettings, ToolList, changes

MAX_LINE = 16 * 2**20
"""Maximum bytes of one message of a command."""
TOO_LONG = -32010
"""Error code of a request with a longer answer."""
HEAD = 256
"""Bytes kept of a message that is too long; they include its id."""
MAX_EVENT = 64 * 2**20
"""Maximum bytes of one answer in a stream of events."""
MAX_PAGES = 100
"""Maximum pages of a tool list."""
MAX_NAME = 64
"""Characters of a tool's name that chat templates and endpoints accept."""
MAX_DESCRIPTION = 4000
"""Characters of a tool's description, which is part of every prompt."""
MAX_SCHEMA = 40_000
"""Maximum characters of a tool's schema, which can't be cut."""
LOOK_AGAIN = 30.0
"""Seconds after which a call lists the tools again, since not every server announces changes."""
END_SECONDS = 2.0
"""Seconds for a command to end after its input ends, and after each signal."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL of a command."""
MAX_QUOTE = 500
"""Last characters of a command's stderr in an error."""
CLOSED = "Connection closed"
"""Message of the SDK for a lost connection; servers use its code for other errors."""
NO_ANSWER = "Server returned an error response"
"""Message of the SDK for an HTTP status without an error of the server."""
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]+|"[^"\\]*")\s*,')
T = TypeVar("T")
Received = SessionMessage | Exception
# Our errors include errors of servers; the SDK's log would repeat them in the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class LinkLost(ToolUnavailable):
    """The connection was lost or never opened."""


class Session:
    """Calls of a run's tools, over one connection at a time. Close it after use."""

    def __init__(self, settings: McpSettings, known: ToolList) -> None:
        self._settings = settings
        self._known = known
        self._link: Link | None = None
        self._listed_at = 0.0
        self._turn = asyncio.Lock()
        self._dropped: list[Link] = []
        self._changed: UserError | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return its result.

        Raises ``ToolError`` if it fails, ``ToolUnavailable`` if the server is lost (the next call starts it again),
        and ``UserError`` if its tools have changed, which also fails all later calls.
        """
        link = await self.ready()
        try:
            result = await link.call(self._known.names[name], dict(arguments))
        except LinkLost:
            self._drop(link)
            raise
        except MCPError as error:
            if error.code == types.REQUEST_TIMEOUT:
                seconds = self._settings.seconds
                raise ToolError(f"no answer within {seconds:g} seconds") from error
            unknown = error.code == types.INVALID_REQUEST  # the server does not know the session
            if self._settings.url and (unknown or error.error.message == NO_ANSWER):
                if unknown:
                    self._drop(link)
                raise link.lost(error.error.message) from error
            raise ToolError(error.error.message) from error
        except (RuntimeError, ValueError) as error:  # violates the protocol or its schema
            raise ToolError(f"the tool's result can't be read: {error}") from error
        text = text_of(result)
        if result.is_error:
            raise ToolError(text or "the tool failed and does not say why")
        return text

    async def ready(self) -> "Link":
        """Return a connection with the run's tools. Raises ``UserError`` and ``ToolUnavailable``."""
        async with self._turn:
            if self._changed is not None:
                raise self._changed
            if self._link is not None and not self._link.alive:
                self._drop(self._link)
            link = self._link = self._link or Link(self._settings)
            try:
                await link.ready()
                if link.suspect or time.monotonic() - self._listed_at > LOOK_AGAIN:
                    await self._check_tools(link)
            except LinkLost:
                self._drop(link)
                raise
            return link

    async def close(self) -> None:
        """Close the connection, and stop the server if we started it."""
        if self._link is not None:
            self._drop(self._link)
        await asyncio.gather(*(link.close() for link in self._dropped))

    async def _check_tools(self, link: "Link") -> None:
        link.suspect = False  # before the request, so that a change during it counts
        settings = self._settings
        try:
            now = convert_tools(await link.tools(), settings.read_only, settings.server)
        except UserError as error:
            self._changed = error
            raise
        except (MCPError, ValueError) as error:
            raise link.lost(f"it does not list its tools: {error}") from error
        except BaseException:
            link.suspect = True
            raise
        if now.identity != self._known.identity:
            self._changed = UserError(
                f"the tools of the MCP server `{settings.server}` have changed ({changes(self._known, now)})",
                "restore the server's tools, or start a new run",
            )
            raise self._changed
        self._listed_at = time.monotonic()

    def _drop(self, link: "Link") -> None:
        link.drop()
        self._dropped = [one for one in self._dropped if one.open and one is not link] + [link]
        if self._link is link:
            self._link = None


async def first_list(settings: McpSettings) -> ToolList:
    """List the tools of a server. Raises ``UserError`` if it does not answer."""
    try:
        link = Link(settings)
        try:
            await link.ready()
            return convert_tools(await link.tools(), settings.read_only, settings.server)
        finally:
            await link.close()
    except (LinkLost, MCPError, ValueError) as error:
        raise UserError(
            str(error), "start the server, or correct its command or URL; try it by hand"
        ) from error


class Link:
    """One connection, which opens in the background.

    The SDK's cancel scopes must end in the task that opened them, so one task opens the client, waits and closes it.
    Any task may call. Canceling a call cancels it at the server and leaves the connection open.
    """

    def __init__(self, settings: McpSettings) -> None:
        self.suspect = True
        """True if the tools may have changed since the last list."""
        self._settings = settings
        self._ended = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stderr = bytearray()
        self._owner = asyncio.create_task(self._own())

    async def ready(self) -> None:
        """Wait for the handshake. Raises :class:`LinkLost`."""
        await asyncio.shield(self._client)

    @property
    def alive(self) -> bool:
        """True unless the connection failed or was dropped."""
        return not self._owner.done() and not self._ended.is_set()

    @property
    def open(self) -> bool:
        """True until the owner task has ended."""
        return not self._owner.done()

    async def tools(self) -> list[types.Tool]:
        """List all tools. Raises :class:`LinkLost`."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        async with self._limit(self._settings.start_seconds):
            for _ in range(MAX_PAGES):
                page = await self._ask(lambda client, at=cursor: client.list_tools(cursor=at))  # type: ignore[misc]
                tools += page.tools
                if not (cursor := page.next_cursor):
                    return tools
        raise self.lost(f"its list of tools has more than {MAX_PAGES} pages")

    async def call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Call a tool. Raises ``MCPError`` if the server refuses, and :class:`LinkLost`."""
        seconds = self._settings.seconds
        return await self._ask(
            lambda client: client.call_tool(name, arguments, read_timeout_seconds=seconds)
        )

    def drop(self) -> None:
        self._ended.set()

    async def close(self) -> None:
        """Close the connection, and wait until the command has ended."""
        self.drop()
        if not self._client.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        self._client.exception()  # mark as retrieved

    def lost(self, why: str) -> LinkLost:
        """Return an error with the reason and the end of the server's stderr."""
        wrote = " ".join(self._stderr.decode(errors="replace").split())[-MAX_QUOTE:]
        text = f"the MCP server `{self._settings.server}`: {why}"
        return LinkLost(f"{text}; it wrote: {wrote}" if wrote else text)

    async def _ask(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request; wait for the answer or the end of the connection."""
        if not self.alive or not self._client.done():
            raise self.lost("the connection is closed")
        request = asyncio.ensure_future(ask(self._client.result()))
        try:
            await asyncio.wait({request, self._owner}, return_when=asyncio.FIRST_COMPLETED)
            if request.done() and not request.cancelled():
                return await request
        except MCPError as error:
            own = self._settings.url is None and error.error.message != CLOSED
            if error.code == types.CONNECTION_CLOSED and not own:
                raise self.lost("it went away") from error
            raise
        finally:
            if not request.done():
                request.cancel()
                await asyncio.wait({request})
        raise self.lost("it went away")

    async def _own(self) -> None:
        try:
            async with _client(self._settings, self._hear, self._stderr) as opening:
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


@asynccontextmanager
async def _client(
    settings: McpSettings, hear: MessageHandlerFnT, stderr: bytearray
) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    async with AsyncExitStack() as stack:
        if settings.url is None:
            log = stack.enter_context(_tail(stderr))
            transport: Any = pipes(settings, log)
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


@contextmanager
def _tail(buffer: bytearray) -> Iterator[TextIO]:
    loop = asyncio.get_running_loop()
    source, target = os.pipe()
    os.set_blocking(source, False)

    def read() -> None:
        with suppress(BlockingIOError):
            if not (more := os.read(source, 65536)):
                loop.remove_reader(source)
            buffer.extend(more)
            del buffer[:-MAX_QUOTE]

    loop.add_reader(source, read)
    try:
        with open(target, "w") as file:
            yield file
    finally:
        read()
        loop.remove_reader(source)
        os.close(source)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LinkLost):
        return str(error).partition("`: ")[2] or str(error)
    return str(error) or type(error).__name__


# -- a command: one line of JSON for each message -----------------------------------------------
# The SDK's transport buffers lines of any length, and its command survives a SIGKILL of this process.


@asynccontextmanager
async def pipes(
    settings: McpSettings, log: TextIO
) -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]
]:
    """Start the command as a transport for the SDK's client. The process ends with the block."""
    environment = get_default_environment()
    for name in settings.environment:
        if name not in os.environ:
            raise UserError(f"{name} is not set", f"export {name}=..., or leave it out")
        environment[name] = os.environ[name]
    # The guard ends the command if this process dies.
    process = await asyncio.create_subprocess_exec(
        *guarded(settings.command, GRACE, talk=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        cwd=settings.folder or None,
        start_new_session=True,
        limit=MAX_LINE,
    )
    assert process.stdin is not None and process.stdout is not None
    answers, incoming = anyio.create_memory_object_stream[Received](0)
    outgoing, requests = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(process.stdout, answers))
    writing = asyncio.create_task(_write(process.stdin, requests, answers))
    try:
        yield incoming, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            incoming.close()
            outgoing.close()
            await asyncio.wait({writing}, timeout=END_SECONDS / 4)
            writing.cancel()
            process.stdin.close()
            await _end(process)
            reading.cancel()
            await asyncio.wait({reading, writing})
            answers.close()
            requests.close()


async def lines(stdout: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield lines with False, or the beginning of a line over the limit with True."""
    head = b""
    while True:
        try:
            line = await stdout.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            head = head or (await stdout.readexactly(HEAD))
            await stdout.readexactly(max(0, error.consumed - HEAD))
        except asyncio.IncompleteReadError:
            return
        else:
            yield head or line[:-1], bool(head)
            head = b""


async def _read(stdout: asyncio.StreamReader, answers: MemoryObjectSendStream[Received]) -> None:
    """Forward messages; drain the pipe after the client ends, so that the command does not block."""
    async with answers:
        async for line, too_long in lines(stdout):
            message = _refusal(line) if too_long else _message(line)
            if message is None:
                break
            try:
                await answers.send(message)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                break
    while await stdout.read(2**16):
        pass


async def _write(
    stdin: asyncio.StreamWriter,
    requests: MemoryObjectReceiveStream[SessionMessage],
    answers: MemoryObjectSendStream[Received],
) -> None:
    try:
        async for one in requests:
            text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(text.encode() + b"\n")
            await stdin.drain()
    except OSError:  # the command closed its input
        await answers.aclose()


def _message(line: bytes) -> Received:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


def _refusal(head: bytes) -> Received | None:
    """Return an error that replaces an answer; None if the id of the request is unreadable."""
    number = _ID.match(head)
    if number is None:
        return None
    why = f"the answer is longer than {MAX_LINE:,} bytes, and was not read"
    error = {"code": TOO_LONG, "message": why}
    return _message(
        json.dumps({"jsonrpc": "2.0", "id": json.loads(number[1]), "error": error}).encode()
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    for end in (lambda: None, process.terminate, process.kill):
        with suppress(ProcessLookupError):
            end()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while process.returncode is None:  # wait() would also wait for inherited pipes
                    await asyncio.sleep(0.01)
                return


# -- conversion of tools and results ------------------------------------------------------------


def convert_tools(rows: Sequence[types.Tool], read_only: Sequence[str], server: str) -> ToolList:
    """Convert a server's tools. Raises ``UserError`` for an empty list or an unusable tool."""
    if not rows:
        raise UserError(f"{server} has no tools", "give a server with tools")
    ours = [_OTHER.sub("_", one.name)[:MAX_NAME] for one in rows]
    tools = tuple(
        Tool(
            name,
            cut_text(one.description or "", MAX_DESCRIPTION),
            one.input_schema,
            alone=not _only_reads(one, read_only),
        )
        for name, one in zip(ours, rows, strict=True)
    )
    if unknown := set(read_only) - {one.name for one in rows} - set(ours):
        raise UserError(
            f"{server} has no tool {min(unknown)!r}, which read_only names",
            f"it has: {', '.join(ours)}",
        )
    for tool in tools:
        if (size := len(json.dumps(tool.parameters))) > MAX_SCHEMA:
            raise UserError(
                f"{server}: the parameters of {tool.name} have {size:,} characters, and are part of every prompt",
                f"give a server whose tools have schemas of at most {MAX_SCHEMA:,} characters",
            )
    try:
        check_tools(tools)
    except UserError as error:
        raise UserError(f"{server}: {error.what}", "correct the server") from error
    fields = [
        [one.name, one.description, one.input_schema, _only_reads(one, read_only)] for one in rows
    ]
    text = json.dumps(fields, sort_keys=True)
    names = dict(zip(ours, (one.name for one in rows), strict=True))
    return ToolList(tools, names, hashlib.sha256(text.encode()).hexdigest()[:16])


def text_of(result: types.CallToolResult) -> str:
    """Return a result as text, with a short note for each other part."""
    parts = [_part(one) for one in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _part(one: types.ContentBlock) -> str:
    if isinstance(one, types.TextContent):
        return one.text
    if isinstance(one, types.ImageContent | types.AudioContent):
        return f"[{one.type}, {one.mime_type}, about {3 * len(one.data) // 4:,} bytes: not shown]"
    if isinstance(one, types.EmbeddedResource):
        inner = one.resource
        if isinstance(inner, types.TextResourceContents):
            return inner.text
        return f"[resource {inner.uri}, {inner.mime_type or 'of no known type'}: not shown]"
    return f"[link to {one.uri}: {one.name}]"


def _only_reads(one: types.Tool, read_only: Sequence[str]) -> bool:
    hint = one.annotations.read_only_hint if one.annotations else None
    return bool(hint) or one.name in read_only
