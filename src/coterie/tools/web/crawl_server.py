"""Pages in ``coterie serve tools``: ``POST /crawl_page``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter

from coterie.tools.servers.kinds import BackendSettings
from coterie.tools.web.crawl import Crawl
from coterie.tools.web.crawl_settings import CrawlSettings
from coterie.tools.web.wire import CrawlAnswer, CrawlBody


class CrawlServerSettings(BackendSettings, CrawlSettings):
    """Pages behind a server."""


class CrawlBackend:
    """Reads pages for other programs. Raises ``UserError`` for a missing package, key or file."""

    settings_type = CrawlServerSettings

    def __init__(self, settings: CrawlServerSettings) -> None:
        self._crawl = Crawl(settings)
        self.router = APIRouter()
        self.router.add_api_route("/crawl_page", self._answer, methods=["POST"])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connections, processes and the cache."""
        async with self._crawl.open():
            yield

    async def _answer(self, body: CrawlBody) -> CrawlAnswer:
        goal = body.task.strip() or body.web_search_query.strip()
        return await self._crawl.crawl(body.urls, goal, body.think_content.strip())
