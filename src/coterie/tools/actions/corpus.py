"""BM25 search over local pages. Each passage of the index is a paragraph of a page.

build_index(Path("pages.jsonl"), Path("pages"))      # from `retrieval.index`; rows with `title` and `text`
corpus = Corpus.open(Path("pages"))
corpus.search("capital of Norway", 3)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coterie.tools.actions.executor import rank
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
    """Paragraph of a page."""

    place: int
    page: int
    title: str
    text: str


class Pages(Protocol):
    """Searchable pages."""

    def __len__(self) -> int: ...

    def paragraph(self, place: int) -> Paragraph:
        """Return a paragraph by number. Raises ``IndexError``."""
        ...

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        """Return the best paragraphs that share a word with the query, best first, ties in order.

        ``pages`` restricts the search to these pages.
        """
        ...

    def pages(self, query: str, count: int) -> list[Paragraph]:
        """Return the best paragraph of each of the best pages, best first."""
        ...

    def first(self, page: int) -> Paragraph:
        """Return the first paragraph of a page."""
        ...


class Corpus:
    """Open index. Implements ``Pages``."""

    def __init__(self, folder: Path) -> None:
        self._passages, self._index = Passages(folder), Bm25(folder)
        self._pages: NDArray[np.int64] = np.load(folder / PAGES, mmap_mode="r")

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the index of a folder. Raises ``UserError`` for a bad index or if ``bm25s`` is missing."""
        check_index(IndexSettings(index=str(folder)))
        return cls(folder)

    def __len__(self) -> int:
        return len(self._passages)

    def paragraph(self, place: int) -> Paragraph:
        passage = self._passages[place]
        return Paragraph(place, int(self._pages[place]), passage.title, passage.text)

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        scores = self._index.scores(query)
        places = best(scores, count, self._of_pages(pages) if pages else None)
        return [self.paragraph(int(place)) for place in places]

    def pages(self, query: str, count: int) -> list[Paragraph]:
        by_page: dict[int, Paragraph] = {}
        for one in self.search(query, 8 * count):
            by_page.setdefault(one.page, one)
        return list(by_page.values())[:count]

    def first(self, page: int) -> Paragraph:
        return self.paragraph(int(np.searchsorted(self._pages, page)))

    def _of_pages(self, pages: Sequence[int]) -> NDArray[np.int64]:
        """Return the numbers of the paragraphs of these pages, which are contiguous per page."""
        numbers = sorted(set(pages))
        begins = np.searchsorted(self._pages, numbers, side="left")
        ends = np.searchsorted(self._pages, numbers, side="right")
        return np.concatenate([np.arange(a, b) for a, b in zip(begins, ends, strict=True)])


def fingerprint(folder: Path) -> str:
    """Return a hash of the pages of an index. Raises ``UserError`` for a folder without an index."""
    return Manifest.read(folder).content


class FewPages:
    """Pages in memory, of one paragraph each. Implements ``Pages``."""

    def __init__(self, pages: Sequence[tuple[str, str]]) -> None:
        self._paragraphs = [Paragraph(n, n, title, text) for n, (title, text) in enumerate(pages)]

    def __len__(self) -> int:
        return len(self._paragraphs)

    def paragraph(self, place: int) -> Paragraph:
        if place < 0:
            raise IndexError(place)
        return self._paragraphs[place]

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        among = [one for one in self._paragraphs if not pages or one.page in pages]
        places = rank(query, [f"{one.title} {one.text}" for one in among])
        return [among[place] for place in places[:count]]

    def pages(self, query: str, count: int) -> list[Paragraph]:
        return self.search(query, count)

    def first(self, page: int) -> Paragraph:
        return self.paragraph(page)
