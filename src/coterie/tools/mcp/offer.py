"""Our tools as an MCP server: any source of tools, over HTTP or by standard input and output."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.types import Receive, Scope, Send

import coterie
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.tools.checking import check_tools, checked
from coterie.tools.run import CallLimits, Function, run_calls
from coterie.tools.source import ToolSource
from coterie.trajectories.calls import Tool, ToolCall, call_id


class Offer:
    """A source's tools as a server; calls are checked and limited as those of our own agents are."""

    def __init__(self, source: ToolSource, limits: CallLimits) -> None:
        check_tools(source.tools)
        self._source = source
        self._limits = limits
        self._functions: Mapping[str, Function] = {}
        self._manager: StreamableHTTPSessionManager | None = None
        self.server: Server[Any] = Server(
            "coterie",
            version=coterie.__version__,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    @asynccontextmanager
    async def open(self, hosts: tuple[str, ...]) -> AsyncIterator[None]:
        """Answer HTTP requests that come under these names of hosts (``localhost:*``), and not from web pages.

        Raises ``UserError`` if the tools can't be opened.
        """
        security = TransportSecuritySettings(allowed_hosts=list(hosts))
        manager = StreamableHTTPSessionManager(
            self.server, json_response=True, stateless=True, security_settings=security
        )
        async with self._source.open() as self._functions, manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP, as an ASGI application."""
        if self._manager is None:
            raise RuntimeError("the tools are not open")
        await self._manager.handle_request(scope, receive, send)

    async def talk(self) -> None:
        """Answer what comes in by standard input, until it ends. Raises ``UserError`` as :meth:`open` does."""
        async with self._source.open() as self._functions, stdio_server() as (read, write):
            await self.server.run(read, write, self.server.create_initialization_options())

    async def _list(self, *_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_told(tool) for tool in self._source.tools])

    async def _call(self, _: object, asked: types.CallToolRequestParams) -> types.CallToolResult:
        call = ToolCall(call_id(0), asked.name, json.dumps(asked.arguments or {}))
        calls = checked([call], self._source.tools)
        try:
            (result,) = await run_calls(calls, self._source.tools, self._functions, self._limits)
        except (EngineError, UserError) as error:
            raise MCPError(types.INTERNAL_ERROR, f"{asked.name} can't be reached") from error
        content = types.TextContent(text=result.text)
        return types.CallToolResult(content=[content], is_error=result.error)


def _told(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=not tool.alone)
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.parameters),
        annotations=hints,
    )
