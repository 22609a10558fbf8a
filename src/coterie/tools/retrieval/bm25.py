"""Search by words: BM25, by the package ``bm25s``, whose arrays are mapped into memory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import UserError

Places = NDArray[np.int64]
Scores = NDArray[np.float32]


def tokenized(texts: Iterable[str]) -> Any:
    """The words of texts as numbers; the texts themselves are not kept."""
    return package().tokenize(texts, show_progress=False)


def build_bm25(tokens: Any, folder: Path) -> None:
    """Index the words of passages. Raises ``UserError`` if there are none."""
    if not tokens.vocab:
        raise UserError("no passage has a word that can be searched", "search by meaning alone")
    index = package().BM25()
    index.index(tokens, show_progress=False)
    index.save(str(folder), show_progress=False)


class Bm25:
    """An index of words that is open. May be asked by several threads."""

    def __init__(self, folder: Path) -> None:
        self._index = package().BM25.load(str(folder), mmap=True, show_progress=False)

    def __len__(self) -> int:
        return int(self._index.scores["num_docs"])

    def scores(self, query: str) -> Scores:
        """How well each passage fits a query; 0 for one without any of its words."""
        (tokens,) = package().tokenize([query], return_ids=False, show_progress=False)
        known = [one for one in tokens if one in self._index.vocab_dict]
        if not known:
            return np.zeros(len(self), dtype=np.float32)
        scores: Scores = self._index.get_scores(known)
        return scores

    def search(self, query: str, count: int) -> tuple[Places, Scores]:
        """Places and scores of the best passages that have a word of the query, best first, equal ones in order."""
        scores = self.scores(query)
        places = best(scores, count)
        return places, scores[places]


def best(scores: Scores, count: int, among: Places | None = None) -> Places:
    """Places of the highest scores above 0, highest first, equal ones in their order; ``among`` some places alone."""
    places = np.flatnonzero(scores) if among is None else among[scores[among] > 0]
    if count < len(places):
        found = scores[places]
        least = np.partition(found, len(found) - count)[len(found) - count]
        places = places[found >= least]
    return places[np.lexsort((places, -scores[places]))][:count]


def package() -> Any:
    """The package ``bm25s``. Raises ``UserError`` where it is missing."""
    try:
        import bm25s
    except ImportError as error:
        raise UserError(
            "searching passages needs the package bm25s", "pip install 'coterie[retrieval]'"
        ) from error
    return bm25s
