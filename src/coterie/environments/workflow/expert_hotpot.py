"""What an expert does with a row of HotpotQA: the two pages that it rests on, at once or one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.datasets.rows import HotpotRow
from coterie.environments.workflow.names import alike, bare, says, spelled, words
from coterie.environments.workflow.steps import NoTrace, Step, traced
from coterie.environments.workflow.trace import Trace

NOT_TWO = "it does not rest on two pages"
UNNAMED = "the question does not name what it compares"
APART = "neither page names the other"
NO_ANSWER = "the answer is not in the pages"
MOST_WORDS = 14
"""Of a clause of a page in a thought."""
MOST_ASKED = 12
"""Words of the question in a query."""
_EMPTY = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "in",
        "on",
        "at",
        "to",
        "for",
        "from",
        "by",
        "with",
        "and",
        "or",
        "but",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "do",
        "does",
        "did",
        "has",
        "have",
        "had",
        "that",
        "this",
        "these",
        "those",
        "which",
        "who",
        "whom",
        "whose",
        "what",
        "when",
        "where",
        "why",
        "how",
        "it",
        "its",
        "he",
        "she",
        "his",
        "her",
        "they",
        "their",
        "them",
        "as",
        "than",
        "then",
        "also",
        "both",
        "s",
        "there",
        "can",
        "could",
        "would",
        "will",
        "about",
        "into",
    ]
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page that the answer rests on."""

    title: str
    text: str
    clause: str
    """The beginning of the sentence that supports the answer."""


def trace_of_hotpot(row: HotpotRow) -> Trace:
    """The trace of a row. Raises :class:`NoTrace`."""
    pages = _pages(row)
    if len(pages) != 2:
        raise NoTrace(NOT_TWO)
    yes_or_no = words(row.answer) in (("yes",), ("no",))
    if not yes_or_no and not any(
        says(f"{one.title}\n{one.text}", row.answer) or alike(one.title, row.answer)
        for one in pages
    ):
        raise NoTrace(NO_ANSWER)
    names = [_named(row.question, one.title) for one in pages]
    if all(names):
        steps = [
            _side(row, page, name, [one for one in names if one != name])
            for page, name in zip(pages, names, strict=True)
        ]
        return traced(row.question, row.answer, steps, compare=True)
    if row.type == "comparison":
        raise NoTrace(UNNAMED)
    return traced(row.question, row.answer, _bridge(row, pages, names))


def _side(row: HotpotRow, page: Page, name: str, others: Sequence[str]) -> Step:
    """One of two things that the question names."""
    query = " ".join((name, *_asked(row.question, (name, *others))))
    return Step(query, query, page.title, page.clause)


def _bridge(row: HotpotRow, pages: Sequence[Page], names: Sequence[str]) -> list[Step]:
    """The page that the question leads to, then the one that it names."""
    both = sorted(
        zip(pages, names, strict=True),
        key=lambda one: (bool(one[1]), _overlap(row.question, one[0])),
        reverse=True,
    )
    (first, named), (second, _) = both if _leads(*pages_of(both)) else both[::-1]
    if not _leads(first, second):
        raise NoTrace(APART)
    rest = _asked(row.question, (named,) if named else ())
    query = " ".join((named, *rest) if named else rest)
    known = bare(second.title)
    following = _asked(row.question, (named, known))
    steps = [Step(query, query, second.title, f"{bare(first.title)} leads to {known}.")]
    clause = f"{known}: {row.answer}."
    steps.append(
        Step(
            " ".join(("{T1}", *following)),
            " ".join((known, *following)),
            row.answer,
            clause,
            ("T1",),
        )
    )
    return steps


def pages_of(both: Sequence[tuple[Page, str]]) -> tuple[Page, Page]:
    """The two pages."""
    return both[0][0], both[1][0]


def _leads(first: Page, second: Page) -> bool:
    return says(first.text, bare(second.title))


def _named(question: str, title: str) -> str:
    """A title as the question spells it; empty if it does not."""
    return spelled(question, title) or spelled(question, bare(title))


def _overlap(question: str, page: Page) -> int:
    return len(set(words(question)) & (set(words(f"{page.title} {page.text}")) - _EMPTY))


def _asked(question: str, without: Sequence[str]) -> list[str]:
    """What the question says besides some names."""
    left = {word for name in without for word in words(name)} | _EMPTY
    kept = (one.strip("\"'.,;:?!()") for one in question.split())
    return [one for one in kept if one and not set(words(one)) <= left][:MOST_ASKED]


def _pages(row: HotpotRow) -> list[Page]:
    texts = {one.title: one.sentences for one in row.context}
    places: dict[str, int] = {}
    for fact in row.supporting_facts:
        places.setdefault(fact.title, fact.sentence)
    return [
        Page(title, row.glue.join(texts[title]), _clause(texts[title], place))
        for title, place in places.items()
        if title in texts
    ]


def _clause(sentences: Sequence[str], place: int) -> str:
    """The beginning of a sentence; of the first where upstream names one that is not there."""
    said = (sentences[place] if place < len(sentences) else sentences[0]).split()
    if len(said) <= MOST_WORDS:
        return " ".join(said)
    return f"{' '.join(said[:MOST_WORDS]).rstrip(',;:')}..."
