"""Expert traces for HotpotQA: searches for the two gold pages, in parallel or in sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.datasets.rows import HotpotRow
from coterie.environments.workflow.names import alike, bare, says, spelling_in, telling, words
from coterie.environments.workflow.steps import NoTrace, Step, is_yes_or_no, make_trace
from coterie.environments.workflow.trace import Trace

NOT_TWO = "it does not rest on two pages"
UNNAMED = "the question does not name what it compares"
APART = "neither page names the other"
NO_ANSWER = "the answer is not in the pages"
BACKWARDS = "the answer is on the page that comes first"
MOST_WORDS = 20
"""Maximum words of a page's sentence in a thought."""
MOST_ASKED = 12
"""Maximum words of the question in a query."""


@dataclass(frozen=True, slots=True)
class Page:
    """A gold page."""

    title: str
    text: str
    clause: str
    """Beginning of the sentence that supports the answer."""


def trace_of_hotpot(row: HotpotRow) -> Trace:
    """Return the trace of a row. Raise :class:`NoTrace` without a sound trace."""
    pages = _pages(row)
    if len(pages) != 2:
        raise NoTrace(NOT_TWO)
    if not any(_has_answer(row, one) for one in pages):
        raise NoTrace(NO_ANSWER)
    names = {one.title: _name_in_question(row.question, one.title) for one in pages}
    if all(names.values()):
        sides = [
            Step(name, name, page.title, page.clause)
            for page, name in zip(pages, names.values(), strict=True)
        ]
        return make_trace(row.question, row.answer, sides, compare=row.type == "comparison")
    if row.type == "comparison":
        raise NoTrace(UNNAMED)
    return make_trace(row.question, row.answer, _bridge(row, pages, names))


def _bridge(row: HotpotRow, pages: Sequence[Page], names: Mapping[str, str]) -> list[Step]:
    one, other = sorted(
        pages, key=lambda page: (not names[page.title], -_overlap(row.question, page))
    )
    orders = [(first, second) for first, second in ((one, other), (other, one))
              if says(first.text, bare(second.title))]  # fmt: skip
    if not orders:
        raise NoTrace(APART)
    order = next((order for order in orders if _has_answer(row, order[1])), None)
    if order is None:
        raise NoTrace(BACKWARDS)
    first, second = order
    name, title = names[first.title], bare(second.title)
    query = " ".join((name, *_rest(row.question, name))).strip()
    fact = second.clause if alike(title, row.answer) else f"{title}: {row.answer.rstrip('.')}."
    return [
        Step(query, query, second.title, f"{bare(first.title)} leads to {title}."),
        Step("what {T1} says of the question", title, row.answer, fact, ("T1",)),
    ]


def _has_answer(row: HotpotRow, page: Page) -> bool:
    text = f"{page.title}\n{page.text}"
    return is_yes_or_no(row.answer) or says(text, row.answer) or alike(page.title, row.answer)


def _name_in_question(question: str, title: str) -> str:
    return spelling_in(question, title) or spelling_in(question, bare(title))


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
    """Return the beginning of a sentence, or of the first sentence if the index is out of range upstream."""
    sentence_words = (sentences[place] if place < len(sentences) else sentences[0]).split()
    if len(sentence_words) <= MOST_WORDS:
        return " ".join(sentence_words)
    return f"{' '.join(sentence_words[:MOST_WORDS]).rstrip(',;:')}..."
