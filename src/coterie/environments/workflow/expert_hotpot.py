"""What an expert does with a row of HotpotQA: the two pages that it rests on, at once or one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.datasets.rows import HotpotRow
from coterie.environments.workflow.names import alike, bare, says, spelled, telling, words
from coterie.environments.workflow.steps import NoTrace, Step, is_yes_or_no, traced
from coterie.environments.workflow.trace import Trace

NOT_TWO = "it does not rest on two pages"
UNNAMED = "the question does not name what it compares"
APART = "neither page names the other"
NO_ANSWER = "the answer is not in the pages"
BACKWARDS = "the answer is on the page that comes first"
MOST_WORDS = 20
"""Of a clause of a page in a thought."""
MOST_ASKED = 12
"""Words of the question in a query."""


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
    if not any(_has_answer(row, one) for one in pages):
        raise NoTrace(NO_ANSWER)
    names = {one.title: _named(row.question, one.title) for one in pages}
    if all(names.values()):
        sides = [
            Step(name, name, page.title, page.clause)
            for page, name in zip(pages, names.values(), strict=True)
        ]
        return traced(row.question, row.answer, sides, compare=row.type == "comparison")
    if row.type == "comparison":
        raise NoTrace(UNNAMED)
    return traced(row.question, row.answer, _bridge(row, pages, names))


def _bridge(row: HotpotRow, pages: Sequence[Page], names: Mapping[str, str]) -> list[Step]:
    one, other = sorted(
        pages, key=lambda page: (not names[page.title], -_overlap(row.question, page))
    )
    ways = [(first, second) for first, second in ((one, other), (other, one))
            if says(first.text, bare(second.title))]  # fmt: skip
    if not ways:
        raise NoTrace(APART)
    way = next((way for way in ways if _has_answer(row, way[1])), None)
    if way is None:
        raise NoTrace(BACKWARDS)
    first, second = way
    name, known = names[first.title], bare(second.title)
    query = " ".join((name, *_rest(row.question, name))).strip()
    found = second.clause if alike(known, row.answer) else f"{known}: {row.answer.rstrip('.')}."
    return [
        Step(query, query, second.title, f"{bare(first.title)} leads to {known}."),
        Step("what {T1} says of the question", known, row.answer, found, ("T1",)),
    ]


def _has_answer(row: HotpotRow, page: Page) -> bool:
    text = f"{page.title}\n{page.text}"
    return is_yes_or_no(row.answer) or says(text, row.answer) or alike(page.title, row.answer)


def _named(question: str, title: str) -> str:
    return spelled(question, title) or spelled(question, bare(title))


def _overlap(question: str, page: Page) -> int:
    asks = set(words(" ".join(telling(question))))
    return len(asks & set(words(f"{page.title} {page.text}")))


def _rest(question: str, name: str) -> list[str]:
    left = set(words(name))
    return [one for one in telling(question) if not set(words(one)) <= left][:MOST_ASKED]


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
