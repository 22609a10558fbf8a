"""Tools that search: ``wiki_search`` in passages or at a retrieval server, and ``web_search``.

tool = RetrieverTool(RetrieverSettings(corpus="passages"))
async with tool.open() as functions:
    text = await functions["wiki_search"]({"query": "capital of Norway"})
"""

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from weakref import WeakValueDictionary

import httpx2
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from coterie.config.folders import expanded, sha256
from coterie.config.settings import Settings, key, server_url
from coterie.datasets.files import numbered
from coterie.engines.endpoint import (
    ApiKey,
    FinalFault,
    Limits,
    TransientFault,
    backoff,
    find_key,
    request,
)
from coterie.engines.protocol import IDLE_SECONDS, EngineGone, cancel
from coterie.errors import UserError
from coterie.record.turn import Tool, digest
from coterie.tools.calls import Function, Tag, ToolError, ToolUnavailable
from coterie.tools.retrieval import (
    Passage,
    Retriever,
    SearchSettings,
    best,
    check_index,
    index_of,
    known_words,
    need_bm25s,
)

T = TypeVar("T")
CONNECT_SECONDS = 5.0
MAX_REQUESTS = 16
REFUSAL_STATUSES = (400, 413, 422)
FIRST_PAUSE, WEB_PAUSE = 0.2, 1.0
"""Seconds between two attempts; the pause doubles."""
NOTHING = "No passages were found."
QUERY = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What to search for."}},
    "required": ["query"],
}
_HEADER = re.compile(r'^Doc \d+ \(Title: "(.*)"\)$', re.MULTILINE)
Answer = list[Passage] | ToolError
Search = Callable[[Sequence[str]], Awaitable[Sequence[Answer]]]


class RetrieverSettings(SearchSettings):
    """Settings of a tool that searches passages at ``url`` or in ``corpus``."""

    name: str = key("wiki_search", "The tool's name.", pattern=r"^[A-Za-z0-9_-]+$")
    description: str = key(
        "Finds passages of an encyclopedia that fit a query.", "Description of the tool in prompts."
    )
    url: str | None = key(None, "A retrieval server, such as http://127.0.0.1:8000/retrieve.")
    corpus: str | None = key(
        None,
        "Local passages: a folder of `coterie data index`, or a JSONL file of rows with `contents`, or `title` and "
        "`text`, which is indexed once.",
    )
    topk: int = key(3, "Passages of a query.", source="Search-R1", ge=1, le=100)
    seconds: float = key(8.0, "For `url`: time limit of one attempt, in seconds.", gt=0)
    tries: int = key(3, "For `url`: attempts of a request after temporary failures.", ge=1)
    window_ms: float = key(2.0, "Milliseconds that a call waits to be batched with others.", ge=0)

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and not server_url(url).path.strip("/"):
            raise ValueError(f"must be the full address, such as {url}/retrieve")
        return url

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.url is None) == (self.corpus is None):
            raise ValueError("give one of url and corpus")
        if self.url is not None and self.search == "dense":
            raise ValueError("search is for corpus; configure the server instead")
        return self

    @property
    def place(self) -> Path:
        return expanded(self.corpus or "")


class RetrieverTool:
    """Source of one search tool. Raises ``UserError`` if passages can't be searched or no server answers."""

    settings_type = RetrieverSettings

    def __init__(self, settings: RetrieverSettings) -> None:
        self.settings = settings
        self.tools = (Tool(settings.name, settings.description, QUERY),)
        self.tags: Mapping[str, Tag] = {settings.name: Tag("query", "|")}
        self.identity = digest("retriever", settings.name, str(settings.topk), self._content())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        s = self.settings
        # Local searches run one batch at a time; a server answers several requests at once.
        async with (
            self._open_search() as search,
            aclosing(Batches(search, s.window_ms / 1000, MAX_REQUESTS if s.url else 1)) as batches,
        ):

            async def do(arguments: Mapping[str, Any]) -> str:
                query = str(arguments["query"]).strip()
                if not query:
                    raise ToolError("the query is empty")
                answer = await batches.ask(query)
                if isinstance(answer, ToolError):
                    # Callers share the answer, so each raises an error of its own.
                    raise ToolError(str(answer))
                return format_passages(answer)

            yield {s.name: do}

    def _content(self) -> str:
        """Return a hash of the passages; empty for a server."""
        s = self.settings
        if s.url is not None:
            try:
                # Any status will do, since most servers answer only POST requests.
                httpx2.get(s.url, timeout=CONNECT_SECONDS, trust_env=False)
            except (httpx2.HTTPError, OSError) as error:
                raise UserError(
                    f"no retrieval server answers at {s.url}: {error}",
                    "start it, or correct the address",
                ) from error
            return ""
        if not s.place.is_file():
            return check_index(s.place, s)
        if s.search == "dense":
            raise UserError(
                f"{s.place} has no vectors",
                f"make an index: coterie data index {s.place} FOLDER --dense MODEL",
            )
        return sha256(s.place)

    @asynccontextmanager
    async def _open_search(self) -> AsyncIterator[Search]:
        s = self.settings
        if s.url is not None:
            async with httpx2.AsyncClient(
                timeout=httpx2.Timeout(s.seconds, connect=min(s.seconds, CONNECT_SECONDS)),
                limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS),
                trust_env=False,
            ) as http:
                yield partial(_ask_server, http, s)
            return
        folder = await asyncio.to_thread(index_of, s.place)
        retriever = await asyncio.to_thread(Retriever, folder, s)

        async def here(queries: Sequence[str]) -> list[Answer]:
            hits = await asyncio.to_thread(retriever.search, queries, s.topk)
            return [[passage for passage, _ in hit_list] for hit_list in hits]

        yield here


def format_passages(passages: Sequence[Passage]) -> str:
    blocks = []
    for number, passage in enumerate(passages, 1):
        title = f' (Title: "{passage.title}")' if passage.title else ""
        blocks.append(f"Doc {number}{title}\n{passage.text}")
    return "\n\n".join(blocks) or NOTHING


def titles_in(text: str) -> tuple[str, ...]:
    """Return the titles in a text of :func:`format_passages`, which may be truncated."""
    return tuple(_HEADER.findall(text))


class Batches:
    """Batches of queries that arrive within ``window`` seconds; equal queries are searched once. For one event loop."""

    def __init__(self, search: Search, window: float, at_once: int) -> None:
        self._search, self._window = search, window
        self._queries: dict[str, None] = {}
        self._batch: asyncio.Task[dict[str, Answer]] | None = None
        """Search of ``_queries``, which have not been sent."""
        self._room = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[dict[str, Answer]]] = set()

    async def ask(self, query: str) -> Answer:
        """Return the answer to one query. Raises the exceptions of its search."""
        self._queries[query] = None
        # The first query of a batch starts its timer.
        if self._batch is None:
            self._batch = asyncio.create_task(self._run())
            self._tasks.add(self._batch)
            self._batch.add_done_callback(self._tasks.discard)
        # A canceled caller must not cancel the search that others wait for.
        answers = await asyncio.shield(self._batch)
        return answers[query]

    async def aclose(self) -> None:
        await cancel(self._tasks)

    async def _run(self) -> dict[str, Answer]:
        await asyncio.sleep(self._window)
        # Queries that arrive from now on go into the next batch.
        queries, self._queries, self._batch = list(self._queries), {}, None
        async with self._room:
            return dict(zip(queries, await self._search(queries), strict=True))


# -- servers ------------------------------------------------------------------------------------


async def post(
    http: httpx2.AsyncClient,
    url: str,
    body: Mapping[str, Any],
    tries: int,
    read: Callable[[bytes], T],
    key: ApiKey | None = None,
    limits: Limits | None = None,
    pause: float = FIRST_PAUSE,
) -> T:
    """Post JSON; return what ``read`` makes of the answer. Raises ``FinalFault`` for a refusal.

    Temporary failures and answers for which ``read`` raises ``ValueError`` are tried again, after ``pause`` seconds at
    first. A pause that the server requests stops all requests of ``limits``. Raises ``ToolUnavailable`` after the last
    try.
    """
    fault, limits = "", limits or Limits(None, None)
    for attempt in range(tries):
        if attempt:
            await asyncio.sleep(backoff(attempt - 1, pause))
        await limits.admit(0)
        try:
            return read((await request(http, "POST", url, body, key=key)).content)
        except TransientFault as error:
            fault = str(error)
            limits.pause(error.retry_after or 0.0)
        except ValueError:
            # Errors of pydantic are ValueErrors, too.
            fault = "a broken answer"
    raise ToolUnavailable(f"{url}: {fault}")


class _Document(BaseModel):
    contents: str
    id: str | int = ""


class _Scored(BaseModel):
    document: _Document


class _Reply(BaseModel):
    """Reply of a retrieval server, with or without scores."""

    result: list[list[_Scored | _Document]]


async def _ask_server(
    http: httpx2.AsyncClient, s: RetrieverSettings, queries: Sequence[str]
) -> list[Answer]:
    """Return passages, or a refusal, of each query at a server of Search-R1's protocol. Raises ``ToolUnavailable``."""

    def read(content: bytes) -> list[Answer]:
        rows = _Reply.model_validate_json(content).result
        if len(rows) != len(queries):
            raise ValueError(f"{len(rows)} results for {len(queries)} queries")
        documents = [
            [
                document.document if isinstance(document, _Scored) else document
                for document in row[: s.topk]
            ]
            for row in rows
        ]
        return [
            [Passage(str(document.id), document.contents) for document in row] for row in documents
        ]

    assert s.url is not None
    body = {"queries": list(queries), "topk": s.topk, "return_scores": True}
    try:
        return await post(http, s.url, body, s.tries, read)
    except FinalFault as error:
        if error.status not in REFUSAL_STATUSES:
            raise ToolUnavailable(f"{s.url}: {error}") from error
        refusal = ToolError(f"the query was refused: {error}")
    if len(queries) == 1:
        return [refusal]
    # The server refused the batch, so ask each query alone to find out which one it refuses.
    alone = await asyncio.gather(*(_ask_server(http, s, [query]) for query in queries))
    return [passages for (passages,) in alone]


# -- web_search ---------------------------------------------------------------------------------

MAX_QUERY = 2000
SNIPPET = 300
KEY_STATUSES = (401, 402, 403)
"""Statuses of a wrong key or missing credit, which fail all queries."""
WEB_TOOL = Tool(
    "web_search",
    "Searches the web; gives titles, links and snippets of the pages that fit best.",
    {**QUERY, "additionalProperties": False},
)


class WebSearchSettings(Settings):
    """Settings of the tool: backend and cache."""

    backend: Literal["serper", "corpus"] = key(
        ..., "Backend: serper (Google's results, needs a key), or corpus (a file of pages)."
    )
    num: int = key(10, "Maximum hits of a query.", ge=1, le=100, source="GAP's code")
    upstream: str = key(
        "https://google.serper.dev/search", "For serper: URL of the server.", quiet=True
    )
    key_variable: str = key(
        "SERPER_API_KEY",
        "For serper: environment variable (or name in `.env`) that holds the key. Not the key itself.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        quiet=True,
    )
    requests_per_minute: float | None = key(None, "For serper: queries in any minute.", ge=1)
    upstream_concurrency: int = key(8, "For serper: concurrent queries.", ge=1)
    upstream_seconds: float = key(60.0, "For serper: time limit of one attempt, in seconds.", gt=0)
    upstream_retries: int = key(3, "For serper: retries after temporary failures.", ge=0, le=20)
    pages: str = key("", "For corpus: a JSONL file of rows with url, title, text and maybe date.")
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


class WebHit(BaseModel):
    """Hit of a web search."""

    title: str = ""
    link: str
    snippet: str = ""
    date: str | None = None
    source: str | None = None


class SearchAnswer(BaseModel):
    """Serper's answer: hits, best first."""

    organic: list[WebHit] = Field(default_factory=list)


class WebSearch:
    """Source of the tool. Raises ``UserError`` for a missing key, package or file of pages."""

    settings_type = WebSearchSettings

    def __init__(self, settings: WebSearchSettings) -> None:
        self._settings = s = settings
        backend = s.backend
        if s.backend == "serper":
            self._key = find_key(s.key_variable, Path())
        else:
            need_bm25s()
            pages = PageFile(Path(s.pages))
            self._rows = list(pages.rows.values())
            backend = f"corpus-{pages.identity}"  # type: ignore[assignment]
        self.tools = (WEB_TOOL,)
        self.tags: Mapping[str, Tag] = {WEB_TOOL.name: Tag("query", "|")}
        self.identity = digest("web_search", s.num, backend)
        self._cache: Cache | None = None
        # A lock disappears when no query waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """Open the backend and the cache. Raises ``UserError`` for a cache that can't be used."""
        s = self._settings
        async with AsyncExitStack() as stack:
            if s.backend == "serper":
                self._limits = Limits(s.requests_per_minute, None)
                self._room = asyncio.Semaphore(s.upstream_concurrency)
                client = httpx2.AsyncClient(
                    headers=self._key.in_header("X-API-KEY"), timeout=s.upstream_seconds
                )
                self._client = await stack.enter_async_context(client)
                if s.cache:
                    self._cache = Cache(Path(s.cache), s.cache_seconds)
                    stack.callback(self._cache.close)
            else:
                texts = [f"{row.title} {row.text}" for row in self._rows]
                self._index = need_bm25s().BM25()
                tokens = need_bm25s().tokenize(texts, show_progress=False)
                await asyncio.to_thread(self._index.index, tokens, show_progress=False)
            yield {WEB_TOOL.name: self._run}

    async def _run(self, arguments: Mapping[str, Any]) -> str:
        # Equal queries with other spacing share an entry of the cache.
        query = " ".join(str(arguments["query"]).split())
        if not query:
            raise ToolError("the query is empty")
        if len(query) > MAX_QUERY:
            raise ToolError(f"the query is longer than {MAX_QUERY} characters")
        return observation(query, await self.search(query))

    async def search(self, query: str) -> list[WebHit]:
        """Return hits, from the cache if they are there. Concurrent equal queries share one request."""
        if self._settings.backend == "corpus":
            return self._search_pages(query)
        if self._cache is None:
            return await self._ask_serper(query)
        key = f"serper {self._settings.num}\n{query}"
        # The second of two equal queries waits here and then finds the first one's answer.
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (entry := await self._cache.get(key)) is not None:
                return SearchAnswer.model_validate_json(entry).organic
            hits = await self._ask_serper(query)
            await self._cache.put(key, SearchAnswer(organic=hits).model_dump_json())
        return hits

    async def _ask_serper(self, query: str) -> list[WebHit]:
        """Return hits. Raises ``ToolUnavailable`` after the last retry, ``ToolError`` for a refused query."""
        s = self._settings

        def read(content: bytes) -> list[WebHit]:
            return SearchAnswer.model_validate_json(content).organic[: s.num]

        body, tries = {"q": query, "num": s.num}, s.upstream_retries + 1
        try:
            async with self._room:
                return await post(
                    self._client, s.upstream, body, tries, read, self._key, self._limits, WEB_PAUSE
                )
        except FinalFault as error:
            # A wrong key fails every query, so the run must end instead of scoring 0.
            if error.status in KEY_STATUSES:
                raise EngineGone(f"web search at {s.upstream}: {error}") from error
            raise ToolError(f"the query is refused: {error}") from error

    def _search_pages(self, query: str) -> list[WebHit]:
        """Return the best pages that share a word with the query, ties in the file's order."""
        words = known_words(self._index, query)
        if not words:
            return []
        hits = []
        for index in best(self._index.get_scores(words), self._settings.num).tolist():
            row = self._rows[index]
            lines = [line.strip() for line in row.text.splitlines() if line.strip()]
            # The line with most words of the query is the snippet.
            line = max(lines, key=lambda line: sum(word in line.lower() for word in words))
            snippet = line[:SNIPPET]
            hits.append(WebHit(title=row.title, link=row.url, snippet=snippet, date=row.date))
        return hits


def observation(query: str, hits: Sequence[WebHit]) -> str:
    if not hits:
        return f"No results found for query: {query}"
    blocks = []
    for number, hit in enumerate(hits, 1):
        lines = [
            f"{number}. [{hit.title}]({hit.link})",
            *([f"Date published: {hit.date}"] if hit.date else []),
            *([f"Source: {hit.source}"] if hit.source else []),
            hit.link,
            hit.snippet,
        ]
        blocks.append("\n".join(lines).rstrip())
    return f"Found {len(hits)} results:\n\n## Web Results\n" + "\n\n".join(blocks)


class PageRow(BaseModel):
    """Row of a page: ``{"url": "https://example.org/oslo", "title": "Oslo", "text": "..."}``. ``date`` is optional."""

    url: str = Field(min_length=1)
    title: str
    text: str = Field(min_length=1)
    date: str | None = None


class PageFile:
    """Pages of a file that replaces the web, in memory. Raises ``UserError`` for a bad row, and for equal URLs."""

    def __init__(self, file: Path) -> None:
        self.rows: dict[str, PageRow] = {}
        for position, fields in numbered(file):
            try:
                row = PageRow.model_validate(fields)
            except ValidationError as error:
                raise UserError(
                    f"{file}, {position}, is not a page: {error.errors()[0]['msg']}",
                    'a row is {"url": "https://example.org/oslo", "title": "Oslo", "text": "Oslo is ..."}',
                ) from error
            if row.url in self.rows:
                raise UserError(f"{file} has two pages of {row.url}", "remove one of them")
            self.rows[row.url] = row
        self.identity = sha256(file)[:16]


class Cache:
    """Cache of texts for ``seconds`` in a SQLite file, which processes may share. Raises ``UserError``."""

    def __init__(self, file: Path, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(
                file, timeout=30.0, check_same_thread=False, isolation_level=None
            )
            tables = self._base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            # Never write into a file of another program.
            if {name for (name,) in tables} - {"kept"}:
                raise sqlite3.DatabaseError("it is the file of another program")
            # Several processes may read while one of them writes.
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, at REAL NOT NULL, text TEXT NOT NULL)"
            )
            self._base.execute("DELETE FROM kept WHERE at <= ?", (time.time() - seconds,))
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"the cache {file} can't be used: {error}", "give another file, or remove it"
            ) from error

    async def get(self, key: str) -> str | None:
        """Return the text of a key, or None if it is missing or expired."""
        query = "SELECT text FROM kept WHERE key = ? AND at > ?"
        rows = await asyncio.to_thread(self._execute, query, key, time.time() - self._seconds)
        return rows[0][0] if rows else None

    async def put(self, key: str, text: str) -> None:
        """Store a text; replaces the previous one."""
        add = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)"
        await asyncio.to_thread(self._execute, add, key, time.time(), text)

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def _execute(self, statement: str, *values: object) -> list[Any]:
        # All threads share one connection, so their statements take turns.
        with self._lock:
            return self._base.execute(statement, values).fetchall()
