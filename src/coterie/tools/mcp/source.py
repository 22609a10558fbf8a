"""Tools of any MCP server, as a source of tools.

source = McpSource(McpSettings(server="python server.py"))
async with source.open() as functions:
    print(await functions["add"]({"a": 1, "b": 2}))
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from coterie.errors import UserError
from coterie.tools.mcp.listed import Listed
from coterie.tools.mcp.settings import McpSettings, need_sdk
from coterie.tools.run import Function, ToolUnavailable
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool


class McpSource:
    """The tools that the server lists when this is made, which are those of the run.

    Raises ``UserError`` for a server that does not answer in time, and for tools that no model can be given.
    """

    settings_type = McpSettings

    def __init__(self, settings: McpSettings) -> None:
        need_sdk()
        self._settings = settings
        # A thread of its own: this may be called where a loop runs.
        with ThreadPoolExecutor(1) as thread:
            self._listed: Listed = thread.submit(self._list).result()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The server's tools, under names that every template takes."""
        return self._listed.tools

    @property
    def tags(self) -> Mapping[str, Tag]:
        """Of tools that one text is enough for."""
        return self._listed.tags

    @property
    def identity(self) -> str:
        """A hash of the tools' names, descriptions and schemas."""
        return self._listed.identity

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """What runs the calls. Raises ``UserError`` if the server is not there, or has other tools now."""
        from coterie.tools.mcp.session import Session

        session = Session(self._settings, self._listed)
        try:
            try:
                await session.ready()
            except ToolUnavailable as error:
                raise UserError(str(error), "start the server again") from error
            yield {tool.name: partial(session.call, tool.name) for tool in self.tools}
        finally:
            await session.close()

    def _list(self) -> Listed:
        from coterie.tools.mcp.session import first_list

        return asyncio.run(first_list(self._settings))
