"""Rows of web pages (WebSight), and what can be read from the HTML of a page.

Models write the pages, so all reading takes time in proportion to the length of a page.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from coterie.datasets.rows import Keys, QuestionRow, Raw, question_key

PICTURE = "https://picsum.photos/id/48"
_PICTURES = re.compile(
    r"https?://(?:source\.unsplash\.com/random/(\d+)x(\d+)|picsum\.photos/(\d+)/(\d+))[^\s\"'<>)\\]*"
)
_PAGES = [
    (re.compile(rf"<{tag}\b", re.IGNORECASE), re.compile(rf"</{tag}\s*>", re.IGNORECASE))
    for tag in ("html", "body")
]
"""Beginning and end of a page."""
SHOWN = ("class", "style", "bgcolor")
"""Attributes in an outline."""
HIDDEN = frozenset({"iframe", "noscript", "script", "style", "template", "title"})
"""Tags whose text is not on the page; the other tags of a head have none."""
MAX_DEPTH = 256
"""Levels of elements; what follows a deeper one is not read. Chromium nests at most 512."""
MAX_CHARACTERS = 1 << 20
"""Beginning of a page that is read."""
PIECE = 4096
"""Bytes that lxml parses before it reports that a page is too deep."""
UNSEEN = frozenset({"head", "html", "link", "meta"})


class WebSightRow(QuestionRow):
    """Idea of a web page, and the page. Also reads ColBench's rows of frontend tasks."""

    columns: ClassVar[Keys | None] = (
        "llm_generated_idea", "text", "problem_description", "ground_truth", "id", "question", "answer",
    )  # fmt: skip
    answer: str
    """HTML of the page, visible only to the user, the critic and the grader."""

    @property
    def flaw(self) -> str:
        return "" if page_in(self.answer) else "has no page"

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        question = raw.get(
            "llm_generated_idea", raw.get("problem_description", raw.get("question"))
        )
        html = raw.get("text", raw.get("ground_truth", raw.get("answer")))
        html = with_pictures(html) if isinstance(html, str) else html
        return {"id": raw.get("id") or question_key(question), "question": question, "answer": html}


def with_pictures(html: str) -> str:
    """Replace the whole URLs of random pictures by the URL of one picture of their size, as ColBench does."""
    return _PICTURES.sub(
        lambda match: f"{PICTURE}/{match[1] or match[3]}/{match[2] or match[4]}", html
    )


def page_in(text: str) -> str | None:
    """Return the first page of a text, from ``<html>`` or else ``<body>`` to its end; ``None`` without one."""
    for begin, end in _PAGES:
        first = begin.search(text)
        last = first and end.search(text, first.end())
        if first and last:
            return with_pictures(text[first.start() : last.end()])
    return None


@dataclass(slots=True)
class Element:
    """Visible element of a page."""

    tag: str
    depth: int
    attributes: dict[str, str]
    texts: list[str] = field(default_factory=list)
    """Its text outside of the elements in it, in pieces."""


class _TooDeep(Exception):
    """Element below ``MAX_DEPTH`` others."""


class _Reader:
    """Target of lxml's parser, which reports well nested elements and pieces of text.

    lxml is linear in the length of a page of bounded depth. The parser of Python is quadratic for repeated tags.
    """

    def __init__(self, html: str) -> None:
        from lxml import etree

        self.elements: list[Element] = []
        self.texts: list[str] = []
        self._open: list[Element] = []
        self._hidden = 0
        """Number of open elements whose text is not on the page."""
        self._pieces: list[str] = []
        """Text since the last tag; entities are pieces of their own."""
        parser = etree.HTMLParser(target=self, encoding="utf-8")
        page = html[:MAX_CHARACTERS].encode(errors="replace")
        with suppress(_TooDeep, etree.LxmlError):  # then it is what came before
            for start in range(0, len(page), PIECE):
                parser.feed(page[start : start + PIECE])
            parser.close()
        self._end_text()

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._end_text()
        if len(self._open) == MAX_DEPTH:
            raise _TooDeep
        self._hidden += tag in HIDDEN
        element = Element(tag, len(self._open), dict(attributes))
        if not self._hidden:
            self.elements.append(element)
        self._open.append(element)

    def end(self, tag: str) -> None:
        self._end_text()
        self._hidden -= tag in HIDDEN
        self._open.pop()

    def data(self, text: str) -> None:
        self._pieces.append(text)

    def close(self) -> None:
        """Return None; the events were stored."""

    def _end_text(self) -> None:
        text = " ".join("".join(self._pieces).split())
        self._pieces = []
        if text and not self._hidden:
            self.texts.append(text)
            if self._open:
                self._open[-1].texts.append(text)


def elements(html: str) -> list[Element]:
    """Return the visible elements of a page in order, also of broken HTML. Styles are not applied."""
    return _Reader(html).elements


def text_of(html: str) -> str:
    """Return the visible text of HTML, which may be broken. Styles are not applied."""
    return " ".join(_Reader(html).texts)


def outline(html: str, max_characters: int) -> str:
    """Describe a page: a line for each visible element with its style and text, indented, until the limit."""
    lines = []
    for element in elements(html):
        if element.tag not in UNSEEN:
            style = " ".join(element.attributes.get(name, "") for name in SHOWN)
            line = f"{'  ' * min(element.depth, 6)}{element.tag} {' '.join(style.split())}".rstrip()
            lines.append(line + f": {' '.join(element.texts)}" * bool(element.texts))
    text = "\n".join(lines)
    if len(text) <= max_characters:
        return text
    return f"{text[:max_characters].rpartition(chr(10))[0]}\n..."
