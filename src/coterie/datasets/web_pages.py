"""Rows of web pages (WebSight), and what can be read from the HTML of a page."""

import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import ClassVar

from coterie.datasets.rows import Keys, QuestionRow, Raw, question_key

PICTURE = "https://picsum.photos/id/48"
_PICTURES = re.compile(
    r"https?://(?:source\.unsplash\.com/random/(\d+)x(\d+)|picsum\.photos/(\d+)/(\d+))[^\s\"'<>)\\]*"
)
_PAGES = [re.compile(rf"<{tag}\b.*?</{tag}\s*>", re.DOTALL | re.I) for tag in ("html", "body")]
SHOWN = ("class", "style", "bgcolor")
"""Attributes in an outline."""
HIDDEN = frozenset({"iframe", "noscript", "script", "style", "template", "title"})
"""Tags whose text is not on the page; the other tags of a head have none."""
VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}
)
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
    matches = (pattern.search(text) for pattern in _PAGES)
    return next((with_pictures(match[0]) for match in matches if match), None)


@dataclass(slots=True)
class Element:
    """Visible element of a page."""

    tag: str
    depth: int
    attributes: dict[str, str]
    text: str = ""


class _Reader(HTMLParser):
    parse_marked_section = HTMLParser.parse_bogus_comment  # as browsers; else some raise errors

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.texts: list[str] = []
        self.open: list[Element] = []
        self.feed(html)
        self.close()

    @property
    def hidden(self) -> bool:
        return any(one.tag in HIDDEN for one in self.open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        one = Element(tag, len(self.open), {name: value or "" for name, value in attrs})
        if tag not in HIDDEN and not self.hidden:
            self.elements.append(one)
        # These elements have no end tag, so they never stay open.
        if tag not in VOID:
            self.open.append(one)

    def handle_endtag(self, tag: str) -> None:
        # An end tag also closes elements left open inside; one without a start tag is ignored.
        places = [place for place, one in enumerate(self.open) if one.tag == tag]
        if places:
            del self.open[places[-1] :]

    def handle_data(self, data: str) -> None:
        if self.hidden:
            return
        self.texts.append(data)
        if self.open:
            self.open[-1].text = " ".join(f"{self.open[-1].text} {data}".split())


def elements(html: str) -> list[Element]:
    """Return the visible elements of a page in order, also of broken HTML. Styles are not applied."""
    return _Reader(html).elements


def text_of(html: str) -> str:
    """Return the visible text of HTML, which may be broken. Styles are not applied."""
    return " ".join(" ".join(_Reader(html).texts).split())


def outline(html: str, max_characters: int) -> str:
    """Describe a page: a line for each visible element with its style and text, indented, until the limit."""
    lines = []
    for one in elements(html):
        if one.tag not in UNSEEN:
            style = " ".join(one.attributes[name] for name in SHOWN if one.attributes.get(name))
            # The indentation is limited, because deep pages would spend the characters on spaces.
            line = f"{'  ' * min(one.depth, 6)}{one.tag} {style}".rstrip()
            lines.append(line + f": {one.text}" * bool(one.text))
    text = "\n".join(lines)
    if len(text) <= max_characters:
        return text
    # Cut at a line end, so that no element is described in part.
    return f"{text[:max_characters].rpartition(chr(10))[0]}\n..."
