"""Passages that are open for searching, by words or by meaning."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coterie.config.folders import expanded
from coterie.errors import UserError
from coterie.tools.retrieval import bm25 as words
from coterie.tools.retrieval import vectors as meaning
from coterie.tools.retrieval.bm25 import Bm25, Places, Scores
from coterie.tools.retrieval.index import VECTORS, Manifest
from coterie.tools.retrieval.passages import Passage, Passages
from coterie.tools.retrieval.settings import EncoderSettings, IndexSettings
from coterie.trajectories.turn import digest

if TYPE_CHECKING:  # loads torch
    from coterie.tools.retrieval.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    passage: Passage
    score: float


Searching = Callable[[Sequence[str], int], Awaitable[list[list[Hit]]]]
"""Queries, and how many passages are wanted of each: the passages of each, best first."""


class Search(Protocol):
    """Finds places of passages."""

    def search(self, queries: Sequence[str], count: int) -> list[tuple[Places, Scores]]:
        """For each query: places and scores of at most so many passages, best first."""
        ...


class Words:
    """Search by BM25."""

    def __init__(self, folder: Path) -> None:
        self._index = Bm25(folder)

    def search(self, queries: Sequence[str], count: int) -> list[tuple[Places, Scores]]:
        """See :class:`Search`; passages without a word of the query are not found."""
        return [self._index.search(query, count) for query in queries]


class Meaning:
    """Search by vectors."""

    def __init__(self, index: meaning.VectorIndex, encoder: "Encoder") -> None:
        index.check_width(encoder)
        self._index, self._encoder = index, encoder

    def search(self, queries: Sequence[str], count: int) -> list[tuple[Places, Scores]]:
        """See :class:`Search`."""
        return self._index.search(self._encoder.queries(queries), count)


class Retriever:
    """An index that is open. May be asked by several threads. Make it with :func:`open_retriever`."""

    def __init__(self, passages: Passages, search: Search) -> None:
        self._passages, self._search = passages, search

    def search(self, queries: Sequence[str], count: int) -> list[list[Hit]]:
        """For each query at most so many passages, best first."""
        return [
            [
                Hit(self._passages[int(place)], float(score))
                for place, score in zip(places, scores, strict=True)
            ]
            for places, scores in self._search.search(queries, count)
        ]


@asynccontextmanager
async def searching(settings: IndexSettings) -> AsyncIterator[Searching]:
    """Searches beside the event loop, in a thread of their own, as long as the block runs.

    Raises ``UserError`` as :func:`open_retriever`.
    """
    retriever = await asyncio.to_thread(open_retriever, settings)
    with ThreadPoolExecutor(1, "search") as thread:

        async def search(queries: Sequence[str], count: int) -> list[list[Hit]]:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(thread, retriever.search, queries, count)

        yield search


def check_index(settings: IndexSettings) -> str:
    """A hash of what searches give, wherever files lie.

    Raises ``UserError`` for what can't be searched, as far as it shows without loading anything large.
    """
    manifest = Manifest.read(settings.folder)
    if settings.search == "bm25":
        words.package()
        if not manifest.bm25:
            raise UserError(
                f"{settings.index} was made without BM25",
                "search by meaning (`search: dense`), or make the index again",
            )
        return digest(manifest.content, "bm25")
    meaning.package()
    encoder, file = _encoder(settings, manifest), _vectors(settings)
    if not file.is_file():
        raise UserError(
            f"there is no file {file}", "give the FAISS index that goes with the corpus"
        )
    return digest(manifest.content, encoder.identity(), meaning.sampled_hash(file))


def open_retriever(settings: IndexSettings) -> Retriever:
    """Load what is needed. Raises ``UserError`` as :func:`check_index`, and for what does not fit together."""
    manifest = Manifest.read(settings.folder)
    passages = Passages(settings.folder)
    if settings.search == "bm25":
        return Retriever(passages, Words(settings.folder))
    index = meaning.VectorIndex(_vectors(settings), len(passages))
    from coterie.tools.retrieval.encoder import Encoder  # loads torch

    return Retriever(passages, Meaning(index, Encoder(_encoder(settings, manifest))))


def _vectors(settings: IndexSettings) -> Path:
    given = settings.vectors
    return settings.folder / VECTORS if given is None else expanded(given)


def _encoder(settings: IndexSettings, manifest: Manifest) -> EncoderSettings:
    """The encoder that is meant; for the folder's own vectors it must be the one that made them."""
    if settings.vectors is not None and settings.encoder is not None:
        return settings.encoder
    made = manifest.vectors
    if made is None:
        raise UserError(
            f"{settings.index} was made without vectors",
            "make the index again with --dense MODEL, or give `vectors` and `encoder`",
        )
    encoder = settings.encoder or made.encoder
    if encoder.identity() != made.identity:
        raise UserError(
            f"the vectors of {settings.index} were made by another encoder than {encoder.model}, or in another way",
            f"they were made by {made.encoder.model}",
        )
    return encoder
