"""``POST /retrieve``: what Search-R1's retrieval server and its clients say to each other."""

from typing import Annotated

from pydantic import BaseModel, Field

from coterie.tools.retrieval.passages import Passage
from coterie.tools.servers.answers import RequestBody

MOST_QUERIES = 512
"""Of one request."""
MOST_PASSAGES = 100
"""Of one query."""


class RetrieveRequest(RequestBody):
    """Queries, and how many passages are wanted of each."""

    queries: list[str] = Field(max_length=MOST_QUERIES)
    topk: Annotated[int, Field(ge=1, le=MOST_PASSAGES)] | None = None
    """``None``: as many as the server gives by itself."""
    return_scores: bool = False


class Document(BaseModel):
    """A passage."""

    id: str
    contents: str
    """The title in quotes, in a line by itself, then the text; or a text alone."""


class Scored(BaseModel):
    """A passage, and how well it fits; scores of different queries can't be compared."""

    document: Document
    score: float


class Documents(BaseModel):
    """The reply without scores: of each query its passages, best first."""

    result: list[list[Document]]


class ScoredDocuments(BaseModel):
    """The reply with scores."""

    result: list[list[Scored]]


class CorpusReply(BaseModel):
    """The reply of ``GET /corpus``."""

    identity: str
    """A hash of what searches give."""


class ReadDocument(BaseModel):
    """A passage as some server tells it."""

    contents: str
    id: str | int = ""


class ReadScored(BaseModel):
    """A passage with its score, as some server tells it."""

    document: ReadDocument


class ReadReply(BaseModel):
    """The reply of some server, in either form."""

    result: list[list[ReadScored | ReadDocument]]

    def passages(self) -> list[list[Passage]]:
        """Of each query its passages."""
        return [[_passage(one) for one in row] for row in self.result]


def _passage(one: ReadScored | ReadDocument) -> Passage:
    document = one.document if isinstance(one, ReadScored) else one
    return Passage(str(document.id), document.contents)
