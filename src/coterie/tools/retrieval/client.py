"""A client of a retrieval server, ours or Search-R1's: nothing of a reply is taken on trust, and what may pass is
tried again."""

import asyncio
from collections.abc import Sequence

import httpx2
from pydantic import ValidationError

from coterie.engines.limits import retry_after
from coterie.engines.servers.connections import Connections
from coterie.engines.servers.faults import FinalFault, TransientFault
from coterie.errors import UserError
from coterie.tools.retrieval.passages import Passage
from coterie.tools.retrieval.wire import CorpusReply, ReadReply
from coterie.tools.run import ToolError, ToolUnavailable

CONNECT_SECONDS = 5.0
KEPT_SECONDS = 2.0
"""An idle connection is dropped before a server would do so (uvicorn: 5 s)."""
AGAIN = (408, 425, 429)
"""Statuses below 500 that may go away by themselves."""
REFUSED = (400, 413, 422)
"""Statuses of a query that won't do."""
FIRST_PAUSE, MOST_PAUSE = 0.2, 10.0
"""Seconds between two tries; the pause doubles."""
SHOWN = 300
"""Characters of a server's message that an error quotes."""


class RetrieverClient:
    """Asks the server at ``url``, which ends in ``/retrieve``. ``seconds``: time limit of a try."""

    def __init__(self, url: str, *, seconds: float, tries: int) -> None:
        self.url = url
        self._tries = tries
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
            transport=Connections(KEPT_SECONDS),
            trust_env=False,
        )

    async def close(self) -> None:
        """Drop all connections."""
        await self._http.aclose()

    async def search(self, queries: Sequence[str], count: int) -> list[list[Passage] | ToolError]:
        """Of each query at most so many passages, best first, or why the server won't have it.

        Raises ``ToolUnavailable`` if the server can't be reached, or answers nothing that can be used.
        """
        try:
            return list(await self._asked(queries, count))
        except FinalFault as error:
            if len(queries) == 1:
                return [ToolError(str(error))]
        alone = await asyncio.gather(*(self.search([query], count) for query in queries))
        return [found for (found,) in alone]

    async def _asked(self, queries: Sequence[str], count: int) -> list[list[Passage]]:
        """As :meth:`search`; raises ``FinalFault`` for queries that the server won't have."""
        pause = FIRST_PAUSE
        for number in range(self._tries):
            try:
                return await self._try(queries, count)
            except TransientFault as fault:
                if number == self._tries - 1:
                    raise ToolUnavailable(str(fault)) from fault
                await asyncio.sleep(min(max(pause, fault.retry_after or 0), MOST_PAUSE))
                pause *= 2
        raise AssertionError("the last try returns or raises")

    async def _try(self, queries: Sequence[str], count: int) -> list[list[Passage]]:
        body = {"queries": list(queries), "topk": count, "return_scores": True}
        try:
            reply = await self._http.post(self.url, json=body)
        except (httpx2.HTTPError, OSError) as error:
            raise TransientFault(f"no answer from {self.url}: {error!r}") from error
        status = reply.status_code
        said = f"{self.url} answered {status}: {reply.text[:SHOWN]}"
        if status >= 500 or status in AGAIN:
            wait = retry_after(reply.headers.get("retry-after"), reply.headers.get("date"))
            raise TransientFault(said, wait)
        if status in REFUSED:
            raise FinalFault(f"the query was refused: {reply.text[:SHOWN]}")
        if status != httpx2.codes.OK:
            raise ToolUnavailable(said)
        try:
            found = ReadReply.model_validate_json(reply.content).passages()
        except ValidationError as error:
            raise TransientFault(f"{self.url} gave a broken reply: {reply.text[:SHOWN]}") from error
        if len(found) != len(queries):
            raise TransientFault(f"{self.url} gave {len(found)} results for {len(queries)} queries")
        return [passages[:count] for passages in found]


def served_identity(url: str) -> str:
    """What a server says that its searches depend on; empty if it does not say, as Search-R1's.

    Raises ``UserError`` if nobody answers.
    """
    place = f"{url.rpartition('/')[0]}/corpus"
    try:
        reply = httpx2.get(place, timeout=CONNECT_SECONDS, trust_env=False)
    except (httpx2.HTTPError, OSError) as error:
        raise UserError(
            f"no retrieval server answers at {url}: {error}",
            "start one (coterie serve tools --config FILE), or correct the address",
        ) from error
    try:
        return CorpusReply.model_validate_json(reply.content).identity
    except ValidationError:
        return ""
