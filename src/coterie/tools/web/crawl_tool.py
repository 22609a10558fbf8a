"""The tool ``crawl_page``: URLs in, what stands on the pages out."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic import field_validator

from coterie.config.settings import key
from coterie.tools.run import Function, ToolError
from coterie.tools.source import MESSAGE
from coterie.tools.tags import Tag
from coterie.tools.web.client import ToolClient
from coterie.tools.web.crawl import Crawl
from coterie.tools.web.crawl_settings import CrawlSettings
from coterie.tools.web.search_settings import check_base
from coterie.tools.web.wire import CrawlAnswer
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import digest

SEPARATOR = "|"
MAX_URLS = 10
"""Of one call."""
TOOL = Tool(
    "crawl_page",
    "Reads web pages; gives their text, or what of it matters.",
    {
        "type": "object",
        "properties": {
            "urls": {
                "type": "string",
                "description": f"The URL of a page, or several with {SEPARATOR} between them.",
            },
            "goal": {"type": "string", "description": "What you want to learn from the pages."},
        },
        "required": ["urls"],
        "additionalProperties": False,
    },
)


class CrawlPageSettings(CrawlSettings):
    """Where the tool's pages are read: by a server, or in the run's own process."""

    server: str = key("", "URL of a server with `POST /crawl_page`; empty: this process reads.")
    server_seconds: float = key(120.0, "Time limit of a request to the server.", gt=0)

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str) -> str:
        return check_base(server) if server else server


class CrawlPage:
    """Pages of the web. Raises ``UserError`` for a missing package, key or file."""

    settings_type = CrawlPageSettings

    def __init__(self, settings: CrawlPageSettings) -> None:
        self._settings = settings
        self._crawl = None if settings.server else Crawl(settings)
        self.tools = (TOOL,)
        self.tags: Mapping[str, Tag] = {TOOL.name: Tag("urls", SEPARATOR)}
        reads = "server" if self._crawl is None else self._crawl.identity
        self.identity = digest("crawl_page", reads)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """What runs the calls. Raises ``UserError`` if the server is not there, or a cache can't be used."""
        if self._crawl is None:
            async with ToolClient(self._settings.server, self._settings.server_seconds) as client:

                async def ask(arguments: Mapping[str, Any]) -> str:
                    urls, goal = _urls(arguments)
                    thoughts = {"web_search_query": "", "think_content": MESSAGE.get()}
                    body = {"urls": urls, "task": goal, **thoughts}
                    return _told(await client.post("/crawl_page", body, CrawlAnswer))

                yield {TOOL.name: ask}
        else:
            crawl = self._crawl
            async with crawl.open():

                async def read(arguments: Mapping[str, Any]) -> str:
                    urls, goal = _urls(arguments)
                    return _told(await crawl.crawl(urls, goal, MESSAGE.get()))

                yield {TOOL.name: read}


def _urls(arguments: Mapping[str, Any]) -> tuple[list[str], str]:
    """The URLs and the goal of a call. Raises ``ToolError``."""
    urls = [one.strip() for one in str(arguments["urls"]).split(SEPARATOR) if one.strip()]
    if not urls:
        raise ToolError("there is no URL")
    if len(urls) > MAX_URLS:
        raise ToolError(f"one call reads at most {MAX_URLS} pages")
    return urls, str(arguments.get("goal", "")).strip()


def _told(answer: CrawlAnswer) -> str:
    if not answer.success:
        raise ToolError(answer.obs or answer.error_message or "no page was read")
    return answer.obs
