"""Our tools by MCP in ``coterie serve tools``: ``/mcp``, or standard input and output."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter
from starlette.routing import Route

from coterie.config.settings import key
from coterie.tools.finding import sources_of
from coterie.tools.joined import Joined
from coterie.tools.mcp.settings import need_sdk
from coterie.tools.run import CallLimits
from coterie.tools.servers.kinds import BackendSettings

LOCAL = ("127.0.0.1:*", "localhost:*", "[::1]:*")


class McpServerSettings(BackendSettings):
    """Which tools are offered."""

    tools: tuple[str, ...] = key(
        ...,
        "Names of tools, as a run has them: web_search, python, package.module:NAME.",
        min_length=1,
    )
    config: str | None = key(None, "A file that says what some of them are, as a run's.")
    calls: CallLimits = key(CallLimits(), "How calls are run.")
    hosts: tuple[str, ...] = key(
        LOCAL,
        "Hosts under whose names the server is asked (`tools.intranet:*`); requests under other names, and those of "
        "web pages, are refused.",
    )


class McpBackend:
    """Offers tools by MCP. Raises ``UserError`` for those that can't work."""

    settings_type = McpServerSettings

    def __init__(self, settings: McpServerSettings) -> None:
        need_sdk()
        from coterie.tools.mcp.offer import Offer

        sources = sources_of(settings.tools, settings.config)
        self._hosts = settings.hosts
        self._offer = Offer(Joined(dict(zip(settings.tools, sources, strict=True))), settings.calls)
        self.router = APIRouter()
        self.router.routes.append(
            Route("/mcp", endpoint=self._offer, methods=["GET", "POST", "DELETE"])
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The tools."""
        async with self._offer.open(self._hosts):
            yield

    async def talk(self) -> None:
        """Serve one client by standard input and output, until its input ends."""
        await self._offer.talk()
