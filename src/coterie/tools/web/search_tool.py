"""The tool ``web_search``: a query in, a list of pages out."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import field_validator

from coterie.config.settings import key
from coterie.errors import UserError
from coterie.tools.run import Function, ToolError
from coterie.tools.tags import Tag
from coterie.tools.web.client import ToolClient
from coterie.tools.web.search import Search
from coterie.tools.web.search_settings import SearchSettings, check_base
from coterie.tools.web.wire import MAX_QUERY, Hit, SearchAnswer
from coterie.trajectories.calls import Tool

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


class WebSearchSettings(SearchSettings):
    """Where the tool's queries are answered: by a server, or by a backend in the run's own process."""

    server: str = key("", "URL of a server with `POST /search`; empty: `backend` answers.")
    server_seconds: float = key(120.0, "Time limit of a request to the server.", gt=0)
    num: int = key(10, "Pages that a query finds at most.", ge=1, le=100, source="GAP's code")

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str) -> str:
        return check_base(server) if server else server


class WebSearch:
    """Web search. Raises ``UserError`` if neither a server nor a backend is named, or the backend can't work."""

    settings_type = WebSearchSettings

    def __init__(self, settings: WebSearchSettings) -> None:
        if bool(settings.server) == bool(settings.backend):
            raise UserError(
                "web search needs either a server or a backend",
                "give server=http://HOST:PORT, or backend=serper or backend=corpus",
            )
        self._settings = settings
        self._search = None if settings.server else Search(settings)
        self.tools = (TOOL,)
        self.tags: Mapping[str, Tag] = {TOOL.name: Tag("query", "|")}
        answers = "server" if self._search is None else self._search.identity
        told = f"web_search {settings.num} {answers}"
        self.identity = hashlib.sha256(told.encode()).hexdigest()[:16]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """What runs the calls. Raises ``UserError`` if the server is not there, or the backend can't be opened."""
        if self._search is None:
            async with ToolClient(self._settings.server, self._settings.server_seconds) as client:

                async def ask(arguments: Mapping[str, Any]) -> str:
                    query, num = _query(arguments), self._settings.num
                    body = {"q": query, "num": num}
                    found = await client.post("/search", body, SearchAnswer)
                    return observation(query, found.organic[:num])

                yield {TOOL.name: ask}
        else:
            search = self._search
            async with search.open():

                async def find(arguments: Mapping[str, Any]) -> str:
                    query = _query(arguments)
                    return observation(query, await search.search(query, self._settings.num))

                yield {TOOL.name: find}


def observation(query: str, hits: Sequence[Hit]) -> str:
    """What the agent is shown of the hits."""
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


def _query(arguments: Mapping[str, Any]) -> str:
    query = str(arguments["query"]).strip()
    if not query:
        raise ToolError("the query is empty")
    if len(query) > MAX_QUERY:
        raise ToolError(f"the query is longer than {MAX_QUERY} characters")
    return query
