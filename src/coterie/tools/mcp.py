"""Tools of MCP servers, and an MCP server of coterie's tools (package ``mcp``).

source = McpSource(McpSettings(server="python server.py"))
async with source.open() as functions:
    print(await functions["add"]({"a": 1, "b": 2}))
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import shlex
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

import httpx2
from pydantic import field_validator

import coterie
from coterie.config.settings import Settings, key, server_url
from coterie.engines.child_guard import guarded
from coterie.engines.endpoint import find_key, quote
from coterie.engines.protocol import EngineError, run_now
from coterie.errors import UserError
from coterie.record.turn import Tool, ToolCall, call_id
from coterie.tools.calls import (
    CallLimits,
    Function,
    SessionSource,
    Tag,
    ToolError,
    ToolSource,
    ToolUnavailable,
    check_tools,
    cut_text,
    run_calls,
    validate_calls,
)

try:
    import mcp_types as types  # version 1 lacks it
    from mcp import Client
    from mcp.client.session import IncomingMessage
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.exceptions import MCPError
except ImportError as error:
    raise UserError(
        "tools of MCP servers need the package mcp, version 2", "pip install -e '.[mcp]'"
    ) from error

MAX_EVENT = 64 * 2**20
"""Maximum bytes of one answer in a stream of events."""
MAX_NAME = 64
"""Characters of a tool's name that chat templates and endpoints accept."""
MAX_DESCRIPTION = 4000
"""Characters of a tool's description, which is part of every prompt."""
MAX_QUOTE = 500
"""Last bytes of a command's stderr in an error."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL of a command."""
CLOSED = "Connection closed"
"""Message of the SDK for a lost connection; servers use its code for other errors."""
NO_ANSWER = "Server returned an error response"
"""Message of the SDK for an HTTP status without an error of the server."""
LOST = "it went away"
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
T = TypeVar("T")
# Our errors include errors of servers; the SDK's log would repeat them in the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logger = logging.getLogger(__name__)


class McpSettings(Settings):
    """Settings of an MCP server, given by a command or a URL."""

    main: ClassVar[str] = "server"

    server: str = key(
        ...,
        "A command that uses standard input and output (`python server.py`), or the URL of a server "
        "(`https://tools.example/mcp`).",
        quiet=True,
        pattern=r"\S",
    )
    folder: str = key("", "Working folder of the command; empty: the current folder.")
    environment: tuple[str, ...] = key(
        (),
        "Names of environment variables for the command, in addition to PATH, HOME, USER, LOGNAME, SHELL and TERM. "
        "It gets no others, so no keys.",
    )
    key_variable: str | None = key(
        None,
        "For a URL: environment variable (or name in `.env`) that holds its key. Not the key itself.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        quiet=True,
    )
    read_only: tuple[str, ...] = key(
        (),
        "Read-only tools that lack `readOnlyHint`. Calls of read-only tools run concurrently and are retried. "
        "Other calls run alone, without retries.",
    )
    start_seconds: float = key(30.0, "Timeout for the server to start and list its tools.", gt=0)
    seconds: float = key(120.0, "Timeout of a request, independent of the run's limit.", gt=0)

    @property
    def url(self) -> str | None:
        """URL; ``None`` for a command."""
        return self.server if self.server.startswith(("http://", "https://")) else None

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str) -> str:
        server = server.strip()
        if server.startswith(("http://", "https://")) and server_url(server).userinfo:
            raise ValueError("must not hold a password; name its variable in key_variable")
        shlex.split(server)  # raises ValueError for an open quote
        return server


@dataclass(frozen=True, slots=True)
class ToolList:
    """Tools of a server."""

    tools: tuple[Tool, ...]
    names: Mapping[str, str]
    """Server's name of each tool, which may have other characters, by our name."""
    identity: str
    """Hash of all names, descriptions, schemas and read-only flags."""


class McpSource:
    """Source of a server's tools. Raises ``UserError`` if it does not answer in time, or has unusable tools."""

    settings_type = McpSettings

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self._listed = run_now(_first_list(settings))
        self.tools = self._listed.tools
        self.identity = self._listed.identity
        arguments = {tool.name: _only_text(tool.parameters) for tool in self.tools}
        self.tags: Mapping[str, Tag] = {
            tool: Tag(argument) for tool, argument in arguments.items() if argument
        }

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """Connect; return the functions by tool name. Raises ``UserError`` without a connection or if tools changed."""
        async with aclosing(Session(self._settings, self._listed)) as session:
            try:
                await session.ready()
            except ToolUnavailable as error:
                raise UserError(str(error), "start the server again") from error
            yield {tool.name: partial(session.call, tool.name) for tool in self.tools}


def _only_text(parameters: Mapping[str, Any]) -> str | None:
    """Return the parameter of a tool with a single, or a single required, parameter of type string."""
    properties = parameters.get("properties") or {}
    names = parameters.get("required") or list(properties)
    is_text = len(names) == 1 and properties.get(names[0], {}).get("type") == "string"
    return names[0] if is_text else None


async def _first_list(settings: McpSettings) -> ToolList:
    try:
        async with aclosing(Connection(settings)) as connection:
            await connection.ready()
            return convert_tools(await connection.tools(), settings)
    except LinkLost as error:
        raise UserError(
            str(error), "start the server, or correct its command or URL; try it by hand"
        ) from error


# -- connections --------------------------------------------------------------------------------


class LinkLost(ToolUnavailable):
    """The connection was lost or never opened."""


class Session:
    """Calls of a run's tools, over one connection at a time. Close it after use."""

    def __init__(self, settings: McpSettings, listed: ToolList) -> None:
        self._settings, self._known = settings, listed
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._changed: UserError | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool. Raises ``ToolUnavailable`` for a lost server, and ``UserError`` if its tools have changed."""
        connection = await self.ready()
        try:
            result = await connection.call(self._known.names[name], dict(arguments))
        except LinkLost:
            self._drop(connection)
            raise
        except MCPError as error:
            message = error.error.message
            if error.code == types.REQUEST_TIMEOUT:
                message = f"no answer within {self._settings.seconds:g} seconds"
            elif self._settings.url and (
                error.code == types.INVALID_REQUEST or message == NO_ANSWER
            ):  # the server may not know the session
                self._drop(connection)
                raise connection.lost(message) from error
            raise ToolError(message) from error
        except (RuntimeError, ValueError) as error:  # violates the protocol or its schema
            raise ToolError(f"the tool's result can't be read: {error}") from error
        text = text_of(result)
        if result.is_error:
            raise ToolError(text or "the tool failed and does not say why")
        return text

    async def ready(self) -> "Connection":
        """Return a connection with the run's tools. Raises ``UserError`` and ``ToolUnavailable``."""
        # One caller opens and checks the connection while the others wait.
        async with self._lock:
            if self._changed is not None:
                raise self._changed
            if self._connection is not None and not self._connection.alive:
                self._drop(self._connection)
            connection = self._connection = self._connection or Connection(self._settings)
            try:
                await connection.ready()
                # Only a new connection, or an announced change, needs another look at the tools.
                if connection.checked != (changes := connection.changes):
                    current = convert_tools(await connection.tools(), self._settings)
                    # Prompts describe the tools as they were when the run started.
                    if current.identity != self._known.identity:
                        self._changed = UserError(
                            f"the tools of the MCP server `{self._settings.server}` have changed "
                            f"({_changes(self._known, current)})",
                            "restore the server's tools, or start a new run",
                        )
                        raise self._changed
                    connection.checked = changes  # a change during the listing counts
            except LinkLost:
                self._drop(connection)
                raise
            return connection

    async def aclose(self) -> None:
        """Close the connection, and stop the server if we started it."""
        if self._connection is not None:
            self._drop(self._connection)
        await asyncio.gather(*self._closing)

    def _drop(self, connection: "Connection") -> None:
        # Closing may take seconds, so it runs in the background.
        self._closing.add(asyncio.create_task(connection.aclose()))
        if self._connection is connection:
            self._connection = None


class Connection:
    """One connection, which opens in the background.

    The SDK's cancel scopes must end in the task that opened them, so one task opens the client, waits and closes it.
    Any task may call. Canceling a call cancels it at the server and leaves the connection open.
    """

    def __init__(self, settings: McpSettings) -> None:
        self.changes, self.checked = 0, -1
        """Number of announced changes of the tools, now and when they were checked."""
        self._settings = settings
        self._stderr = b""
        self._ended = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own())

    async def ready(self) -> None:
        """Wait for the handshake. Raises :class:`LinkLost`."""
        # Several callers may wait, and canceling one must not cancel the handshake.
        await asyncio.shield(self._client)

    @property
    def alive(self) -> bool:
        return not self._owner.done() and not self._ended.is_set()

    async def tools(self) -> list[types.Tool]:
        """List all tools. Raises :class:`LinkLost`."""
        rows: list[types.Tool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                while True:
                    page = await self._answer(self._client.result().list_tools(cursor=cursor))
                    rows += page.tools
                    if not (cursor := page.next_cursor):
                        return rows
        except TimeoutError as error:
            raise self._late() from error
        except (MCPError, ValueError) as error:
            raise self.lost(f"it does not list its tools: {error}") from error

    async def call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Call a tool. Raises ``MCPError`` if the server refuses, and :class:`LinkLost`."""
        seconds = self._settings.seconds
        client = self._client.result()
        return await self._answer(client.call_tool(name, arguments, read_timeout_seconds=seconds))

    async def aclose(self) -> None:
        """Close the connection, and wait until the command has ended."""
        self._ended.set()
        # Not open yet: only cancellation ends the handshake.
        if not self._client.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        self._client.exception()  # mark as retrieved

    def lost(self, reason: str) -> LinkLost:
        """Return an error with the reason and the end of the server's stderr."""
        with suppress(ValueError):  # the file is closed
            size = os.fstat(self._log.fileno()).st_size
            # ``pread`` keeps the position at which the command writes.
            self._stderr = os.pread(self._log.fileno(), MAX_QUOTE, max(0, size - MAX_QUOTE))
        wrote = " ".join(self._stderr.decode(errors="replace").split())
        text = f"the MCP server `{self._settings.server}`: {reason}"
        return LinkLost(f"{text}; it wrote: {wrote}" if wrote else text)

    def _late(self) -> LinkLost:
        return self.lost(f"it has not answered within {self._settings.start_seconds:g} seconds")

    async def _answer(self, request: Awaitable[T]) -> T:
        """Wait for the answer to a request or the end of the connection."""
        task = asyncio.ensure_future(request)
        try:
            # A request may never be answered after the connection ends, so wait for its end, too.
            await asyncio.wait({task, self._owner}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
        except MCPError as error:
            is_closed = self._settings.url is not None or error.error.message == CLOSED
            if error.code == types.CONNECTION_CLOSED and is_closed:
                raise self.lost(LOST) from error
            raise
        finally:
            if not task.done():
                # Canceling the request also cancels it at the server.
                task.cancel()
                await asyncio.wait({task})
        raise self.lost(LOST)

    async def _own(self) -> None:
        with tempfile.TemporaryFile("w+") as self._log:
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(self._settings.start_seconds):
                        transport = await self._transport(stack, self._log)
                        client = Client(transport, message_handler=self._hear, cache=None)
                        await stack.enter_async_context(client)
                    self._client.set_result(client)
                    await self._ended.wait()
            except (Exception, asyncio.CancelledError) as error:
                cause: BaseException = error
                # Task groups wrap errors; the innermost one tells the reason.
                while isinstance(cause, BaseExceptionGroup):
                    cause = cause.exceptions[0]
                reason = str(cause) or type(cause).__name__
                if not self._client.done():
                    late = isinstance(cause, TimeoutError)
                    self._client.set_exception(self._late() if late else self.lost(reason))
            finally:
                self._ended.set()

    async def _transport(self, stack: AsyncExitStack, log: TextIO) -> Any:
        s = self._settings
        if s.url is not None:
            headers = find_key(s.key_variable, Path()).header if s.key_variable else {}
            # A stream of events may be silent for long, and requests have their own time limit.
            http = httpx2.AsyncClient(
                headers=headers, timeout=httpx2.Timeout(s.start_seconds, read=None)
            )
            await stack.enter_async_context(http)
            return streamable_http_client(s.url, http_client=http, max_sse_event_size=MAX_EVENT)
        if missing := [name for name in s.environment if name not in os.environ]:
            raise UserError(f"{missing[0]} is not set", "export it, or leave it out")
        # The guard ends the command if this process dies.
        program, *arguments = guarded(shlex.split(s.server), GRACE, talk=True)
        command = StdioServerParameters(
            command=program,
            args=arguments,
            env={name: os.environ[name] for name in s.environment},
            cwd=s.folder or None,
        )
        return stdio_client(command, errlog=log)

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changes += 1


# -- conversion of tools and results ------------------------------------------------------------


def convert_tools(rows: Sequence[types.Tool], settings: McpSettings) -> ToolList:
    """Convert a server's tools. Raises ``UserError`` for an empty list or an unusable tool."""
    if not rows:
        raise UserError(f"{settings.server} has no tools", "give a server with tools")
    names = {_OTHER.sub("_", row.name)[:MAX_NAME]: row.name for row in rows}
    fields, tools = [], []
    for row in rows:
        hint = row.annotations is not None and bool(row.annotations.read_only_hint)
        reads = hint or row.name in settings.read_only
        # The hash covers the full texts, although prompts get shorter ones.
        fields.append([row.name, row.description, row.input_schema, reads])
        description = cut_text(row.description or "", MAX_DESCRIPTION)
        name = _OTHER.sub("_", row.name)[:MAX_NAME]
        tools.append(Tool(name, description, row.input_schema, alone=not reads))
    try:
        check_tools(tools)
    except UserError as error:
        raise UserError(f"{settings.server}: {error.what}", "correct the server") from error
    text = json.dumps(fields, sort_keys=True)
    return ToolList(tuple(tools), names, hashlib.sha256(text.encode()).hexdigest()[:16])


def _changes(old_list: ToolList, new_list: ToolList) -> str:
    old, new = ({tool.name: tool for tool in each.tools} for each in (old_list, new_list))
    changes = [f"gone: {name}" for name in old if name not in new]
    changes += [
        f"{'changed' if name in old else 'new'}: {name}"
        for name in new
        if new[name] != old.get(name)
    ]
    return "; ".join(changes) or "their order"


def text_of(result: types.CallToolResult) -> str:
    """Return a result as text, with a short note for each other part."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_part, result.content))


def _part(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.EmbeddedResource(resource=inner):
            return f"[resource {inner.uri}, {inner.mime_type or 'of no known type'}: not shown]"
        case types.ResourceLink():
            return f"[link to {block.uri}: {block.name}]"
    # Base64 has 4 characters for 3 bytes.
    return f"[{block.type}, {block.mime_type}, about {3 * len(block.data) // 4:,} bytes: not shown]"


# -- a server: coterie serve tools --------------------------------------------------------------

HOSTS = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
"""Allowed host headers, as protection against DNS rebinding by web pages."""
MAX_CALLS = 64
STOP_SECONDS = 3
"""Seconds for running calls to end after Ctrl-C."""
LIMITS = CallLimits(seconds=120.0)


class ToolServer:
    """Server of the tools of sources. Calls are checked and limited like calls of agents.

    Tools with sessions (``python``) have one session over standard input and output, but one per call over HTTP, where
    requests are not assigned to clients.
    """

    def __init__(self, sources: Sequence[ToolSource], limits: CallLimits = LIMITS) -> None:
        self._sources, self._limits = sources, limits
        self._tools = tuple(tool for source in sources for tool in source.tools)
        self._owners: dict[str, SessionSource] = {
            tool.name: source
            for source in sources
            if isinstance(source, SessionSource)
            for tool in source.tools
        }
        self._functions: dict[str, Function] = {}
        self._shared: dict[type, Any] = {}
        self._room = asyncio.Semaphore(MAX_CALLS)
        self.server: Server[Any] = Server(
            "coterie",
            version=coterie.__version__,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    @asynccontextmanager
    async def open(self, *, one_client: bool = False) -> AsyncIterator[None]:
        """Open the tools. Raises ``UserError`` if one can't be opened."""
        async with AsyncExitStack() as stack:
            owners = list(dict.fromkeys(self._owners.values()))
            for need in dict.fromkeys(need for owner in owners for need in owner.needs):
                self._shared[need] = await stack.enter_async_context(need())
            opening = [source.open() for source in self._sources]
            if one_client:
                opening += [owner.open_session(0, self._shared) for owner in owners]
            for opening_source in opening:
                self._functions |= await stack.enter_async_context(opening_source)
            yield

    async def listen(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Answer HTTP requests under ``/mcp`` until Ctrl-C or SIGTERM. Web pages are refused."""
        import uvicorn

        security = TransportSecuritySettings(allowed_hosts=HOSTS)
        app = self.server.streamable_http_app(
            json_response=True, stateless_http=True, transport_security=security
        )
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_SECONDS
        )
        async with self.open():
            ready()
            await uvicorn.Server(config).serve(sockets=[listener])

    async def talk(self) -> None:
        """Answer standard input until it ends."""
        async with self.open(one_client=True), stdio_server() as (read, write):
            await self.server.run(read, write, self.server.create_initialization_options())

    async def _list(self, *_: object) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=tool.name,
                description=tool.description,
                input_schema=dict(tool.parameters),
                annotations=types.ToolAnnotations(read_only_hint=not tool.alone),
            )
            for tool in self._tools
        ]
        return types.ListToolsResult(tools=tools)

    async def _call(self, _: object, request: types.CallToolRequestParams) -> types.CallToolResult:
        call = ToolCall(call_id(0), request.name, json.dumps(request.arguments or {}))
        calls = validate_calls([call], self._tools)
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._room)
                functions: Mapping[str, Function] = self._functions
                # Over HTTP nothing tells clients apart, so each call gets a session of its own.
                if request.name in self._owners and request.name not in functions:
                    session = self._owners[request.name].open_session(0, self._shared)
                    functions = await stack.enter_async_context(session)
                (result,) = await run_calls(calls, self._tools, functions, self._limits)
        except (EngineError, UserError) as error:
            # Details go into the log of this machine, not to the client.
            logger.warning("%s: %s", request.name, quote(str(error)))
            raise MCPError(types.INTERNAL_ERROR, f"{request.name} can't be reached") from error
        content = types.TextContent(text=result.text)
        return types.CallToolResult(content=[content], is_error=result.error)
