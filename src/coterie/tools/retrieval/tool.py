"""The tool that agents search passages with: in this process, at a server, or at a server that the run starts.

    tool = RetrieverTool(RetrieverSettings(url="http://127.0.0.1:8008/retrieve"))
    async with tool.open() as functions:
        text = await functions["wiki_search"]({"query": "capital of Norway"})

Calls that are made at the same time, such as those of one message, go out in one request.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx2
from pydantic import field_validator, model_validator

from coterie.config.folders import expanded
from coterie.config.home import home, new_folder, sha256
from coterie.config.settings import Settings, key
from coterie.config.urls import server_url
from coterie.engines.protocol import EngineError
from coterie.engines.servers.child import Child, Launch
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.tools.retrieval.batches import Batches
from coterie.tools.retrieval.client import RetrieverClient, served_identity
from coterie.tools.retrieval.index import FORM, fill_index
from coterie.tools.retrieval.passages import Passage
from coterie.tools.retrieval.retriever import check_index, searching
from coterie.tools.retrieval.server import RetrieveBackend
from coterie.tools.retrieval.settings import IndexSettings
from coterie.tools.retrieval.wire import MOST_PASSAGES
from coterie.tools.run import Function, ToolError
from coterie.tools.servers.config import read_tools
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import digest

MOST = 128
"""Queries of one request."""
AT_ONCE = 16
"""Requests at the same time."""
GRACE_SECONDS = 5.0
"""That a server which we started has to end."""
CONNECTING = 5.0
"""Seconds for a reply about health."""
NOTHING = "No passages were found."
_HEADER = re.compile(r'^Doc \d+ \(Title: "(.*)"\)$', re.MULTILINE)
Found = list[Passage] | ToolError
Asking = Callable[[Sequence[str]], Awaitable[Sequence[Found]]]


class RetrieverSettings(Settings):
    """A tool that searches passages; one of ``url``, ``corpus`` and ``serve`` says where."""

    name: str = key("wiki_search", "The tool's name.", pattern=r"^[A-Za-z0-9_-]+$")
    description: str = key(
        "Finds passages of an encyclopedia that fit a query.", "What agents are told of it."
    )
    url: str | None = key(None, "A server, such as http://127.0.0.1:8008/retrieve.")
    corpus: str | None = key(
        None,
        "Passages that this process searches by words: a folder that `coterie data index` made, or a JSONL file "
        "of rows with `contents`, or `title` and `text`, which is indexed once.",
    )
    serve: str | None = key(
        None, "A file of tools, one of them of the kind retrieve, for a server that the run starts."
    )
    topk: int = key(3, "Passages of a query.", source="Search-R1", ge=1, le=MOST_PASSAGES)
    seconds: float = key(8.0, "Time limit of one try of a request.", gt=0)
    tries: int = key(3, "Tries of a request that fails for a reason that may pass.", ge=1)
    start_seconds: float = key(
        600.0, "Of `serve`: how long the server may take until it answers.", gt=0
    )
    window_ms: float = key(2.0, "Milliseconds that a call waits for others.", ge=0)

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and not server_url(url).path.strip("/"):
            raise ValueError(f"must be the whole address, such as {url}/retrieve")
        return url

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum(one is not None for one in (self.url, self.corpus, self.serve)) != 1:
            raise ValueError("give one of url, corpus and serve")
        return self


class RetrieverTool:
    """A source of one tool (``tools.source.ToolSource``)."""

    settings_type = RetrieverSettings

    def __init__(self, settings: RetrieverSettings) -> None:
        self.settings = settings
        self.tools = (Tool(settings.name, settings.description, _parameters()),)
        self.tags: Mapping[str, Tag] = {settings.name: Tag("query", "|")}
        self._content = self._told()
        self.identity = digest("retriever", settings.name, str(settings.topk), self._content)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """See ``ToolSource``."""
        s = self.settings
        async with self._asking() as asking:
            batches = Batches(
                _once_each(asking), window=s.window_ms / 1000, most=MOST, at_once=AT_ONCE
            )

            async def do(arguments: Mapping[str, Any]) -> str:
                """The passages of one query, as a text."""
                query = str(arguments["query"]).strip()
                if not query:
                    raise ToolError("the query is empty")
                found = await batches.ask(query)
                if isinstance(found, ToolError):
                    raise ToolError(str(found))
                return shown(found)

            try:
                yield {s.name: do}
            finally:
                await batches.close()

    def _told(self) -> str:
        """A hash of what is searched; refuses what can't be."""
        s = self.settings
        if s.url is not None:
            return served_identity(s.url)
        if s.serve is not None:
            return _served(Path(s.serve)).identity
        assert s.corpus is not None
        place = expanded(s.corpus)
        if not place.is_file():
            return check_index(IndexSettings(index=s.corpus))
        return sha256(place)

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Asking]:
        s = self.settings
        if s.corpus is not None:
            async with searching(
                IndexSettings(index=str(index_folder(expanded(s.corpus))))
            ) as search:

                async def here(queries: Sequence[str]) -> list[Found]:
                    hits = await search(queries, s.topk)
                    return [[hit.passage for hit in one] for one in hits]

                yield here
            return
        async with self._server() as url:
            client = RetrieverClient(url, seconds=s.seconds, tries=s.tries)
            try:
                yield lambda queries: client.search(queries, s.topk)
            finally:
                await client.close()

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[str]:
        """Where the server is; started here, if that is asked for."""
        s = self.settings
        if s.url is not None:
            if await asyncio.to_thread(served_identity, s.url) != self._content:
                raise UserError(
                    f"{s.url} searches other passages than before, or in another way",
                    "start the server with the corpus that the run began with",
                )
            yield s.url
            return
        with tempfile.TemporaryDirectory(prefix="coterie-tools-") as folder:
            launch = Launch(
                "tools",
                self._command,
                environment={},
                log=Path(folder) / "log",
                start_seconds=s.start_seconds,
                grace_seconds=GRACE_SECONDS,
            )
            try:
                child = await Child.start(launch, _healthy)
            except EngineError as error:
                raise UserError(
                    f"the server of {s.serve} did not start: {error}", "fix what its log says"
                ) from error
            try:
                yield f"{child.url}/retrieve"
            finally:
                await child.end()

    def _command(self, port: int) -> list[str]:
        words = ("serve", "tools", "--config", str(self.settings.serve), "--port", str(port))
        return [sys.executable, "-m", "coterie", *words]


def shown(passages: Sequence[Passage]) -> str:
    """Passages as agents are shown them."""
    return "\n\n".join(_block(n, one) for n, one in enumerate(passages, 1)) or NOTHING


def titles_in(text: str) -> tuple[str, ...]:
    """Titles of the passages in a text that :func:`shown` wrote, also of one that was cut."""
    return tuple(_HEADER.findall(text))


def _block(number: int, passage: Passage) -> str:
    title = f' (Title: "{passage.title}")' if passage.title else ""
    return f"Doc {number}{title}\n{passage.text}"


def _parameters() -> dict[str, object]:
    query = {"type": "string", "description": "What to search for."}
    return {"type": "object", "properties": {"query": query}, "required": ["query"]}


def _once_each(asking: Asking) -> Asking:
    """Asks equal queries once."""

    async def ask(queries: Sequence[str]) -> list[Found]:
        different = list(dict.fromkeys(queries))
        found = dict(zip(different, await asking(different), strict=True))
        return [found[query] for query in queries]

    return ask


def index_folder(place: Path) -> Path:
    """The index of a folder, or of a file, made the first time."""
    if not place.is_file():
        return place
    target = home() / "indexes" / f"{sha256(place)}-{FORM}"
    if not target.is_dir():
        with new_folder(target) as new:
            fill_index(new, place, bm25=True, encoder=None, progress=Silent())
    return target


def _served(file: Path) -> RetrieveBackend:
    """The tool of a server's file that has ``/retrieve``. Raises ``UserError`` if there is none."""
    for one in read_tools(file):
        if isinstance(one.backend, RetrieveBackend):
            return one.backend
    raise UserError(f"{file} has no tool of the kind retrieve", "add one")


async def _healthy(url: str) -> bool:
    async with httpx2.AsyncClient(trust_env=False, timeout=CONNECTING) as http:
        try:
            return (await http.get(f"{url}/health")).status_code == httpx2.codes.OK
        except (httpx2.HTTPError, OSError):
            return False
