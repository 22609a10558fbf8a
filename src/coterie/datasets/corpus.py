"""Passages, such as those of a set's rows, as a corpus that can be searched, in the form of ``coterie data index``.

A line is ``{"id": "0", "contents": "\\"TITLE\\"\\nTEXT"}``, as in the published corpora of Wikipedia.
Which passages are gold is not in it: the corpus is what an agent may search.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from coterie.config.folders import expanded, whole_file
from coterie.datasets.catalogue import find
from coterie.datasets.local import load_rows
from coterie.datasets.rows import QuestionRow
from coterie.errors import UserError


def distinct_passages(rows: Iterable[QuestionRow]) -> Iterator[tuple[str, str]]:
    """(title, text) of the passages of rows in their order, each once.

    Spaces and line ends count as one space, because a title is one line.
    """
    seen = set[tuple[str, str]]()
    for row in rows:
        for passage in row.passages:
            title, text = (" ".join(part.split()) for part in (passage.title, passage.text))
            if not text or (title, text) in seen:
                continue
            seen.add((title, text))
            yield title, text


def rows_of(name: str, sources: Iterable[str]) -> Iterator[QuestionRow]:
    """The rows of both splits of a set's sources (of a file: its rows). Raises ``UserError`` as ``local.load_rows``."""
    for source in sources:
        one_file = expanded(source).is_file()
        for split in find(name).splits[-1:] if one_file else find(name).splits:
            yield from load_rows(name, split, source)


def write_passages(passages: Iterable[tuple[str, str]], file: Path) -> int:
    """Write titles and texts as a new JSONL file, whole or not at all; how many there are.

    Raises ``UserError`` if there are none, and for a file that is there or can't be made.
    """
    count = 0
    with whole_file(file) as part, part.open("w", encoding="utf-8", newline="\n") as opened:
        for count, (title, text) in enumerate(passages, 1):
            line = {"id": str(count - 1), "contents": f'"{title}"\n{text}'}
            opened.write(json.dumps(line, ensure_ascii=False) + "\n")
        if not count:
            raise UserError(
                "these rows have no passages: nothing to search",
                "use hotpot_qa, 2wiki, musique or trivia_qa, from files that have the contexts",
            )
    return count
