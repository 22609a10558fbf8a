"""Web search in ``coterie serve tools``: ``POST /search``, as Serper's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter

from coterie.tools.run import ToolError
from coterie.tools.servers.answers import RequestRefused
from coterie.tools.servers.kinds import BackendSettings
from coterie.tools.web.search import Search
from coterie.tools.web.search_settings import SearchSettings
from coterie.tools.web.wire import SearchAnswer, SearchBody


class SearchServerSettings(BackendSettings, SearchSettings):
    """A search backend behind a server."""


class SearchBackend:
    """Answers queries of other programs. Raises ``UserError`` for a backend that can't work."""

    settings_type = SearchServerSettings

    def __init__(self, settings: SearchServerSettings) -> None:
        self._search = Search(settings)
        self.router = APIRouter()
        self.router.add_api_route("/search", self._answer, methods=["POST"])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The backend and the cache."""
        async with self._search.open():
            yield

    async def _answer(self, body: SearchBody) -> dict[str, Any]:
        try:
            hits = await self._search.search(body.q, body.num)
        except ToolError as error:
            raise RequestRefused(400, str(error), param="q") from error
        return SearchAnswer(organic=hits).dump(body.q, body.num)
