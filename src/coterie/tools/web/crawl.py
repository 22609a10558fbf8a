"""Reads pages: fetches them, takes their text out, and summarises it if there is a model for that."""

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from coterie.engines.endpoint import Endpoint
from coterie.engines.keys import find_key
from coterie.tools.run import cut_text
from coterie.tools.web.addresses import PageError, web_url
from coterie.tools.web.cache import Cache
from coterie.tools.web.crawl_settings import CrawlSettings
from coterie.tools.web.extract import KINDS, Extractor, Page
from coterie.tools.web.fetch import Fetcher
from coterie.tools.web.pages import PageFile
from coterie.tools.web.summary import Summaries
from coterie.tools.web.wire import CrawlAnswer
from coterie.trajectories.turn import digest

_MARKDOWN = re.compile(r"\[[^\]]*\]\(\s*<?([^\s)>]+)>?[^)]*\)")
FORM = 1
"""Of what is kept of a page."""


class Crawl:
    """Reads pages. Raises ``UserError`` for a missing package, key or file. ``trust`` is as of :class:`Fetcher`."""

    def __init__(self, settings: CrawlSettings, *, trust: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._trust = trust
        self._file = None
        if settings.pages:
            pages = PageFile.read(Path(settings.pages))
            self._file = {row.url: Page(row.url, row.title, row.text) for row in pages.rows}
        else:
            self._extractor = Extractor()
        if settings.summary is not None and settings.summary.key_variable:
            find_key(settings.summary.key_variable, Path())
        self.identity = _identity(settings, pages.identity if settings.pages else "web")
        self._cache: Cache | None = None
        self._summaries: Summaries | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connections, processes, and the cache. Raises ``UserError`` for a cache that can't be used."""
        s = self._settings
        async with AsyncExitStack() as stack:
            if self._file is None:
                self._fetcher = Fetcher(s, trust=self._trust)
                stack.push_async_callback(self._fetcher.close)
                stack.callback(self._extractor.close)
                self._places = asyncio.Semaphore(s.fetches)
                if s.cache:
                    self._cache = Cache(Path(s.cache), s.cache_seconds, s.cache_entries)
                    stack.callback(self._cache.close)
            if s.summary is not None:
                model = await stack.enter_async_context(Endpoint(s.summary))
                self._summaries = Summaries(model, s.summary_characters, s.summary_tokens)
            yield

    async def crawl(self, urls: Sequence[str], goal: str, thoughts: str) -> CrawlAnswer:
        """What stands on the pages, in their order. Raises ``EngineError`` if the summarising model fails for good."""
        began = time.monotonic()
        asked = (self._one(url, goal, thoughts) for url in urls)
        ended = await asyncio.gather(*asked, return_exceptions=True)
        found: list[tuple[str, str]] = []
        for one in ended:  # all of them: none goes on when this is over
            if isinstance(one, BaseException):
                raise one
            found.append(one)
        blocks = [f"Page {place} {text}" for place, (text, _) in enumerate(found, 1)]
        errors = [error for _, error in found if error]
        return CrawlAnswer(
            success=len(errors) < len(found),
            obs="\n\n".join(blocks),
            error_message="; ".join(errors),
            processing_time=round(time.monotonic() - began, 3),
        )

    async def _one(self, given: str, goal: str, thoughts: str) -> tuple[str, str]:
        """A page as it is shown, and why it could not be read."""
        url = plain_url(given)
        try:
            page = await self._page(url)
        except PageError as error:
            return f"[{url}] was not read: {error}", f"{url}: {error}"
        if self._summaries is not None and (goal or thoughts):
            summary = await self._summaries.of(page, goal, thoughts)
            return f"[{url}] Summary:\n{summary}", ""
        title = f"# {page.title}\n" if page.title else ""
        rest = "" if page.whole else "\n[the page is longer: its end was not read]"
        text = cut_text(page.text, self._settings.page_characters)
        return f"[{url}]:\n{title}{text}{rest}", ""

    async def _page(self, text: str) -> Page:
        """A page, from the cache if it is there. Raises ``PageError``."""
        if self._file is not None:
            if text not in self._file:
                raise PageError("there is no such page")
            return self._file[text]
        url = web_url(text)
        key = f"page {FORM} {_hosts(self._settings)}\n{url}"
        if self._cache is not None and (kept := await self._cache.get(key)) is not None:
            return Page(**json.loads(kept))
        async with self._places:
            fetched = await self._fetcher.fetch(str(url), KINDS)
        page = await self._extractor.page(fetched)
        if self._cache is not None:
            row = {"url": page.url, "title": page.title, "text": page.text, "whole": page.whole}
            await self._cache.put(key, json.dumps(row))
        return page


def plain_url(text: str) -> str:
    """A URL that was written bare, in angle brackets, or as a link of Markdown."""
    text = text.strip()
    found = _MARKDOWN.fullmatch(text)
    return found[1] if found else text.strip("<>")


def _hosts(settings: CrawlSettings) -> str:
    """A hash of what decides which pages may be read, and how much of them is."""
    s = settings
    return digest(s.allowed_hosts, s.denied_hosts, s.private_hosts, s.page_bytes)


def _identity(settings: CrawlSettings, pages: str) -> str:
    s = settings
    summary = s.summary.model if s.summary else None
    shown = (s.page_characters, s.summary_characters, s.summary_tokens)
    return digest(pages, summary, *shown, _hosts(s))
