"""Pages on this machine, searched by BM25: an index of passages, each of which is a paragraph of a page.

build_index(Path("pages.jsonl"), Path("pages"))      # of `retrieval.index`; rows with `title` and `text`
corpus = Corpus.open(Path("pages"))
corpus.search("capital of Norway", 3)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coterie.tools.actions.executor import ranked
from coterie.tools.retrieval.index import (
    PAGES,
    Bm25,
    IndexSettings,
    Manifest,
    Passages,
    best,
    check_index,
)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of a page."""

    place: int
    page: int
    title: str
    text: str


class Pages(Protocol):
    """Pages that can be searched."""

    def __len__(self) -> int: ...

    def paragraph(self, place: int) -> Paragraph:
        """The paragraph of a number; raises ``IndexError``."""
        ...

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        """The best paragraphs, best first, equal ones in their order; of these pages alone, if there are any.

        Paragraphs without a word of the query are left out.
        """
        ...

    def pages(self, query: str, count: int) -> list[Paragraph]:
        """The best paragraph of each of the best pages, best first."""
        ...

    def first(self, page: int) -> Paragraph:
        """The first paragraph of a page."""
        ...


class Corpus:
    """An index that is open."""

    def __init__(self, folder: Path) -> None:
        self._passages, self._index = Passages(folder), Bm25(folder)
        self._pages: NDArray[np.int64] = np.load(folder / PAGES, mmap_mode="r")

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The index of a folder. Raises ``UserError`` for what is none, and where ``bm25s`` is missing."""
        check_index(IndexSettings(index=str(folder)))
        return cls(folder)

    def __len__(self) -> int:
        return len(self._passages)

    def paragraph(self, place: int) -> Paragraph:
        """The paragraph of a number; raises ``IndexError``."""
        found = self._passages[place]
        return Paragraph(place, int(self._pages[place]), found.title, found.text)

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        """The best paragraphs, best first, equal ones in their order; of these pages alone, if there are any.

        Paragraphs without a word of the query are left out.
        """
        scores = self._index.scores(query)
        found = best(scores, count, self._of_pages(pages) if pages else None)
        return [self.paragraph(int(place)) for place in found]

    def pages(self, query: str, count: int) -> list[Paragraph]:
        """The best paragraph of each of the best pages, best first."""
        found: dict[int, Paragraph] = {}
        for one in self.search(query, 8 * count):
            found.setdefault(one.page, one)
        return list(found.values())[:count]

    def first(self, page: int) -> Paragraph:
        """The first paragraph of a page."""
        return self.paragraph(int(np.searchsorted(self._pages, page)))

    def _of_pages(self, pages: Sequence[int]) -> NDArray[np.int64]:
        """Paragraphs of these pages; those of one stand side by side."""
        wanted = sorted(set(pages))
        begins = np.searchsorted(self._pages, wanted, side="left")
        ends = np.searchsorted(self._pages, wanted, side="right")
        return np.concatenate([np.arange(a, b) for a, b in zip(begins, ends, strict=True)])


def fingerprint(folder: Path) -> str:
    """A hash of what the pages of an index say. Raises ``UserError`` for a folder that has none."""
    return Manifest.read(folder).content


class FewPages:
    """Pages of one paragraph each, as titles and texts."""

    def __init__(self, pages: Sequence[tuple[str, str]]) -> None:
        self._paragraphs = [Paragraph(n, n, title, text) for n, (title, text) in enumerate(pages)]

    def __len__(self) -> int:
        return len(self._paragraphs)

    def paragraph(self, place: int) -> Paragraph:
        """See ``Pages``."""
        if place < 0:
            raise IndexError(place)
        return self._paragraphs[place]

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        """See ``Pages``."""
        among = [one for one in self._paragraphs if not pages or one.page in pages]
        places = ranked(query, [f"{one.title} {one.text}" for one in among])
        return [among[place] for place in places[:count]]

    def pages(self, query: str, count: int) -> list[Paragraph]:
        """See ``Pages``."""
        return self.search(query, count)

    def first(self, page: int) -> Paragraph:
        """See ``Pages``."""
        return self.paragraph(page)
