"""Expert traces from the gold facts of rows.

There is no teacher model: the plan and queries come from the evidences, supporting facts or decomposition of the row. A
query uses only the question and earlier results. A row without a sound trace is rejected with a reason.
"""

import re
from collections.abc import Mapping, Sequence

from coterie.datasets.answers import MusiqueRow
from coterie.datasets.rows import Evidence, HotpotRow, QuestionRow, TwoWikiRow
from coterie.environments.workflow.expert_hotpot import trace_of_hotpot
from coterie.environments.workflow.expert_musique import trace_of_musique
from coterie.environments.workflow.names import alike, bare, places_of, spelling_in, words
from coterie.environments.workflow.relations import query_text, sentence, task_text
from coterie.environments.workflow.steps import NoTrace, Step, is_yes_or_no, make_trace, name_of
from coterie.environments.workflow.trace import Trace

CHAINS = ("compositional", "inference")
COMPARISONS = ("comparison", "bridge_comparison")
NO_EVIDENCE = "it has no evidences"
OTHER_TYPE = "its type is none that is known"
UNNAMED = "the question does not name what a fact is about"
BROKEN = "a fact does not follow from the one before it"
OTHER_ANSWER = "the answer is not what the facts come to"
UNCLEAR = "it can't be told how the facts are compared"
_YEAR = re.compile(r"\b\d{3,4}\b")
_DAY = re.compile(r"\b\d{1,2}\b")
_EARLIER = {"first", "earlier", "older", "earliest", "oldest"}
_LATER = {"later", "younger", "recently", "recent", "last", "latest", "youngest"}
_MONTHS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(
        ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
         "december"),
        1,
    )
}  # fmt: skip


def trace_of_2wiki(row: TwoWikiRow) -> Trace:
    """Return the trace of a row. Raise :class:`NoTrace` without a sound trace."""
    if not row.evidences:
        raise NoTrace(NO_EVIDENCE)
    if row.type not in (*CHAINS, *COMPARISONS):
        raise NoTrace(OTHER_TYPE)
    steps: list[Step] = []
    roots: list[str] = []
    for number, fact in enumerate(row.evidences):
        before = _before(fact, steps)
        if before is not None:
            waits = name_of(before)
            steps.append(_step(fact, f"{{{waits}}}", steps[before].result, (waits,)))
            roots.append(roots[before])
        elif number and row.type in CHAINS:
            raise NoTrace(BROKEN)
        else:
            name = _name_in_question(row, number)
            steps.append(_step(fact, name, name))
            roots.append(name)
    compare = row.type in COMPARISONS
    if compare:
        _check_comparison(row, steps, roots)
    elif not alike(row.answer, steps[-1].result):
        raise NoTrace(OTHER_ANSWER)
    return make_trace(row.question, row.answer, steps, compare=compare)


def _before(fact: Evidence, steps: Sequence[Step]) -> int | None:
    """Return the index of the step whose result is the fact's subject, preferably of one without dependents."""
    places = places_of(fact.subject, [one.result for one in steps])
    waited = {other for one in steps for other in one.after}
    free = [place for place in places if name_of(place) not in waited]
    return next(iter(free or places), None)


def _step(fact: Evidence, planned: str, name: str, after: tuple[str, ...] = ()) -> Step:
    return Step(
        task_text(fact.relation, planned),
        query_text(fact.relation, name),
        fact.object,
        sentence(fact.relation, name, fact.object),
        after,
    )


def _name_in_question(row: TwoWikiRow, number: int) -> str:
    """Return the question's spelling of the subject of a fact, or of the title of its page."""
    subject = row.evidences[number].subject
    titles = list(dict.fromkeys(one.title for one in row.supporting_facts))
    in_order = [number] if len(titles) == len(row.evidences) else []
    title = next((titles[place] for place in (*places_of(subject, titles), *in_order)), "")
    for name in (title, subject, bare(title), bare(subject)):
        if name_in_question := spelling_in(row.question, name):
            return name_in_question
    raise NoTrace(UNNAMED)


# -- comparisons ----------------------------------------------------------------------------------


def _check_comparison(row: TwoWikiRow, steps: Sequence[Step], roots: Sequence[str]) -> None:
    """Raise :class:`NoTrace` if the answer does not follow from the facts."""
    waited = {other for one in steps for other in one.after}
    last = [place for place in range(len(steps)) if name_of(place) not in waited]
    results = [steps[place].result for place in last]
    if len(set(map(words, (roots[place] for place in last)))) < len(last) or len(last) < 2:
        raise NoTrace(UNCLEAR)
    if is_yes_or_no(row.answer):
        if len(set(map(words, results))) == 1 and words(row.answer) == ("no",):
            raise NoTrace(OTHER_ANSWER)
        return
    chosen = places_of(row.answer, [roots[place] for place in last])
    if len(chosen) != 1:
        raise NoTrace(OTHER_ANSWER)
    asks = set(words(row.question)) - {word for root in roots for word in words(root)}
    earlier, later = bool(asks & _EARLIER), bool(asks & _LATER)
    dates = _dates(results)
    if not dates or earlier == later:
        raise NoTrace(UNCLEAR)
    best = min(dates) if earlier else max(dates)
    if dates.count(best) != 1:
        raise NoTrace(UNCLEAR)
    if dates[chosen[0]] != best:
        raise NoTrace(OTHER_ANSWER)


def _dates(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return dates with the precision of the least precise one, or [] if a text has no date."""
    dates = list(map(_date, texts))
    exact = min(map(len, dates))
    return [one[:exact] for one in dates] if exact else []


def _date(text: str) -> tuple[int, ...]:
    """Return the year, and month and day if known; () without a year."""
    year = _YEAR.search(text)
    if year is None or "BC" in text:
        return ()
    month = next((_MONTHS[one] for one in words(text) if one in _MONTHS), None)
    day = _DAY.search(text.replace(year[0], ""))
    parts = (int(year[0]),)
    if month is not None:
        parts = (*parts, month, *((int(day[0]),) if day else ()))
    return parts


NO_GOLD = "rows of this kind do not tell what is to be searched"


def trace_of(row: QuestionRow) -> Trace:
    """Return the trace of a row. Raise :class:`NoTrace` with a reason without a sound trace."""
    match row:
        case TwoWikiRow():
            return trace_of_2wiki(row)
        case HotpotRow():
            return trace_of_hotpot(row)
        case MusiqueRow():
            return trace_of_musique(row)
    raise NoTrace(NO_GOLD)
