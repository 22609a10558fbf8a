"""The tags of GAP's messages: the segments of a text, and where their order breaks the rules of the prompts.

Nothing here is enforced while an agent plays; violations are counted. What stands in an observation is not the
model's: its tags are text.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.environments.code_text import python_blocks

CALLS = ("wiki_search", "web_search", "crawl_page", "code", "graph")
NAMES = ("think", "plan", *CALLS, "reflection", "suggested_answer", "double_check", "answer",
         "observation")  # fmt: skip
_TAG = re.compile(
    f"<(/?)({'|'.join(NAMES)})>"
)  # a graph with attributes is none that the prompt shows

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
    """One tagged part of a text. ``text[start:end]`` has its tags too."""

    name: str
    body: str
    start: int
    end: int
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Scan:
    """The segments of a text, in their order, and where closing tags stand that close nothing."""

    segments: tuple[Segment, ...]
    stray: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong, with which tag, at which character."""

    fault: Fault
    name: str
    start: int


def scan(text: str) -> Scan:
    """The segments. A tag that opens inside another segment ends that one, which is then not closed."""
    segments: list[Segment] = []
    stray: list[tuple[str, int]] = []
    opened: re.Match[str] | None = None

    def end(until: int, after: int, closed: bool) -> None:
        if opened:
            body = text[opened.end() : until]
            segments.append(Segment(opened[2], body, opened.start(), after, closed))

    for tag in _TAG.finditer(text):
        closing, name = tag[1], tag[2]
        if opened and opened[2] == "observation" and not (closing and name == "observation"):
            continue
        if not closing:
            end(tag.start(), tag.start(), False)
            opened = tag
        elif opened and opened[2] == name:
            end(tag.start(), tag.end(), True)
            opened = None
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
"""What may follow, by what came before, thoughts and observations left out; the empty name is the beginning."""
_WITHOUT_THINKING: Mapping[AgentKind, tuple[str, ...]] = {
    "mhqa": (),
    "web": (),
    "code": ("plan", "reflection"),
}
"""What needs no thought before it."""


def violations(text: str, kind: AgentKind) -> list[Violation]:
    """Where a trajectory (all that follows the question) breaks the rules of this kind of agent."""
    found = scan(text)
    stray = [Violation("closed without being open", *one) for one in found.stray]
    every = [*stray, *_of_segments(found.segments, kind)]
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
