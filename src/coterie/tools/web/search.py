"""Web search: a backend behind a cache."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from coterie.config.plugins import Kind, find
from coterie.errors import UserError
from coterie.tools.web.cache import Cache
from coterie.tools.web.pages import PageFile, PageIndex, need_bm25s
from coterie.tools.web.search_settings import SearchSettings
from coterie.tools.web.wire import Hit, SearchAnswer

FEW, MANY = 10, 100
"""How many hits are asked for: outside servers charge for a query by these steps."""


class Upstream(Protocol):
    """What answers queries; a class that is made with :class:`SearchSettings` and raises ``UserError`` there."""

    identity: str
    """What its answers depend on, but not where it is."""

    def open(self) -> AbstractAsyncContextManager[None]:
        """What it needs while queries come."""
        ...

    async def search(self, query: str, count: int) -> list[Hit]:
        """At most ``count`` hits, best first. Raises ``ToolError`` and ``ToolUnavailable``."""
        ...


class CorpusSearch:
    """Search in a file of pages. Raises ``UserError`` for a file that has none."""

    def __init__(self, settings: SearchSettings) -> None:
        need_bm25s()
        if not settings.pages:
            raise UserError("there are no pages to search", "give the file: pages=FILE.jsonl")
        self._pages = PageFile.read(Path(settings.pages))
        self.identity = f"corpus-{self._pages.identity}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Make the index."""
        self._index = await asyncio.to_thread(PageIndex, self._pages)
        yield

    async def search(self, query: str, count: int) -> list[Hit]:
        """The best pages."""
        return await asyncio.to_thread(self._index.search, query, count)


BACKENDS = Kind(
    "search_backend",
    {
        "serper": "coterie.tools.web.serper:Serper",
        "corpus": "coterie.tools.web.search:CorpusSearch",
    },
)


class Search:
    """Answers queries, and keeps the answers of outside servers.

    Raises ``UserError`` for a backend that is not there or can't work.
    """

    def __init__(self, settings: SearchSettings) -> None:
        if not settings.backend:
            raise UserError("no search backend is chosen", "give backend=serper or backend=corpus")
        self._settings = settings
        self._backend: Upstream = find(BACKENDS, settings.backend).thing(settings)
        self.identity = self._backend.identity
        self._cache: Cache | None = None
        self._asked: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The backend and the cache. Raises ``UserError`` if one can't be opened."""
        s = self._settings
        if s.cache and s.backend != "corpus":
            self._cache = Cache(Path(s.cache), s.cache_seconds, s.cache_entries)
        try:
            async with self._backend.open():
                yield
        finally:
            if self._cache is not None:
                self._cache.close()

    async def search(self, query: str, count: int) -> list[Hit]:
        """At most ``count`` hits; from the cache, if that was asked for as many before.

        The same query, asked by several at once, is asked once.
        """
        query = " ".join(query.split())
        if self._cache is None:
            return await self._backend.search(query, count)
        key = f"{self.identity}\n{query}"
        turn = self._asked.setdefault(key, asyncio.Lock())
        async with turn:
            kept = await self._cache.get(key)
            if kept is not None:
                found = json.loads(kept)
                hits = SearchAnswer.model_validate(found).organic
                if len(hits) >= count or found["asked"] >= count:
                    return hits[:count]
            asked = FEW if count <= FEW and kept is None else MANY
            hits = await self._backend.search(query, asked)
            answer = {"asked": asked, "at": time.time(), **SearchAnswer(organic=hits).model_dump()}
            await self._cache.put(key, json.dumps(answer))
        return hits[:count]
