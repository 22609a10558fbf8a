"""A trace that calls one thing after the other, made parallel by a model: what the model is shown, and what of its
reply is believed.

The model never writes results: it is shown each with a number and says where it goes (``[result 2]``), and the text of
the original stands there to the letter. A reply is refused (:class:`Refused`) if its plan can't be read or has a cycle,
if it asks or answers something else than the original, if a result does not follow the call that it answers, if a call
is made before its turn by the plan, or if anything is said before it can be known.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coterie.environments.workflow.answers import final_answer
from coterie.environments.workflow.measures import calls_before_their_turn
from coterie.environments.workflow.names import telling, words
from coterie.environments.workflow.plan import BrokenPlan, Plan
from coterie.environments.workflow.segments import CALLS, Segment, scan, violations
from coterie.environments.workflow.trace import SEPARATOR
from coterie.environments.workflow.written import parse_plan
from coterie.recipes.gap.files.traces import TraceRow
from coterie.tools.tags import Tag, Tags

SEARCH = "wiki_search"
QUERY = "query"
_SYNTAX = Tags({SEARCH: Tag(QUERY, SEPARATOR)})
_ENDS = "</answer>"
_MARK = re.compile(r"\[\s*result\s+([0-9]{1,4})\s*\]", re.IGNORECASE)
_TASK_ID = re.compile(r"T[0-9]+")
_YEAR = re.compile(r"[0-9]{4}")
_BEGINNING = re.compile(r"(?:^|[.!?:|\n-])\s*[^\W_]+", re.MULTILINE)

NO_PLAN = "there is no plan before the first call, or there are several"
BROKEN_PLAN = "the plan can't be read"
OTHER_QUERIES = "its queries are others"
OTHER_RESULTS = "a result is missing, or is not where its query was asked"
OTHER_ANSWER = "its answer is another"
ORDER = "its tags are in a wrong order"
EARLY = "a call is made before its turn by the plan"
UNKNOWN = "something is said before it can be known"


class Refused(Exception):
    """A reply is not believed. ``reason`` is one of few, to be counted; ``detail`` may say more to the model."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class NotSequential(Exception):
    """A trace of a file can't be rewritten: its searches and results do not pair, or it calls something else."""


@dataclass(frozen=True, slots=True)
class Search:
    """A query of the original, and what was shown of it."""

    query: str
    shown: str
    """With its tags, to the letter."""


@dataclass(frozen=True, slots=True)
class Sequential:
    """A trace that is to be rewritten."""

    question: str
    marked: str
    """The trace as the model is shown it: each result with its number."""
    searches: tuple[Search, ...]
    answer: str


def read_sequential(row: TraceRow) -> Sequential:
    """What a row's trace does. Raises :class:`NotSequential` with the reason."""
    text, found, marked, at = row.output, list[Search](), list[str](), 0
    asked: list[str] = []
    for one in scan(text).segments:
        if one.name in CALLS:
            if one.name != SEARCH or asked:
                raise NotSequential(
                    f"it calls {one.name}" if one.name != SEARCH else "a search has no result"
                )
            asked = _queries(one)
        elif one.name == "observation":
            if not asked:
                raise NotSequential("a result has no search of its own")
            found.append(Search(asked.pop(0), text[one.start : one.end]))
            body = one.start + len("<observation>")
            marked += [text[at:body], f"\n[result {len(found)}]", text[body : one.end]]
            at = one.end
    if asked or not found:
        raise NotSequential("a search has no result" if asked else "it searches for nothing")
    answer = final_answer(text)
    if answer is None or not row.question:
        raise NotSequential("it has no answer" if answer is None else "it has no question")
    return Sequential(row.question, "".join((*marked, text[at:])), tuple(found), answer)


def read_parallel(reply: str, of: Sequential) -> str:
    """The trace that a reply stands for, results in their places. Raises :class:`Refused`."""
    text = _without_fence(reply)
    segments = scan(text).segments
    plan = _plan(segments)
    rounds = list(_rounds(segments))
    _check_queries([query for queries, _ in rounds for query in queries], of)
    for queries, marks in rounds:
        _check_results(queries, marks, of)
    if final_answer(text) != of.answer:
        raise Refused(OTHER_ANSWER, f"it must be {of.answer!r} to the letter")
    if calls_before_their_turn(plan, [len(queries) for queries, _ in rounds]):
        raise Refused(EARLY, "search only for tasks whose dependencies have results")
    _check_known(segments, of)
    whole = _filled(text, segments, of)
    if wrong := violations(whole, "mhqa"):
        raise Refused(ORDER, f"{wrong[0].fault}, at <{wrong[0].name}>")
    return whole


def _without_fence(reply: str) -> str:
    """What stands from the first thought to the last answer."""
    begin, end = reply.find("<think>"), reply.rfind(_ENDS)
    if not 0 <= begin < end:
        raise Refused(ORDER, "begin with <think> and end with <answer>...</answer>")
    return reply[begin : end + len(_ENDS)]


def _queries(one: Segment) -> list[str]:
    """What a call asks, in its order."""
    calls = _SYNTAX.parse(f"<{SEARCH}>{one.body}</{SEARCH}>", "stop_string")
    return [_plain(json.loads(call.arguments)[QUERY]) for call in calls]


def _plan(segments: Sequence[Segment]) -> Plan:
    names = [one.name for one in segments]
    first = names.index(SEARCH) if SEARCH in names else len(names)
    plans = [place for place, name in enumerate(names) if name == "plan"]
    if len(plans) != 1 or plans[0] > first:
        raise Refused(NO_PLAN, "write one <plan> before the first search")
    try:
        return parse_plan(segments[plans[0]].body)
    except BrokenPlan as error:
        raise Refused(BROKEN_PLAN, str(error)) from error


def _rounds(segments: Sequence[Segment]) -> Iterator[tuple[list[str], list[int]]]:
    """The queries of each message, and the numbers of the results that follow it."""
    queries: list[str] = []
    marks: list[int] = []
    for one in segments:
        if one.name == "observation":
            marks += _marks(one)
        elif queries and marks:
            yield queries, marks
            queries, marks = [], []
        if one.name == SEARCH:
            queries += _queries(one)
    yield queries, marks


def _marks(one: Segment) -> list[int]:
    """The numbers of results that an observation stands for, and nothing else may be in it."""
    if _MARK.sub("", one.body).strip():
        raise Refused(OTHER_RESULTS, "write only the marks, such as [result 1], between the tags")
    return [int(mark) for mark in _MARK.findall(one.body)]


def _check_queries(asked: Sequence[str], of: Sequential) -> None:
    own, wanted = Counter(asked), Counter(_plain(one.query) for one in of.searches)
    if own == wanted:
        return
    missing, more = wanted - own, own - wanted
    told = [f"missing {next(iter(missing))!r}"] if missing else []
    told += [f"not in the original {next(iter(more))!r}"] if more else []
    raise Refused(OTHER_QUERIES, ", ".join(told))


def _check_results(queries: Sequence[str], marks: Sequence[int], of: Sequential) -> None:
    """Results follow their queries, in their order."""
    known = {number: _plain(one.query) for number, one in enumerate(of.searches, 1)}
    if [known.get(mark) for mark in marks] != list(queries):
        raise Refused(OTHER_RESULTS, f"the results of {' | '.join(queries) or 'no search'!r}")


def _check_known(segments: Sequence[Segment], of: Sequential) -> None:
    """Names that only a later result has can't be said yet."""
    left = dict(enumerate((one.shown for one in of.searches), 1))
    known = set(words(of.question))
    for one in segments:
        if one.name == "observation":
            for mark in _marks(one):
                known |= set(words(left.pop(mark, "")))
        else:
            later = {word for shown in left.values() for word in words(shown)} - known
            if told := next((name for name in _names(one) if set(words(name)) & later), ""):
                raise Refused(UNKNOWN, f"{told!r} is known only from a later result")


def _names(one: Segment) -> list[str]:
    """Words that look like names: with a capital where no sentence or query begins; and years."""
    body = _BEGINNING.sub(" ", one.body)
    return [
        word
        for word in telling(body.replace(SEPARATOR, " "))
        if (word[:1].isupper() and not _TASK_ID.fullmatch(word)) or _YEAR.fullmatch(word)
    ]


def _filled(text: str, segments: Sequence[Segment], of: Sequential) -> str:
    """The text with results in the places of their marks."""
    parts, at = list[str](), 0
    for one in segments:
        if one.name == "observation":
            shown = "\n".join(of.searches[mark - 1].shown for mark in _marks(one))
            parts += [text[at : one.start], shown]
            at = one.end
    return "".join((*parts, text[at:])).strip()


def _plain(text: str) -> str:
    return " ".join(text.split())
