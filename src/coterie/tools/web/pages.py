"""Pages in a file instead of the web: searched by BM25 and read by their URLs, so that runs need no net.

A JSONL file, in memory, of rows such as ``{"url": "https://example.org/oslo", "title": "Oslo", "text": "..."}``, some
with a ``date``.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.errors import UserError
from coterie.tools.web.wire import Hit

SNIPPET = 300
"""Characters of a page that a hit shows."""


class PageRow(BaseModel):
    """A page."""

    model_config = ConfigDict(extra="ignore")

    url: str = Field(min_length=1)
    title: str
    text: str = Field(min_length=1)
    date: str | None = None


@dataclass(frozen=True)
class PageFile:
    """The pages of a file."""

    rows: tuple[PageRow, ...]
    identity: str
    """A hash of the file."""

    @classmethod
    def read(cls, file: Path) -> "PageFile":
        """Read a file. Raises ``UserError`` that names the line which is not a page, and for two of one URL."""
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UserError(
                f"{file} can't be read: {error}", "give a JSONL file of pages"
            ) from error
        rows = tuple(_rows(file, content))
        urls: set[str] = set()
        for row in rows:
            if row.url in urls:
                raise UserError(f"{file} has two pages of {row.url}", "remove one of them")
            urls.add(row.url)
        if not rows:
            raise UserError(f"{file} has no page", "give rows with url, title and text")
        return cls(rows, hashlib.sha256(content).hexdigest()[:16])


class PageIndex:
    """Pages by BM25 over titles and texts (package ``bm25s``). Raises ``UserError`` if it is missing."""

    def __init__(self, pages: PageFile) -> None:
        self._bm25s = need_bm25s()
        self._rows = pages.rows
        texts = [f"{row.title} {row.text}" for row in pages.rows]
        self._index = self._bm25s.BM25()
        tokens = self._bm25s.tokenize(texts, show_progress=False)
        self._index.index(tokens, show_progress=False)

    def search(self, query: str, count: int) -> list[Hit]:
        """The best pages, best first, equal ones in the file's order; none without a word of the query."""
        (tokens,) = self._bm25s.tokenize([query], return_ids=False, show_progress=False)
        known = [one for one in tokens if one in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        best = sorted(
            (place for place in range(len(scores)) if scores[place] > 0),
            key=lambda at: (-scores[at], at),
        )
        return [_hit(self._rows[place], known) for place in best[:count]]


def need_bm25s() -> Any:
    """The package. Raises ``UserError`` if it is missing."""
    try:
        import bm25s
    except ImportError as error:
        raise UserError(
            "searching pages needs the package bm25s", "pip install 'coterie[retrieval]'"
        ) from error
    return bm25s


def _hit(row: PageRow, words: list[str]) -> Hit:
    """A hit whose snippet is the line that has most of the words."""
    lines = [line.strip() for line in row.text.splitlines() if line.strip()]
    best = max(lines, key=lambda line: sum(word in line.lower() for word in words), default="")
    return Hit(title=row.title, link=row.url, snippet=best[:SNIPPET], date=row.date)


def _rows(file: Path, content: bytes) -> Iterator[PageRow]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                yield PageRow.model_validate_json(line)
            except ValidationError as error:
                raise UserError(
                    f"{file}, line {number}, is not a page: {error.errors()[0]['msg']}",
                    'a row is {"url": "https://example.org/oslo", "title": "Oslo", "text": "Oslo is ..."}',
                ) from error
