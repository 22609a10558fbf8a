"""Search by meaning: vectors of passages in a FAISS index, searched exhaustively or as the index was made to be."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.tools.retrieval.bm25 import Places, Scores
from coterie.tools.retrieval.passages import Passages

if TYPE_CHECKING:  # loads torch
    from coterie.tools.retrieval.encoder import Encoder
    from coterie.tools.retrieval.encoder import Vectors as Array

SAMPLE = 1 << 16
"""Bytes of a large file, from both its ends, of which its hash is made."""


def build_vectors(passages: Passages, encoder: "Encoder", file: Path, progress: Progress) -> None:
    """Encode passages into a flat FAISS index of inner products; 4 bytes a number are in memory meanwhile."""
    index = package().IndexFlatIP(encoder.width)
    step = encoder.settings.batch
    progress.start(len(passages), "encoding")
    for begin in range(0, len(passages), step):
        places = range(begin, min(begin + step, len(passages)))
        index.add(encoder.passages([passages[place].contents for place in places]))
        progress.advance(len(places))
    package().write_index(index, str(file))


class VectorIndex:
    """A FAISS index that is open, and mapped into memory where FAISS can.

    ``count`` passages are what it is for. Raises ``UserError`` for a file that is not an index, has another
    number of passages, or does not compare by inner products.
    """

    def __init__(self, file: Path, count: int) -> None:
        faiss = package()
        try:
            self._index: Any = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise UserError(
                f"{file} can't be read as a FAISS index: {_reason(error)}",
                "download it again, or join all of its parts",
            ) from error
        self.file, self.width = file, int(self._index.d)
        if self._index.ntotal != count:
            raise UserError(
                f"{file} has {self._index.ntotal:,} vectors, and the corpus {count:,} passages",
                "give the index that was made of this corpus, and index rows with `contents`, which stay whole",
            )
        if self._index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(
                f"{file} does not compare by inner products", "make it with METRIC_INNER_PRODUCT"
            )

    def check_width(self, encoder: "Encoder") -> None:
        """Refuse (``UserError``) an encoder whose vectors are of another length."""
        if encoder.width != self.width:
            raise UserError(
                f"{self.file} has vectors of {self.width} numbers, and {encoder.settings.model} makes {encoder.width}",
                "give the encoder that the index was made with",
            )

    def search(self, queries: "Array", count: int) -> list[tuple[Places, Scores]]:
        """For each query: places and scores of the nearest passages, nearest first, equal ones in their order."""
        scores, places = self._index.search(queries, min(count, self._index.ntotal))
        return [
            _ordered(row[row >= 0], own[row >= 0]) for row, own in zip(places, scores, strict=True)
        ]


def package() -> Any:
    """The package ``faiss``. Raises ``UserError`` where it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "searching by vectors needs the package faiss", "pip install 'coterie[dense]'"
        ) from error
    return faiss


def sampled_hash(file: Path) -> str:
    """Of a file that may be too large to read: a hash of its size and of both its ends."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(SAMPLE)
        opened.seek(max(0, size - SAMPLE))
        return hashlib.sha256(b"%d " % size + head + opened.read()).hexdigest()


def _ordered(places: Places, scores: Scores) -> tuple[Places, Scores]:
    order = np.lexsort((places, -scores))
    return places[order], scores[order]


def _reason(error: RuntimeError) -> str:
    """What FAISS says, without its places in its own code."""
    return str(error).rpartition(": ")[2] or str(error)
