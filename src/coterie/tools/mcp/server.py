"""Our tools by MCP in ``coterie serve tools``: ``/mcp``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter
from starlette.routing import Route

from coterie.config.settings import key
from coterie.errors import UserError
from coterie.tools.joined import Joined
from coterie.tools.mcp.settings import need_sdk
from coterie.tools.run import CallLimits
from coterie.tools.servers.kinds import BackendSettings
from coterie.tools.source import ToolSource
from coterie.tools.web.crawl_tool import CrawlPage, CrawlPageSettings
from coterie.tools.web.search_tool import WebSearch, WebSearchSettings

LOCAL = ("127.0.0.1:*", "localhost:*", "[::1]:*")


class McpServerSettings(BackendSettings):
    """Which tools are offered."""

    search: WebSearchSettings | None = key(None, "Offers `web_search`, with these settings.")
    crawl: CrawlPageSettings | None = key(None, "Offers `crawl_page`, with these settings.")
    calls: CallLimits = key(CallLimits(), "How calls are run.")
    hosts: tuple[str, ...] = key(
        LOCAL,
        "Hosts under whose names the server is asked (`tools.intranet:*`); requests under other names, and those of "
        "web pages, are refused.",
    )


class McpBackend:
    """Offers tools by MCP. Raises ``UserError`` for none, and for those that can't work."""

    settings_type = McpServerSettings

    def __init__(self, settings: McpServerSettings) -> None:
        need_sdk()
        from coterie.tools.mcp.offer import Offer

        sources: dict[str, ToolSource] = {}
        if settings.search is not None:
            sources["search"] = WebSearch(settings.search)
        if settings.crawl is not None:
            sources["crawl"] = CrawlPage(settings.crawl)
        if not sources:
            raise UserError("no tools are offered by MCP", "give search: or crawl: with settings")
        self._hosts = settings.hosts
        self._offer = Offer(Joined(sources), settings.calls)
        self.router = APIRouter()
        self.router.routes.append(
            Route("/mcp", endpoint=self._offer, methods=["GET", "POST", "DELETE"])
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The tools."""
        async with self._offer.open(self._hosts):
            yield
