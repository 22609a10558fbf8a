"""Calls of an MCP server's tools: one connection, made again when the server is gone, and tools that stay the same."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from coterie.errors import UserError
from coterie.tools.mcp.content import listed, text_of
from coterie.tools.mcp.link import Link, LinkLost
from coterie.tools.mcp.listed import Listed, changes
from coterie.tools.mcp.settings import McpSettings
from coterie.tools.run import ToolError

LOOK_AGAIN = 30.0
"""Seconds after which the tools are listed again before a call: not every server tells when they change."""

FAULTS = (types.INTERNAL_ERROR, types.INVALID_REQUEST)
"""Codes of errors that are not the agent's fault: what a tool says against a call is in its result."""


class Session:
    """Calls of the tools that a run has. To be closed."""

    def __init__(self, settings: McpSettings, known: Listed) -> None:
        self._settings = settings
        self._known = known
        self._link: Link | None = None
        self._looked = 0.0
        self._turn = asyncio.Lock()
        self._dropped: list[Link] = []
        self._changed: UserError | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool says.

        Raises ``ToolError`` if it fails, ``ToolUnavailable`` if the server is gone (it is started again for the next
        call), ``UserError`` if its tools are others now, which no later call gets over.
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
            if error.code in FAULTS:
                if error.code == types.INVALID_REQUEST:  # the server has forgotten the session
                    self._drop(link)
                raise link.lost(error.error.message) from error
            raise ToolError(error.error.message) from error
        except (RuntimeError, ValueError) as error:  # not of the protocol, or of its schema
            raise ToolError(f"the tool's result can't be read: {error}") from error
        if result.is_error:
            raise ToolError(text_of(result) or "the tool failed and does not say why")
        return text_of(result)

    async def ready(self) -> Link:
        """A connection to a server whose tools are the run's. Raises ``UserError`` and ``ToolUnavailable``."""
        async with self._turn:
            if self._changed is not None:
                raise self._changed
            if self._link is not None and not self._link.alive:
                self._drop(self._link)
            if self._link is None:
                self._link = Link(self._settings)
            link = self._link
            try:
                await link.ready()
            except LinkLost:
                self._drop(link)
                raise
            if link.suspect or time.monotonic() - self._looked > LOOK_AGAIN:
                await self._look(link)
            return link

    async def close(self) -> None:
        """End the connection, and the server if it is ours."""
        if self._link is not None:
            self._drop(self._link)
        await asyncio.gather(*(link.close() for link in self._dropped))

    async def _look(self, link: Link) -> None:
        """List the tools again. A change that the server reports in the meantime counts."""
        link.suspect = False
        try:
            now = listed(await link.tools(), self._settings.read_only, self._settings.server)
        except UserError as error:
            self._changed = error
            raise
        except (MCPError, ValueError) as error:
            self._drop(link)
            raise link.lost(f"it does not list its tools: {error}") from error
        except BaseException as error:
            link.suspect = True
            if isinstance(error, LinkLost):
                self._drop(link)
            raise
        if now.identity != self._known.identity:
            self._changed = UserError(
                f"the tools of the MCP server `{self._settings.server}` have changed ({changes(self._known, now)})",
                "a run's tools stay the same: give it the server as it was, or begin another run",
            )
            raise self._changed
        self._looked = time.monotonic()

    def _drop(self, link: Link) -> None:
        link.drop()
        self._dropped = [one for one in self._dropped if one.open]
        if link not in self._dropped:
            self._dropped.append(link)
        if self._link is link:
            self._link = None


async def first_list(settings: McpSettings) -> Listed:
    """The tools of a server, looked at once. Raises ``UserError`` if it can't be asked."""
    try:
        link = Link(settings)
        try:
            await link.ready()
            return listed(await link.tools(), settings.read_only, settings.server)
        finally:
            await link.close()
    except (LinkLost, MCPError, ValueError) as error:
        raise UserError(
            str(error), "start the server, or correct its command or URL; try it by hand"
        ) from error
