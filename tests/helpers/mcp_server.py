"""An MCP server made with the SDK, with tools that behave and tools that do not: ``python mcp_server.py [PORT]``."""

import asyncio
import os
import sys

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

server = MCPServer("side", log_level="ERROR")
looks = types.ToolAnnotations(read_only_hint=True)


@server.tool(annotations=looks)
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool(annotations=looks)
async def echo(text: str) -> str:
    return text


@server.tool()
def fail(why: str) -> str:
    raise ToolError(why)


@server.tool()
def refuse(code: int) -> str:
    """Answers with an error of JSON-RPC."""
    raise MCPError(code, "the disk is full")


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(3)


@server.tool(annotations=looks)
def process() -> str:
    return str(os.getpid())


@server.tool()
def long(characters: int) -> str:
    return "begin" + "x" * characters + "end"


@server.tool(annotations=looks)
async def never() -> str:
    await asyncio.sleep(600)
    return ""


@server.tool(annotations=looks, structured_output=False)
def picture() -> list[types.ContentBlock]:
    image = types.ImageContent(data="AAAA" * 100, mime_type="image/png")
    return [types.TextContent(text="a red square:"), image]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
