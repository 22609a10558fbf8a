"""Tagged segments of GAP's messages, and violations of the order that the prompts require.

Violations are only counted, not enforced. Tags inside an observation are text, because the model did not write them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.environments.code_text import python_blocks

CALLS = ("wiki_search", "web_search", "crawl_page", "code", "graph")
NAMES = ("think", "plan", *CALLS, "reflection", "suggested_answer", "double_check", "answer",
         "observation")  # fmt: skip
_TAG = re.compile(f"<(/?)({'|'.join(NAMES)})>")  # the prompts show no graph with attributes

AgentKind = Literal["mhqa", "web", "code"]
Fault = Literal[
    "no think before it",
    "wrong order",
    "not of this agent",
    "not between fences",
    "not closed",
    "closed without being open",
    "observation without a call",
    "call without an observation",
    "after the answer",
]


@dataclass(frozen=True, slots=True)
class Segment:
    """A tagged part of a text. ``text[start:end]`` includes the tags."""

    name: str
    body: str
    start: int
    end: int
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Scan:
    """Segments of a text in order, and names and positions of closing tags without an opening tag."""

    segments: tuple[Segment, ...]
    stray: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation by a tag at a character position."""

    fault: Fault
    name: str
    start: int


def scan(text: str) -> Scan:
    """Return the segments of a text. An opening tag inside another segment ends it; that segment is not closed."""
    segments: list[Segment] = []
    stray: list[tuple[str, int]] = []
    opening: re.Match[str] | None = None

    def end(until: int, after: int, closed: bool) -> None:
        if opening:
            body = text[opening.end() : until]
            segments.append(Segment(opening[2], body, opening.start(), after, closed))

    for tag in _TAG.finditer(text):
        closing, name = tag[1], tag[2]
        if opening and opening[2] == "observation" and not (closing and name == "observation"):
            continue
        if not closing:
            end(tag.start(), tag.start(), False)
            opening = tag
        elif opening and opening[2] == name:
            end(tag.start(), tag.end(), True)
            opening = None
        else:
            stray.append((name, tag.start()))
    end(len(text), len(text), False)
    return Scan(tuple(segments), tuple(stray))


_SEARCH = ("web_search", "crawl_page", "graph")
_NEXT: Mapping[AgentKind, Mapping[str, tuple[str, ...]]] = {
    "mhqa": {
        "": ("plan", "wiki_search", "graph"),
        "plan": ("wiki_search", "graph"),
        "wiki_search": ("wiki_search", "graph", "reflection", "answer"),
        "graph": ("wiki_search", "graph", "reflection", "answer"),
        "reflection": ("plan", "wiki_search", "graph"),
    },
    "web": {
        "": ("plan", *_SEARCH),
        "plan": (*_SEARCH, "suggested_answer"),
        "web_search": (*_SEARCH, "reflection", "suggested_answer"),
        "crawl_page": (*_SEARCH, "reflection", "suggested_answer"),
        "graph": (*_SEARCH, "reflection", "suggested_answer"),
        "reflection": ("plan", *_SEARCH, "suggested_answer"),
        "suggested_answer": ("double_check",),
        "double_check": ("plan", *_SEARCH, "answer"),
    },
    "code": {
        "": ("plan",),
        "plan": ("code", "answer"),
        "code": ("reflection",),
        "reflection": ("code", "answer"),
    },
}
"""Allowed next tags by previous tag, without thoughts and observations; "" is the beginning."""
_WITHOUT_THINKING: Mapping[AgentKind, tuple[str, ...]] = {
    "mhqa": (),
    "web": (),
    "code": ("plan", "reflection"),
}
"""Tags that need no thought before them."""


def violations(text: str, kind: AgentKind) -> list[Violation]:
    """Return the violations in a trajectory (the text after the question) for this kind of agent."""
    result = scan(text)
    stray = [Violation("closed without being open", *one) for one in result.stray]
    every = [*stray, *_of_segments(result.segments, kind)]
    return sorted(every, key=lambda one: one.start)


def _of_segments(segments: tuple[Segment, ...], kind: AgentKind) -> Iterator[Violation]:
    rules, last, previous = _NEXT[kind], "", ""
    for number, one in enumerate(segments):
        name = one.name
        if not one.closed:
            yield Violation("not closed", name, one.start)
        if last == "answer":
            yield Violation("after the answer", name, one.start)
        elif name == "observation":
            if previous not in (*CALLS, "observation"):
                yield Violation("observation without a call", name, one.start)
        elif name != "think":
            yield from _of_step(one, kind, last, previous)
            last = name if name in rules or name == "answer" else last
        after = segments[number + 1].name if number + 1 < len(segments) else None
        if name in CALLS and after is not None and after not in ("observation", *CALLS):
            yield Violation("call without an observation", name, one.start)
        previous = name


def _of_step(one: Segment, kind: AgentKind, last: str, previous: str) -> Iterator[Violation]:
    rules, name = _NEXT[kind], one.name
    if name not in rules and name != "answer":
        yield Violation("not of this agent", name, one.start)
        return
    if name not in rules.get(last, ()):
        yield Violation("wrong order", name, one.start)
    beside = name in CALLS and previous in CALLS  # one message, several calls
    if previous != "think" and not beside and name not in _WITHOUT_THINKING[kind]:
        yield Violation("no think before it", name, one.start)
    if name == "code" and one.closed and not python_blocks(one.body):
        yield Violation("not between fences", name, one.start)
