"""Runs the actions of a web page against a list of candidate elements, as in Deng et al. 2023.

The element is the candidate whose text fits the words best. Nothing is clicked: the value of an action says which
element it takes and what is done with it, and :func:`score` compares that with what is right.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rapidfuzz import fuzz

from coterie.tools.actions.executor import SECONDS, Executor, Failed, word_f1
from coterie.tools.actions.grammar import Action

CANDIDATES = 50
"""How many elements are looked at, the first ones."""
Kind = Literal["CLICK", "TYPE", "SELECT"]
_TAGS: Mapping[str, frozenset[str]] = {
    "TYPE": frozenset({"input", "textarea", "searchbox", "textbox", "combobox"}),
    "SELECT": frozenset({"select", "option", "listbox", "combobox"}),
}
_FITTING = 0.1
"""What an element's tag counts that fits the operation; a full match of words is 1."""
_LIKE = 0.5
"""What the likeness of letters counts."""
_LEAST = 0.25
_OPERATION = re.compile(r"(CLICK|TYPE|SELECT) \[([^\]\n]*)\](?: (.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Element:
    """A candidate; those that a ranker likes better stand first."""

    id: str
    """Without ``]``."""
    tag: str
    text: str
    """What it shows, its label, its placeholder."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What is done with which element."""

    kind: Kind
    element: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind} [{self.element}] {self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class Gold:
    """What is right in a step."""

    elements: frozenset[str]
    kind: Kind
    value: str = ""


@dataclass(frozen=True, slots=True)
class StepScore:
    """How right a step is."""

    element: bool
    operation: bool
    """Whether the kind and the value are right."""

    @property
    def success(self) -> bool:
        """Whether all is right: the step success of Deng et al. 2023."""
        return self.element and self.operation


class WebExecutor(Executor):
    """Runs actions of the domain ``web``. Each value is an operation as text (:func:`read_operation`)."""

    given = ("Env",)

    def __init__(self, candidates: Sequence[Element], *, seconds: float = SECONDS) -> None:
        super().__init__(seconds=seconds)
        self.candidates = tuple(candidates[:CANDIDATES])

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """See ``Executor``."""
        return str(choose(action, self.candidates))


def choose(action: Action, candidates: Sequence[Element]) -> Operation:
    """The operation that an action stands for; raises :class:`Failed` if no element fits."""
    if action.tool not in get_args(Kind):
        raise Failed("there is no such tool")
    kind: Kind = action.tool  # type: ignore[assignment]
    labelled = {one.label: one.text for one in action.arguments}
    query, value = labelled.get("query", "").strip(), labelled.get("text", "").strip()
    if not query:
        raise Failed("it names no element")
    if kind != "CLICK" and not value:
        raise Failed("it names no text")
    scores = [_fit(kind, query, one) for one in candidates]
    best = max(range(len(scores)), key=lambda at: (scores[at], -at), default=None)
    if best is None or scores[best] < _LEAST:
        raise Failed("no element of the page fits")
    return Operation(kind, candidates[best].id, "" if kind == "CLICK" else value)


def read_operation(text: str) -> Operation | None:
    """The operation that a value of a ``WebExecutor`` states; ``None`` for another text."""
    found = _OPERATION.fullmatch(text)
    return Operation(found[1], found[2], found[3] or "") if found else None  # type: ignore[arg-type]


def score(done: Operation | None, gold: Gold) -> StepScore:
    """Compare with what is right; values count by their words, whatever their case. ``None`` is wrong."""
    if done is None:
        return StepScore(False, False)
    same = done.value.casefold().split() == gold.value.casefold().split()
    right = done.kind == gold.kind and (same or gold.kind == "CLICK")
    return StepScore(done.element in gold.elements, right)


def _fit(kind: str, query: str, element: Element) -> float:
    """Words in common count most, then likeness of letters, then the tag."""
    text = element.text[:500]
    words = (
        word_f1(query, f"{text} {element.tag}")
        if element.tag in query.lower()
        else word_f1(query, text)
    )
    letters = fuzz.ratio(query.casefold(), text.casefold()) / 100
    return words + _LIKE * letters + _FITTING * (element.tag.lower() in _TAGS.get(kind, ()))
