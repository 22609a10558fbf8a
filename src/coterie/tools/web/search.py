"""Tool ``web_search``, with Serper (google.serper.dev) or a file of pages as backend, and a cache of answers."""

import asyncio
import json
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coterie.config.folders import sha256
from coterie.config.settings import Settings, key, server_url
from coterie.datasets.files import numbered
from coterie.engines.endpoint import Limits, find_key, retry_after
from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.record.turn import Tool, digest
from coterie.tools.calls import Function, ToolError, ToolUnavailable
from coterie.tools.retrieval.index import best, known_words, need_bm25s
from coterie.tools.tags import Tag

FEW, MANY = 10, 100
"""Numbers of hits per request, the steps at which providers charge."""
MAX_QUERY = 2000
"""Characters."""
SNIPPET = 300
"""Characters of the snippet of a local page."""
RETRY_STATUSES = (408, 425, 429)
"""Temporary failures with a status below 500."""
KEY_STATUSES = (401, 402, 403)
"""Statuses of a wrong key or missing credit, which fail all queries."""
MAX_QUOTE = 300
"""Characters of a response in an error."""
WAIT = 30.0
"""Seconds to wait for another process that writes to the cache."""
TOOL = Tool(
    "web_search",
    "Searches the web; gives titles, links and snippets of the pages that fit best.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What to search for."}},
        "required": ["query"],
        "additionalProperties": False,
    },
)


class WebSearchSettings(Settings):
    """Settings of the tool: backend and cache."""

    backend: Literal["serper", "corpus"] = key(
        ..., "Backend: serper (Google's results, needs a key), or corpus (a file of pages)."
    )
    num: int = key(10, "Maximum hits of a query.", ge=1, le=MANY, source="GAP's code")
    upstream: str = key(
        "https://google.serper.dev/search", "For serper: URL of the server.", quiet=True
    )
    key_variable: str = key(
        "SERPER_API_KEY",
        "For serper: environment variable (or name in `.env`) that holds the key. Not the key itself.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        quiet=True,
    )
    requests_per_minute: float | None = key(
        None, "For serper: maximum queries in any minute.", ge=1
    )
    upstream_concurrency: int = key(8, "For serper: concurrent queries.", ge=1)
    upstream_seconds: float = key(60.0, "For serper: time limit of one attempt, in seconds.", gt=0)
    upstream_retries: int = key(3, "For serper: retries after temporary failures.", ge=0, le=20)
    pages: str = key(
        "", "For corpus: a JSONL file of rows with url, title, text and optional date."
    )
    cache: str = key("", "Cache file for answers; empty: no cache. Not for corpus.")
    cache_seconds: float = key(
        3600.0, "Seconds that an answer stays in the cache.", gt=0, source="GAP's search server"
    )

    @field_validator("upstream")
    @classmethod
    def _check_upstream(cls, url: str) -> str:
        if server_url(url).userinfo:
            raise ValueError("must not hold a password or key")
        return url.rstrip("/")


class Hit(BaseModel):
    """Search hit."""

    model_config = ConfigDict(extra="ignore")
    title: str = ""
    link: str
    snippet: str = ""
    date: str | None = None
    source: str | None = None


class SearchAnswer(BaseModel):
    """Serper's answer: hits, best first."""

    model_config = ConfigDict(extra="ignore")
    organic: list[Hit] = Field(default_factory=list)


class WebSearch:
    """Source of the tool. Raises ``UserError`` for an unusable backend."""

    settings_type = WebSearchSettings

    def __init__(self, settings: WebSearchSettings) -> None:
        self._settings = settings
        self._backend = (Serper if settings.backend == "serper" else CorpusSearch)(settings)
        self.tools = (TOOL,)
        self.tags: Mapping[str, Tag] = {TOOL.name: Tag("query", "|")}
        self.identity = digest("web_search", settings.num, self._backend.identity)
        self._cache: Cache | None = None
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """Open the backend and the cache. Raises ``UserError`` if one can't be opened."""
        s = self._settings
        async with AsyncExitStack() as stack:
            if s.cache and s.backend != "corpus":
                self._cache = Cache(Path(s.cache), s.cache_seconds)
                stack.callback(self._cache.close)
            await stack.enter_async_context(self._backend.open())
            yield {TOOL.name: self._run}

    async def search(self, query: str, count: int) -> list[Hit]:
        """Return at most ``count`` hits, from the cache if its entry has enough.

        Concurrent equal queries share one request.
        """
        query = " ".join(query.split())
        if self._cache is None:
            return await self._backend.search(query, count)
        key = f"{self._backend.identity}\n{query}"
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            entry = await self._cache.get(key)
            if entry is not None:
                answer = json.loads(entry)
                hits = SearchAnswer.model_validate(answer).organic
                if len(hits) >= count or answer["asked"] >= count:
                    return hits[:count]
            limit = FEW if count <= FEW and entry is None else MANY
            hits = await self._backend.search(query, limit)
            answer = {"asked": limit, **SearchAnswer(organic=hits).model_dump()}
            await self._cache.put(key, json.dumps(answer))
        return hits[:count]

    async def _run(self, arguments: Mapping[str, Any]) -> str:
        query = str(arguments["query"]).strip()
        if not query:
            raise ToolError("the query is empty")
        if len(query) > MAX_QUERY:
            raise ToolError(f"the query is longer than {MAX_QUERY} characters")
        return observation(query, await self.search(query, self._settings.num))


def observation(query: str, hits: Sequence[Hit]) -> str:
    if not hits:
        return f"No results found for query: {query}"
    blocks = []
    for place, hit in enumerate(hits, 1):
        lines = [
            f"{place}. [{hit.title}]({hit.link})",
            *([f"Date published: {hit.date}"] if hit.date else []),
            *([f"Source: {hit.source}"] if hit.source else []),
            hit.link,
            hit.snippet,
        ]
        blocks.append("\n".join(lines).rstrip())
    return f"Found {len(hits)} results:\n\n## Web Results\n" + "\n\n".join(blocks)


class Serper:
    """Backend of Serper or a compatible server. Raises ``UserError`` if the key is not set."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._settings = settings
        self._key = find_key(settings.key_variable, Path())
        self.identity = "serper"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open connections and shared limits."""
        s = self._settings
        self._limits = Limits(s.requests_per_minute, None)
        self._room = asyncio.Semaphore(s.upstream_concurrency)
        async with httpx2.AsyncClient(
            headers=self._key.in_header("X-API-KEY"), timeout=s.upstream_seconds
        ) as self._client:
            yield

    async def search(self, query: str, count: int) -> list[Hit]:
        """Return hits. Raises ``ToolUnavailable`` after the last retry, ``ToolError`` for a refused query."""
        failure = ""
        async with self._room:
            for number in range(self._settings.upstream_retries + 1):
                if number:
                    await asyncio.sleep(min(30.0, 2.0 ** (number - 1)) * random.uniform(0.5, 1))
                await self._limits.admit(0)
                answer = await self._try(query, count)
                if not isinstance(answer, str):
                    return answer
                failure = answer
        raise ToolUnavailable(f"web search at {self._settings.upstream}: {failure}")

    async def _try(self, query: str, count: int) -> list[Hit] | str:
        url, seconds = self._settings.upstream, self._settings.upstream_seconds
        try:
            async with asyncio.timeout(seconds):
                answer = await self._client.post(url, json={"q": query, "num": count})
        except (TimeoutError, httpx2.TimeoutException):
            return f"no answer within {seconds:g} seconds"
        except httpx2.RequestError as error:
            return f"no connection: {error or type(error).__name__}"
        quote = self._key.redact(" ".join(answer.text[: 10 * MAX_QUOTE].split()))[:MAX_QUOTE]
        if answer.status_code in KEY_STATUSES:
            raise EngineGone(f"web search at {url}: status {answer.status_code}: {quote}")
        if answer.status_code in RETRY_STATUSES or answer.status_code >= 500:
            wait = retry_after(answer.headers.get("Retry-After"), answer.headers.get("Date"))
            if wait is not None:
                self._limits.pause(wait)
            return f"status {answer.status_code}: {quote}"
        if not answer.is_success:
            raise ToolError(f"the query is refused: {quote}")
        try:
            return SearchAnswer.model_validate(json.loads(answer.content)).organic[:count]
        except (ValueError, ValidationError):
            return f"the answer is not of Serper's form: {quote}"


# -- a file of pages instead of the web ---------------------------------------------------------


class PageRow(BaseModel):
    """Row of a page: ``{"url": "https://example.org/oslo", "title": "Oslo", "text": "..."}``. ``date`` is optional."""

    model_config = ConfigDict(extra="ignore")

    url: str = Field(min_length=1)
    title: str
    text: str = Field(min_length=1)
    date: str | None = None


class PageFile:
    """Pages of a file, in memory. Raises ``UserError`` for a bad row, and for two pages with one URL."""

    def __init__(self, file: Path) -> None:
        self.rows: dict[str, PageRow] = {}
        for place, fields in numbered(file):
            try:
                row = PageRow.model_validate(fields)
            except ValidationError as error:
                raise UserError(
                    f"{file}, {place}, is not a page: {error.errors()[0]['msg']}",
                    'a row is {"url": "https://example.org/oslo", "title": "Oslo", "text": "Oslo is ..."}',
                ) from error
            if row.url in self.rows:
                raise UserError(f"{file} has two pages of {row.url}", "remove one of them")
            self.rows[row.url] = row
        self.identity = sha256(file)[:16]


class CorpusSearch:
    """Backend with BM25 over titles and texts of a file of pages. Raises ``UserError`` without pages."""

    def __init__(self, settings: WebSearchSettings) -> None:
        need_bm25s()
        if not settings.pages:
            raise UserError("there are no pages to search", "give the file: pages=FILE.jsonl")
        pages = PageFile(Path(settings.pages))
        self._rows = list(pages.rows.values())
        self.identity = f"corpus-{pages.identity}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        self._index = await asyncio.to_thread(self._make)
        yield

    async def search(self, query: str, count: int) -> list[Hit]:
        """Return the best pages that share a word with the query, ties in the file's order."""
        return await asyncio.to_thread(self._search, query, count)

    def _make(self) -> Any:
        index = need_bm25s().BM25()
        texts = [f"{row.title} {row.text}" for row in self._rows]
        index.index(need_bm25s().tokenize(texts, show_progress=False), show_progress=False)
        return index

    def _search(self, query: str, count: int) -> list[Hit]:
        words = known_words(self._index, query)
        if not words:
            return []
        places = best(self._index.get_scores(words), count)
        return [_hit(self._rows[place], words) for place in places.tolist()]


def _hit(row: PageRow, words: list[str]) -> Hit:
    lines = [line.strip() for line in row.text.splitlines() if line.strip()]
    line = max(lines, key=lambda line: sum(word in line.lower() for word in words), default="")
    return Hit(title=row.title, link=row.url, snippet=line[:SNIPPET], date=row.date)


# -- the cache of searches and of pages ---------------------------------------------------------


class Cache:
    """Cache of texts by key in a SQLite file, which processes may share. Entries expire after ``seconds``.

    Close it after use. Raises ``UserError`` for an unusable file. ``now`` is the clock, in seconds.
    """

    def __init__(self, file: Path, seconds: float, now: Callable[[], float] = time.time) -> None:
        self._seconds, self._now = seconds, now
        self._lock = threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(
                file, timeout=WAIT, check_same_thread=False, isolation_level=None
            )
            tables = self._base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if {name for (name,) in tables} - {"kept"}:
                raise sqlite3.DatabaseError("it is the file of another program")
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, at REAL NOT NULL, text TEXT NOT NULL)"
            )
            self._base.execute("DELETE FROM kept WHERE at <= ?", (now() - seconds,))
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"the cache {file} can't be used: {error}", "give another file, or remove it"
            ) from error

    async def get(self, key: str) -> str | None:
        """Return the text of a key, or None if it is missing or expired."""
        rows = await asyncio.to_thread(
            self._execute, "SELECT at, text FROM kept WHERE key = ?", key
        )
        return rows[0][1] if rows and self._now() - rows[0][0] < self._seconds else None

    async def put(self, key: str, text: str) -> None:
        """Store a text; replaces the previous one."""
        add = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)"
        await asyncio.to_thread(self._execute, add, key, self._now(), text)

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def _execute(self, statement: str, *values: object) -> list[Any]:
        with self._lock:
            return self._base.execute(statement, values).fetchall()
