"""Passages on disk: read from a person's file, written once, then read one by one from a map of the file.

A corpus may have tens of millions of passages, so none of them is kept as an object: a folder has the passages as JSON
lines, and where each begins.
"""

import gzip
import hashlib
import json
import mmap
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from coterie.config.text import read_json
from coterie.errors import UserError
from coterie.progress import Progress

PASSAGES, OFFSETS, PAGES = "passages.jsonl", "offsets.npy", "pages.npy"
MAX_CHARACTERS = 2000
"""Of a paragraph; a longer one is cut into several."""
ROW = 'a row is {"id": "7", "contents": "\\"Oslo\\"\\nOslo is a city."} or {"title": "Oslo", "text": "Oslo is a city."}'


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that is found as a whole."""

    id: str
    contents: str
    """Its title in quotes, in a line by itself, then its text; or a text alone."""

    @property
    def title(self) -> str:
        """Its title; empty if it has none."""
        first, line_end, _ = self.contents.partition("\n")
        return first[1:-1] if line_end and _quoted(first) else ""

    @property
    def text(self) -> str:
        """All but the title."""
        first, line_end, rest = self.contents.partition("\n")
        return rest if line_end and _quoted(first) else self.contents


class Passages:
    """The passages of a folder, by their place. May be read by several threads."""

    def __init__(self, folder: Path) -> None:
        self._offsets: NDArray[np.int64] = np.load(folder / OFFSETS, mmap_mode="r")
        with (folder / PASSAGES).open("rb") as file:
            self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if int(self._offsets[-1]) != len(self._rows):
            raise UserError(f"{folder} is damaged: {PASSAGES} was changed", "make the index again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> Passage:
        if not 0 <= place < len(self):
            raise IndexError(place)
        row = json.loads(self._rows[int(self._offsets[place]) : int(self._offsets[place + 1])])
        return Passage(row["id"], row["contents"])

    def __iter__(self) -> Iterator[Passage]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of a corpus."""

    passages: int
    pages: int
    content: str
    """A hash of all passages in their order."""


class PassageWriter:
    """Writes passages into a folder, as they go by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets = array("q", [0])
        self._pages = array("q")
        self._hash = hashlib.sha256()

    def passing(self, rows: Iterator[tuple[int, Passage]]) -> Iterator[str]:
        """The contents of passages that are written; ``rows`` have each with the number of its page."""
        with (self._folder / PASSAGES).open("wb") as out:
            for page, one in rows:
                told = {"id": one.id, "contents": one.contents}
                row = (json.dumps(told, ensure_ascii=False) + "\n").encode()
                out.write(row)
                self._hash.update(row)
                self._offsets.append(self._offsets[-1] + len(row))
                self._pages.append(page)
                yield one.contents

    def finish(self) -> Written:
        """Write where each of them begins, and of which page it is."""
        np.save(self._folder / OFFSETS, np.frombuffer(self._offsets, np.int64))
        np.save(self._folder / PAGES, np.frombuffer(self._pages, np.int64))
        pages = self._pages[-1] + 1 if self._pages else 0
        return Written(len(self._pages), pages, self._hash.hexdigest())


def read_rows(file: Path, progress: Progress) -> Iterator[tuple[int, Passage]]:
    """The passages of a JSONL file (``.gz``: compressed), each with the number of its row, from 0.

    A row with ``contents`` is one passage. One with ``title`` and ``text`` is a page: its text is cut at line ends into
    paragraphs. Raises ``UserError`` that names the line, and for a file that can't be read.
    """
    try:
        with file.open("rb") as raw:
            progress.start(file.stat().st_size, "reading")
            page = seen = 0
            for number, line in enumerate(_lines(raw, file), 1):
                if number % 1000 == 0:
                    progress.advance(raw.tell() - seen)
                    seen = raw.tell()
                if line.strip():
                    for passage in _passages(_row(file, number, line), page, file, number):
                        yield page, passage
                    page += 1
            progress.advance(file.stat().st_size - seen)
    except (OSError, EOFError) as error:
        raise UserError(f"{file} can't be read: {error}", "give a JSONL file in UTF-8") from error


def _quoted(line: str) -> bool:
    return len(line) >= 2 and line[0] == line[-1] == '"'


def _lines(raw: BinaryIO, file: Path) -> Iterator[bytes]:
    if file.suffix != ".gz":
        yield from raw
        return
    with gzip.open(raw) as lines:
        yield from lines


def _row(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = read_json(line.decode())
    except ValueError as error:
        raise _bad(file, number) from error
    if not isinstance(row, dict):
        raise _bad(file, number)
    return row


def _passages(row: dict[str, Any], page: int, file: Path, number: int) -> Iterator[Passage]:
    """The passages of a row; ids are its own, or its number, and its paragraphs are counted from 0."""
    id_ = str(row.get("id", page))
    if "contents" in row:
        yield Passage(id_, _text(row["contents"], file, number))
        return
    title, text = row.get("title"), _text(row.get("text"), file, number)
    if not isinstance(title, str):
        raise _bad(file, number)
    title = " ".join(title.split())
    pieces = list(_paragraphs(text))
    for count, piece in enumerate(pieces):
        own = id_ if len(pieces) == 1 else f"{id_}-{count}"
        yield Passage(own, f'"{title}"\n{piece}')


def _paragraphs(text: str) -> Iterator[str]:
    for line in text.splitlines():
        line = " ".join(line.split())
        for begin in range(0, len(line), MAX_CHARACTERS):
            yield line[begin : begin + MAX_CHARACTERS]


def _text(value: object, file: Path, number: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _bad(file, number)
    return value


def _bad(file: Path, number: int) -> UserError:
    return UserError(
        f"{file}, line {number}, is not a row with `contents`, or with the texts `title` and `text`",
        ROW,
    )
