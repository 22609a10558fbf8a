"""The tool server's ``retrieve``: passages for queries, searched in batches."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel

from coterie.config.settings import key
from coterie.tools.retrieval.batches import Batches
from coterie.tools.retrieval.passages import Passage
from coterie.tools.retrieval.retriever import Hit, check_index, searching
from coterie.tools.retrieval.settings import IndexSettings
from coterie.tools.retrieval.wire import (
    MOST_PASSAGES,
    CorpusReply,
    Document,
    Documents,
    RetrieveRequest,
    Scored,
    ScoredDocuments,
)
from coterie.tools.servers.kinds import BackendSettings

Asked = tuple[str, int]
"""A query, and how many passages are wanted."""


class RetrieveSettings(BackendSettings, IndexSettings):
    """Passages for queries: ``POST /retrieve``."""

    concurrent: int = key(512, "Requests that are worked on at the same time.", ge=1)
    topk: int = key(
        3, "Passages of a query whose request does not say.", source="Search-R1", ge=1, le=MOST_PASSAGES
    )  # fmt: skip
    batch: int = key(512, "Queries that are searched together.", source="Search-R1", ge=1)
    window_ms: float = key(
        10.0, "Milliseconds that a query waits for others.", source="Search-R1", ge=0
    )


class RetrieveBackend:
    """Searches passages. Making it raises ``UserError`` for what is not an index, or lacks what is asked for."""

    settings_type = RetrieveSettings

    def __init__(self, settings: RetrieveSettings) -> None:
        self._settings = settings
        self.identity = check_index(settings)
        self._batches: Batches[Asked, list[Hit]] | None = None
        self.router = APIRouter()
        self.router.post("/retrieve")(self.retrieve)
        self.router.get("/corpus")(self.corpus)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Load the index, and search it as long as the block runs."""
        s = self._settings
        async with searching(s) as search:

            async def answer(asked: Sequence[Asked]) -> list[list[Hit]]:
                """Of queries that are searched together, though each wants its own number of passages."""
                found = await search(
                    [query for query, _ in asked], max(count for _, count in asked)
                )
                return [hits[:count] for hits, (_, count) in zip(found, asked, strict=True)]

            self._batches = Batches(answer, window=s.window_ms / 1000, most=s.batch, at_once=1)
            try:
                yield
            finally:
                await self._batches.close()

    async def retrieve(self, body: RetrieveRequest) -> Response:
        """Of each query its passages, best first; with their scores, if they are wanted."""
        assert self._batches is not None, "the server opens its tools first"
        count = self._settings.topk if body.topk is None else body.topk
        hits = await asyncio.gather(*(self._batches.ask((one, count)) for one in body.queries))
        reply: BaseModel
        if body.return_scores:
            rows = [
                [Scored(document=_document(h.passage), score=h.score) for h in one] for one in hits
            ]
            reply = ScoredDocuments(result=rows)
        else:
            reply = Documents(result=[[_document(hit.passage) for hit in one] for one in hits])
        return Response(reply.model_dump_json(), media_type="application/json")

    async def corpus(self) -> CorpusReply:
        """What is searched."""
        return CorpusReply(identity=self.identity)


def _document(passage: Passage) -> Document:
    return Document(id=passage.id, contents=passage.contents)
