"""Web search by Serper (google.serper.dev), or by what speaks as it does."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from pydantic import ValidationError

from coterie.engines.keys import find_key
from coterie.engines.limits import Limits, retry_after
from coterie.engines.protocol import EngineGone
from coterie.tools.run import ToolError, ToolUnavailable
from coterie.tools.web.search_settings import SearchSettings
from coterie.tools.web.wire import Hit, SearchAnswer

AGAIN = (408, 425, 429)
"""Statuses below 500 that may go away by themselves."""
REFUSED = (401, 402, 403)
"""The key is wrong or has no credit: nobody will be answered."""
SHOWN = 300
"""Characters of an answer that an error quotes."""


class Serper:
    """The outside server. Raises ``UserError`` if its key is not set."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._key = find_key(settings.key_variable, Path())
        self.identity = "serper"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Its connections, and the limits that all queries share."""
        s = self._settings
        self._limits = Limits(s.requests_per_minute, None)
        self._places = asyncio.Semaphore(s.upstream_concurrency)
        async with httpx2.AsyncClient(
            headers=self._key.in_header("X-API-KEY"), timeout=s.upstream_seconds
        ) as self._client:
            yield

    async def search(self, query: str, count: int) -> list[Hit]:
        """What it finds. Raises ``ToolUnavailable`` when it fails for good, ``ToolError`` for a refused query."""
        failure = ""
        async with self._places:
            for number in range(self._settings.upstream_retries + 1):
                if number:
                    await asyncio.sleep(min(30.0, 2.0 ** (number - 1)) * random.uniform(0.5, 1))
                await self._limits.admit(0)
                found = await self._try(query, count)
                if not isinstance(found, str):
                    return found
                failure = found
        raise ToolUnavailable(f"web search at {self._settings.upstream}: {failure}")

    async def _try(self, query: str, count: int) -> list[Hit] | str:
        """What it finds, or what went wrong and may pass."""
        url, seconds = self._settings.upstream, self._settings.upstream_seconds
        try:
            async with asyncio.timeout(seconds):
                answer = await self._client.post(url, json={"q": query, "num": count})
        except (TimeoutError, httpx2.TimeoutException):
            return f"no answer within {seconds:g} seconds"
        except httpx2.RequestError as error:
            return f"no connection: {error or type(error).__name__}"
        said = self._key.redact(" ".join(answer.text[: 10 * SHOWN].split()))[:SHOWN]
        if answer.status_code in REFUSED:
            raise EngineGone(f"web search at {url}: status {answer.status_code}: {said}")
        if answer.status_code in AGAIN or answer.status_code >= 500:
            wait = retry_after(answer.headers.get("Retry-After"), answer.headers.get("Date"))
            if wait is not None:
                self._limits.pause(wait)
            return f"status {answer.status_code}: {said}"
        if not answer.is_success:
            raise ToolError(f"the query is refused: {said}")
        try:
            return SearchAnswer.model_validate(json.loads(answer.content)).organic[:count]
        except (ValueError, ValidationError):
            return f"the answer is not of Serper's form: {said}"
