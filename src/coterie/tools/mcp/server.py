"""MCP server of our tools, over HTTP or over standard input and output: ``coterie serve tools``."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

import coterie
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.record.turn import Tool, ToolCall, call_id
from coterie.tools.calls import (
    CallLimits,
    Function,
    SessionSource,
    ToolSource,
    check_tools,
    run_calls,
    validate_calls,
)

HOSTS = ("127.0.0.1:*", "localhost:*", "[::1]:*")
"""Allowed host headers, as protection against DNS rebinding by web pages."""
MAX_CALLS = 64
GRACE = 3
"""Seconds for running calls to end after Ctrl-C."""
LIMITS = CallLimits(seconds=120.0)
logger = logging.getLogger(__name__)


class ToolServer:
    """Server of the tools of sources. Calls are checked and limited like calls of agents.

    Tools with sessions (``python``) have one session over standard input and output, but one per call over HTTP, where
    requests are not assigned to clients.
    """

    def __init__(self, sources: Sequence[ToolSource], limits: CallLimits = LIMITS) -> None:
        self._sources = sources
        self._limits = limits
        self._tools = tuple(tool for source in sources for tool in source.tools)
        check_tools(self._tools)
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
            for source in self._sources:
                self._functions |= await stack.enter_async_context(source.open())
            for owner in owners if one_client else ():
                session = owner.open_session(0, self._shared)
                self._functions |= await stack.enter_async_context(session)
            yield

    async def listen(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Answer HTTP requests under ``/mcp`` until Ctrl-C or SIGTERM. Web pages are refused."""
        security = TransportSecuritySettings(allowed_hosts=list(HOSTS))
        app = self.server.streamable_http_app(
            json_response=True, stateless_http=True, transport_security=security
        )
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE
        )
        async with self.open():
            ready()
            await uvicorn.Server(config).serve(sockets=[listener])

    async def talk(self) -> None:
        """Answer standard input until it ends."""
        async with self.open(one_client=True), stdio_server() as (read, write):
            await self.server.run(read, write, self.server.create_initialization_options())

    async def _list(self, *_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(tool) for tool in self._tools])

    async def _call(self, _: object, request: types.CallToolRequestParams) -> types.CallToolResult:
        call = ToolCall(call_id(0), request.name, json.dumps(request.arguments or {}))
        calls = validate_calls([call], self._tools)
        try:
            async with self._room, self._open_functions(request.name) as functions:
                (result,) = await run_calls(calls, self._tools, functions, self._limits)
        except (EngineError, UserError) as error:
            logger.warning("%s: %s", request.name, error)
            raise MCPError(types.INTERNAL_ERROR, f"{request.name} can't be reached") from error
        content = types.TextContent(text=result.text)
        return types.CallToolResult(content=[content], is_error=result.error)

    @asynccontextmanager
    async def _open_functions(self, name: str) -> AsyncIterator[Mapping[str, Function]]:
        if name in self._functions or name not in self._owners:
            yield self._functions
            return
        async with self._owners[name].open_session(0, self._shared) as functions:
            yield functions


def _tool(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.parameters),
        annotations=types.ToolAnnotations(read_only_hint=not tool.alone),
    )
