"""Match the actions of a web page with a list of candidate elements, as in Deng et al. 2023.

An action selects the candidate whose text matches its words best. Nothing is clicked: its value is an operation on an
element, which :func:`score` compares with the gold operation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rapidfuzz import fuzz

from coterie.tools.actions.executor import SECONDS, Executor, Failed, word_f1
from coterie.tools.actions.grammar import Action

CANDIDATES = 50
"""Number of leading candidates that are considered."""
Kind = Literal["CLICK", "TYPE", "SELECT"]
_TAGS: Mapping[str, frozenset[str]] = {
    "TYPE": frozenset({"input", "textarea", "searchbox", "textbox", "combobox"}),
    "SELECT": frozenset({"select", "option", "listbox", "combobox"}),
}
_TAG_WEIGHT = 0.1
"""Weight of a tag that suits the operation; a full match of words has 1."""
_LETTER_WEIGHT = 0.5
"""Weight of the similarity of letters."""
_LEAST = 0.25
_OPERATION = re.compile(r"(CLICK|TYPE|SELECT) \[([^\]\n]*)\](?: (.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Element:
    """Candidate element. Candidates are ordered by a ranker."""

    id: str
    """Id without ``]``."""
    tag: str
    text: str
    """Text, label and placeholder."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation on an element."""

    kind: Kind
    element: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind} [{self.element}] {self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class Gold:
    """Gold operation of a step."""

    elements: frozenset[str]
    kind: Kind
    value: str = ""


@dataclass(frozen=True, slots=True)
class StepScore:
    """Score of a step."""

    element: bool
    operation: bool
    """True if the kind and the value are correct."""

    @property
    def success(self) -> bool:
        """Step success of Deng et al. 2023: element and operation are correct."""
        return self.element and self.operation


class WebExecutor(Executor):
    """Executor of the domain ``web``. Each value is an operation as text (:func:`read_operation`)."""

    variables = ("Env",)

    def __init__(self, candidates: Sequence[Element], *, seconds: float = SECONDS) -> None:
        super().__init__(seconds=seconds)
        self.candidates = tuple(candidates[:CANDIDATES])

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """See ``Executor``."""
        return str(choose(action, self.candidates))


def choose(action: Action, candidates: Sequence[Element]) -> Operation:
    """Return the operation of an action. Raises :class:`Failed` if no element matches."""
    if action.tool not in get_args(Kind):
        raise Failed("there is no such tool")
    kind: Kind = action.tool  # type: ignore[assignment]
    by_label = {one.label: one.text for one in action.arguments}
    query, value = by_label.get("query", "").strip(), by_label.get("text", "").strip()
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
    """Parse a value of a ``WebExecutor``; ``None`` for other text."""
    match = _OPERATION.fullmatch(text)
    return Operation(match[1], match[2], match[3] or "") if match else None  # type: ignore[arg-type]


def score(done: Operation | None, gold: Gold) -> StepScore:
    """Compare an operation with the gold one; values ignore case and spacing. ``None`` is wrong."""
    if done is None:
        return StepScore(False, False)
    same = done.value.casefold().split() == gold.value.casefold().split()
    correct = done.kind == gold.kind and (same or gold.kind == "CLICK")
    return StepScore(done.element in gold.elements, correct)


def _fit(kind: str, query: str, element: Element) -> float:
    """Score a candidate by common words, then similarity of letters, then the tag."""
    text = element.text[:500]
    words = (
        word_f1(query, f"{text} {element.tag}")
        if element.tag in query.lower()
        else word_f1(query, text)
    )
    letters = fuzz.ratio(query.casefold(), text.casefold()) / 100
    return (
        words
        + _LETTER_WEIGHT * letters
        + _TAG_WEIGHT * (element.tag.lower() in _TAGS.get(kind, ()))
    )
