"""Tool that searches passages in this process or at a retrieval server.

    tool = RetrieverTool(RetrieverSettings(corpus="passages"))
    async with tool.open() as functions:
        text = await functions["wiki_search"]({"query": "capital of Norway"})

Concurrent calls, such as the calls of one message, share one search. A server uses Search-R1's protocol:
``POST /retrieve`` with ``{"queries", "topk", "return_scores"}``. Its reply is validated.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx2
from pydantic import BaseModel, ValidationError, field_validator, model_validator

from coterie.config.folders import expanded, home, new_folder, sha256
from coterie.config.settings import key, server_url
from coterie.engines.endpoint import retry_after
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.turn import Tool, digest
from coterie.tools.calls import Function, ToolError, ToolUnavailable
from coterie.tools.retrieval.index import (
    FORM,
    IndexSettings,
    Passage,
    SearchSettings,
    check_index,
    fill_index,
    open_retriever,
)
from coterie.tools.tags import Tag

MAX_PASSAGES = 100
MAX_QUERIES = 128
MAX_REQUESTS = 16
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""Less than a server's timeout of idle connections (uvicorn: 5 s)."""
RETRY_STATUSES = (408, 425, 429)
"""Temporary failures with a status below 500."""
REFUSAL_STATUSES = (400, 413, 422)
"""Statuses of a refused query."""
FIRST_PAUSE, MAX_PAUSE = 0.2, 10.0
"""Seconds between two attempts; the pause doubles."""
MAX_QUOTE = 300
"""Characters of a server's message in an error."""
NOTHING = "No passages were found."
_HEADER = re.compile(r'^Doc \d+ \(Title: "(.*)"\)$', re.MULTILINE)
Answer = list[Passage] | ToolError
Search = Callable[[Sequence[str]], Awaitable[Sequence[Answer]]]


class RetrieverSettings(SearchSettings):
    """Settings of a tool that searches passages at ``url`` or in ``corpus``."""

    name: str = key("wiki_search", "The tool's name.", pattern=r"^[A-Za-z0-9_-]+$")
    description: str = key(
        "Finds passages of an encyclopedia that fit a query.", "Description of the tool in prompts."
    )
    url: str | None = key(
        None, "A retrieval server, such as http://127.0.0.1:8000/retrieve (Search-R1's protocol)."
    )
    corpus: str | None = key(
        None,
        "Local passages: a folder of `coterie data index`, or a JSONL file of rows with `contents`, or `title` and "
        "`text`, which is indexed once.",
    )
    topk: int = key(3, "Passages of a query.", source="Search-R1", ge=1, le=MAX_PASSAGES)
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


class RetrieverTool:
    """Source of one tool (``tools.calls.ToolSource``)."""

    settings_type = RetrieverSettings

    def __init__(self, settings: RetrieverSettings) -> None:
        self.settings = settings
        self.tools = (Tool(settings.name, settings.description, _parameters()),)
        self.tags: Mapping[str, Tag] = {settings.name: Tag("query", "|")}
        self.identity = digest("retriever", settings.name, str(settings.topk), self._content())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async with self._open_search() as search:
            at_once = MAX_REQUESTS if self.settings.url else 1
            batches = Batches(search, self.settings.window_ms / 1000, at_once)

            async def do(arguments: Mapping[str, Any]) -> str:
                query = str(arguments["query"]).strip()
                if not query:
                    raise ToolError("the query is empty")
                answer = await batches.ask(query)
                if isinstance(answer, ToolError):
                    raise ToolError(str(answer))
                return format_passages(answer)

            try:
                yield {self.settings.name: do}
            finally:
                await batches.close()

    def _content(self) -> str:
        """Return a hash of the passages; empty for a server. Raises ``UserError`` if they can't be searched."""
        s = self.settings
        if s.url is not None:
            try:
                httpx2.get(s.url, timeout=CONNECT_SECONDS, trust_env=False)
            except (httpx2.HTTPError, OSError) as error:
                raise UserError(
                    f"no retrieval server answers at {s.url}: {error}",
                    "start it, or correct the address",
                ) from error
            return ""
        assert s.corpus is not None
        place = expanded(s.corpus)
        if not place.is_file():
            return check_index(self._index(place))
        if s.search == "dense":
            raise UserError(
                f"{place} has no vectors",
                f"make an index: coterie data index {place} FOLDER --dense MODEL",
            )
        return sha256(place)

    def _index(self, folder: Path) -> IndexSettings:
        s = self.settings
        return IndexSettings(
            index=str(folder), search=s.search, vectors=s.vectors, encoder=s.encoder
        )

    @asynccontextmanager
    async def _open_search(self) -> AsyncIterator[Search]:
        s = self.settings
        if s.url is not None:
            client = RetrieverClient(s.url, seconds=s.seconds, tries=s.tries)
            try:
                yield lambda queries: client.search(queries, s.topk)
            finally:
                await client.close()
            return
        assert s.corpus is not None
        index = self._index(await asyncio.to_thread(index_folder, expanded(s.corpus)))
        retriever = await asyncio.to_thread(open_retriever, index)

        async def here(queries: Sequence[str]) -> list[Answer]:
            hits = await asyncio.to_thread(retriever.search, queries, s.topk)
            return [[hit.passage for hit in one] for one in hits]

        yield here


def format_passages(passages: Sequence[Passage]) -> str:
    return "\n\n".join(_block(n, one) for n, one in enumerate(passages, 1)) or NOTHING


def titles_in(text: str) -> tuple[str, ...]:
    """Return the titles in a text of :func:`format_passages`, which may be truncated."""
    return tuple(_HEADER.findall(text))


def index_folder(place: Path) -> Path:
    """Return the index of a folder, or of a file, which is indexed on first use."""
    if not place.is_file():
        return place
    target = home() / "indexes" / f"{sha256(place)}-{FORM}"
    if not target.is_dir():
        with new_folder(target) as new:
            fill_index(new, place, bm25=True, encoder=None, progress=Silent())
    return target


def _block(number: int, passage: Passage) -> str:
    title = f' (Title: "{passage.title}")' if passage.title else ""
    return f"Doc {number}{title}\n{passage.text}"


def _parameters() -> dict[str, object]:
    query = {"type": "string", "description": "What to search for."}
    return {"type": "object", "properties": {"query": query}, "required": ["query"]}


class Batches:
    """Batches of queries that arrive within ``window`` seconds; equal queries are searched once. For one event loop."""

    def __init__(self, search: Search, window: float, at_once: int) -> None:
        self._search, self._window = search, window
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._room = asyncio.Semaphore(at_once)
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, query: str) -> Answer:
        """Return the answer to one query. Raises the exceptions of its search."""
        loop = asyncio.get_running_loop()
        answer = self._waiting.setdefault(query, loop.create_future())
        if len(self._waiting) >= MAX_QUERIES:
            self._begin()
        elif self._timer is None:
            self._timer = loop.call_later(self._window, self._begin)
        return await asyncio.shield(answer)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for answer in self._waiting.values():
            answer.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, {}
        task = asyncio.ensure_future(self._run(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, batch: Mapping[str, "asyncio.Future[Answer]"]) -> None:
        try:
            async with self._room:
                answers = await self._search(list(batch))
            for future, answer in zip(batch.values(), answers, strict=True):
                future.set_result(answer)
        except Exception as error:
            for future in batch.values():
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # a canceled caller does not read it
        finally:
            for future in batch.values():
                future.cancel()


# -- a server -----------------------------------------------------------------------------------


class _Document(BaseModel):
    contents: str
    id: str | int = ""


class _Scored(BaseModel):
    document: _Document


class _Reply(BaseModel):
    """Reply with or without scores."""

    result: list[list[_Scored | _Document]]


class _Refused(Exception):
    """The server refused the queries."""


class RetrieverClient:
    """Client of a retrieval server. ``url`` ends in ``/retrieve``; ``seconds`` is the time limit of an attempt."""

    def __init__(self, url: str, *, seconds: float, tries: int) -> None:
        self.url = url
        self._tries = tries
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
            limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def search(self, queries: Sequence[str], count: int) -> list[Answer]:
        """Return at most ``count`` passages for each query, best first, or the reason of its refusal.

        Raises ``ToolUnavailable`` if the server is unreachable or its replies are invalid.
        """
        try:
            return await self._ask(queries, count)
        except _Refused as error:
            if len(queries) == 1:
                return [ToolError(str(error))]
        alone = await asyncio.gather(*(self.search([query], count) for query in queries))
        return [answer for (answer,) in alone]

    async def _ask(self, queries: Sequence[str], count: int) -> list[Answer]:
        body = {"queries": list(queries), "topk": count, "return_scores": True}
        fault, pause = "", FIRST_PAUSE
        for number in range(self._tries):
            if number:
                await asyncio.sleep(min(pause, MAX_PAUSE))
                pause *= 2
            try:
                reply = await self._http.post(self.url, json=body)
            except (httpx2.HTTPError, OSError) as error:
                fault = f"no answer from {self.url}: {error!r}"
                continue
            status, quote = reply.status_code, reply.text[:MAX_QUOTE]
            if status in REFUSAL_STATUSES:
                raise _Refused(f"the query was refused: {quote}")
            if status >= 500 or status in RETRY_STATUSES:
                fault = f"{self.url} answered {status}: {quote}"
                wait = retry_after(reply.headers.get("retry-after"), reply.headers.get("date"))
                pause = max(pause, wait or 0.0)
                continue
            if status != httpx2.codes.OK:
                raise ToolUnavailable(f"{self.url} answered {status}: {quote}")
            try:
                rows = _Reply.model_validate_json(reply.content).result
            except ValidationError:
                fault = f"{self.url} gave a broken reply: {quote}"
                continue
            if len(rows) == len(queries):
                return [[_passage(one) for one in row[:count]] for row in rows]
            fault = f"{self.url} gave {len(rows)} results for {len(queries)} queries"
        raise ToolUnavailable(fault)


def _passage(one: _Scored | _Document) -> Passage:
    document = one.document if isinstance(one, _Scored) else one
    return Passage(str(document.id), document.contents)
