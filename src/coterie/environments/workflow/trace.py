"""Traces of GAP's agents: segments and their order, the final answer, and traces written by an expert.

    <think>Two films, so two searches.</think>
    <plan>
    T1: who directed Film A
    - Dependencies: none
    T2: where that person was born
    - Dependencies: T1
    </plan>
    <think>T1 waits for nothing.</think>
    <wiki_search>director of Film A</wiki_search>        (a message ends here, and the tool answers)
    <think>...</think>
    <answer>Oslo</answer>

Tags inside an observation are text. Violations of the order are only counted. ``|`` separates several answers.

An expert writes a plan and one level in each call (parallel), or one query at a time (sequential). In a sound trace
no level contains the answer or results of this or later levels, unless the question or earlier results do.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coterie.environments.answers import exact_match, f1
from coterie.environments.coding import python_blocks
from coterie.environments.settings import split_words
from coterie.environments.workflow.plan import BrokenPlan, Plan, Task, parse_plan

CALLS = ("wiki_search", "web_search", "crawl_page", "code", "graph")
NAMES = ("think", "plan", *CALLS, "reflection", "suggested_answer", "double_check", "answer",
         "observation")  # fmt: skip
_TAG = re.compile(f"<(/?)({'|'.join(NAMES)})>")  # the prompts show no graph with attributes

AgentKind = Literal["mhqa", "web", "code"]


class Segment(NamedTuple):
    """A tagged part of a text."""

    name: str
    body: str
    closed: bool = True


def scan(text: str) -> tuple[list[Segment], int]:
    """Return the segments of a text, and the number of closing tags without an opening tag.

    An opening tag inside another segment ends it; that segment is not closed.
    """
    segments: list[Segment] = []
    opening: re.Match[str] | None = None
    stray = 0
    for tag in _TAG.finditer(text):
        closing, name = tag[1], tag[2]
        if opening and opening[2] == "observation" and not (closing and name == "observation"):
            continue
        if opening and (not closing or opening[2] == name):
            body = text[opening.end() : tag.start()]
            segments.append(Segment(opening[2], body, bool(closing)))
        elif closing:
            stray += 1
            continue
        opening = None if closing else tag
    if opening:
        segments.append(Segment(opening[2], text[opening.end() :], False))
    return segments, stray


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


def violations(text: str, kind: AgentKind) -> list[str]:
    """Return the violations in a trajectory (the text after the question) for this kind of agent."""
    segments, stray = scan(text)
    rules, last, previous = _NEXT[kind], "", ""
    faults = ["closed without being open"] * stray
    for number, (name, body, closed) in enumerate(segments):
        after = segments[number + 1].name if number + 1 < len(segments) else None
        ended, is_step = last == "answer", last != "answer" and name not in ("think", "observation")
        in_order = name in rules.get(last, ())
        is_known = is_step and (name in rules or name == "answer")
        beside = name in CALLS and previous in CALLS  # one message, several calls
        thought = previous == "think" or beside or name in _WITHOUT_THINKING[kind]
        unanswered = name == "observation" and previous not in (*CALLS, "observation")
        broken = {
            "not closed": not closed,
            "after the answer": ended,
            "observation without a call": unanswered and not ended,
            "not of this agent": is_step and not is_known,
            "wrong order": is_known and not in_order,
            "no think before it": is_known and not thought,
            "not between fences": is_known
            and name == "code"
            and closed
            and not python_blocks(body),
            "call without an observation": name in CALLS
            and after not in (None, "observation", *CALLS),
        }
        faults += [fault for fault, is_broken in broken.items() if is_broken]
        last = name if is_known else last
        previous = name
    return faults


SEPARATOR = "|"
Several = Literal["all", "first"]
_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_OPEN = re.compile(r"<answer>((?:(?!<answer>).)*)\Z", re.DOTALL)
_SAID = re.compile(r"(?:final answer|answer)\s*(?:is|:)\s*(.+)", re.IGNORECASE)
_LEFT = re.compile(r"</?[a-z_]{1,30}>")


def final_answer(text: str, *, lenient: bool = False) -> str | None:
    """Return the answer in a message, or ``None``.

    ``lenient`` also accepts an unclosed tag, ``the answer is X``, or else the last line, for models without training on
    the format.
    """
    tagged = next((one.strip() for one in reversed(_ANSWER_TAG.findall(text)) if one.strip()), None)
    if tagged is not None or not lenient:
        return tagged
    if (unclosed := _OPEN.search(text)) and unclosed[1].strip():
        return unclosed[1].strip().splitlines()[0].strip()
    plain = [line.strip() for line in _LEFT.sub("\n", text).splitlines() if line.strip()]
    stated = [one[1] for line in plain if (one := _SAID.search(line))]
    last = (stated or plain)[-1:]
    return last[0].strip(" .*\"'") or None if last else None


def parts(answer: str, several: Several) -> tuple[str, ...]:
    """Return all non-empty answers, or the first of them."""
    answers = tuple(part for one in answer.split(SEPARATOR) if (part := one.strip()))
    return answers if several == "all" else answers[:1]


def matches(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """Return 1.0 if every answer that counts equals a right answer (exact match), else 0.0."""
    answers = () if answer is None else parts(answer, several)
    return float(bool(answers) and all(exact_match(one, golds) for one in answers))


def overlap(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """Return the average F1 of the answers that count."""
    answers = () if answer is None else parts(answer, several)
    return sum(f1(one, golds) for one in answers) / len(answers) if answers else 0.0


_WORD = re.compile(r"[^\W_]+(?:[\u0300-\u036f]+[^\W_]*)*")
_BRACKETS = re.compile(r"\s*\([^()]*\)")
LEAST = 2
"""Minimum words of a partial name that identifies the whole name, since a single word is ambiguous."""

_EMPTY = frozenset(
    split_words(
        "a an the of in on at to for from by with and or but is are was were be been being do does did has have had "
        "that this these those which who whom whose what when where why how it its he she his her they their them as "
        "than then also both s there can could would will about into"
    )
)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text without case, accents and punctuation."""
    return tuple(map(_fold, _WORD.findall(text)))


def telling(question: str) -> list[str]:
    """Return the words of a question that are no stop words, in their spelling."""
    stripped = (one.strip("\"'.,;:?!()[]") for one in question.split())
    return [one for one in stripped if not _EMPTY.issuperset(words(one))]


def says(text: str, name: str) -> bool:
    """Return True if a text contains the words of a name in sequence; False for a name without words."""
    return bool(_places(words(text), words(name)))


def spelling_in(text: str, name: str) -> str:
    """Return the spelling of a name in a text, preferably with a capital letter, or ""."""
    matches, target = list(_WORD.finditer(text)), words(name)
    spans = [
        (matches[place].start(), matches[place + len(target) - 1].end())
        for place in _places(tuple(_fold(one[0]) for one in matches), target)
    ]
    if not spans:
        return ""
    start, stop = min(spans, key=lambda span: text[span[0]].islower())
    span = text[start:stop]
    closed = text[stop : stop + 1] == ")" and span.count("(") > span.count(")")
    return span + ")" * closed


def bare(name: str) -> str:
    """Return a name without text in brackets, such as ``(1929 film)``."""
    return _BRACKETS.sub("", name).strip() or name


def alike(one: str, other: str) -> bool:
    """Return True if two names are equal or one contains the other."""
    first, second = sorted((words(bare(one)), words(bare(other))), key=len)
    if first == second:
        return bool(first)
    return len(first) >= LEAST and bool(_places(second, first))


def places_of(name: str, among: Sequence[str]) -> list[int]:
    """Return the indices of equal names, or else of names that are :func:`alike`."""
    equal = [place for place, one in enumerate(among) if words(one) == words(name)]
    return equal or [place for place, one in enumerate(among) if alike(one, name)]


def _fold(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word)
    return "".join(one for one in plain if not unicodedata.combining(one)).casefold()


def _places(text: tuple[str, ...], part: tuple[str, ...]) -> list[int]:
    places = range(len(text) - len(part) + 1) if part else ()
    return [place for place in places if text[place : place + len(part)] == part]


SEARCH = "wiki_search"
KNOWN = "So I know the answer."
TraceForm = Literal["parallel", "sequential", "closed"]


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a task."""

    task: str
    text: str
    fact: str = ""
    """Expected result as a sentence of a later thought; may be empty."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a question. Queries of a level depend only on earlier levels."""

    plan: Plan
    levels: tuple[tuple[Query, ...], ...]
    """Queries by level of the plan, one for each task that needs a search."""
    answer: str
    tool: str = SEARCH
    conclusion: str = ""
    """Conclusion that replaces the facts in the last thought; may be empty."""

    def messages(self, form: TraceForm) -> tuple[str, ...]:
        """Return the agent's messages. Tool results follow each message but the last."""
        if form == "closed":
            return (tagged("answer", self.answer),)
        return tuple(self._messages(self.rounds(form), planned=form == "parallel"))

    def rounds(self, form: TraceForm) -> tuple[tuple[Query, ...], ...]:
        """Return the queries of each message but the last."""
        if form == "parallel":
            return self.levels
        return () if form == "closed" else tuple((one,) for row in self.levels for one in row)

    def _messages(self, rounds: tuple[tuple[Query, ...], ...], *, planned: bool) -> Iterator[str]:
        known: tuple[Query, ...] = ()
        for number, queries in enumerate(rounds):
            lines = [tagged("think", _thought(known, queries, planned=planned))]
            if planned and number == 0:
                lines = [tagged("think", _first(self.plan)), format_plan(self.plan), *lines]
            yield "\n".join((*lines, call(self.tool, [one.text for one in queries])))
            known = queries
        last = _thought(known, (), planned=planned, conclusion=self.conclusion)
        yield "\n".join((tagged("think", last), tagged("answer", self.answer)))


def tagged(name: str, body: str) -> str:
    return f"<{name}>{body}</{name}>"


def call(tool: str, queries: list[str]) -> str:
    """Return a call, or several in one tag; a separator within a query is escaped."""
    escaped = (one.replace(SEPARATOR, f"\\{SEPARATOR}") for one in queries)
    # A final backslash would escape the next separator.
    spaced = (f"{one} " if one.endswith("\\") else one for one in escaped)
    return tagged(tool, SEPARATOR.join(spaced))


def format_plan(plan: Plan) -> str:
    lines = [
        f"{task.id}: {task.text}\n- Dependencies: {', '.join(task.after) or 'none'}"
        for task in plan.tasks
    ]
    return tagged("plan", "\n" + "\n".join(lines) + "\n")


def _first(plan: Plan) -> str:
    counts = {"task": plan.shape.tasks, "level": plan.shape.levels}
    tasks, levels = (f"one {k}" if n == 1 else f"{n} {k}s" for k, n in counts.items())
    return f"This takes {tasks} in {levels}."


def _thought(
    known: Sequence[Query], queries: Sequence[Query], *, planned: bool, conclusion: str = ""
) -> str:
    facts = " ".join(one.fact for one in known if one.fact)
    if not queries:
        facts, following = conclusion or facts, KNOWN
    elif planned:
        following = f"Next: {', '.join(one.task for one in queries)}."
    else:
        following = "I search for the next fact." if known else "I search for the first fact."
    return f"{facts} {following}".strip()


LEAK = "a query or a task says what is not known then"
TWICE = "two tasks ask the same"
UNPLANNED = "its tasks are no plan that can be written and read"


class NoTrace(Exception):
    """A row has no sound trace. ``reason`` is one of a few texts, which are counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Step:
    """A search. The ids of steps are ``T1``, ``T2``, ... in order."""

    task: str
    """Text of the task in the plan, with placeholders such as ``{T1}`` for unknown results."""
    query: str
    result: str
    fact: str
    after: tuple[str, ...] = ()


def name_of(place: int) -> str:
    """Return the id of the step with index ``place``."""
    return f"T{place + 1}"


def without_dependents(steps: Sequence[Step]) -> list[int]:
    """Return the indices of the steps that no other step depends on."""
    waited = {other for one in steps for other in one.after}
    return [place for place in range(len(steps)) if name_of(place) not in waited]


def is_yes_or_no(answer: str) -> bool:
    return words(answer) in (("yes",), ("no",))


def make_trace(
    question: str, answer: str, steps: Sequence[Step], *, compare: bool = False
) -> Trace:
    """Return the trace of these steps.

    ``compare`` adds a last task without a search, which depends on all tasks without other dependents.

    Raises:
        NoTrace: the trace is not sound.
    """
    by_id = {name_of(place): one for place, one in enumerate(steps)}
    tasks = [Task(id_, one.task, one.after) for id_, one in by_id.items()]
    if compare:
        last = tuple(map(name_of, without_dependents(steps)))
        text = f"compare {' and '.join(f'{{{one}}}' for one in last)}"
        tasks.append(Task(name_of(len(tasks)), text, last))
    try:
        plan = Plan(tuple(tasks))
        same = parse_plan(format_plan(plan)) == plan
    except BrokenPlan as error:
        raise NoTrace(UNPLANNED) from error
    if not same:
        raise NoTrace(UNPLANNED)
    searches = (tuple(id_ for id_ in level if id_ in by_id) for level in plan.levels)
    levels = [level for level in searches if level]
    results = [[by_id[id_].result for id_ in level] for level in levels]
    for number, level in enumerate(levels):
        known = [question, *(one for row in results[:number] for one in row)]
        hidden = [answer, *(one for row in results[number:] for one in row)]
        texts = [by_id[id_].query for id_ in level]
        if number == 0:
            texts += [task.text for task in plan.tasks]
        if any(_leaks(one, hidden, known) for one in texts):
            raise NoTrace(LEAK)
    if len({words(one.query) for one in steps}) < len(steps):
        raise NoTrace(TWICE)
    queries = (
        tuple(Query(id_, by_id[id_].query, by_id[id_].fact) for id_ in level) for level in levels
    )
    return Trace(plan, tuple(queries), answer)


def _leaks(text: str, hidden: Sequence[str], known: Sequence[str]) -> bool:
    return any(says(text, one) and not any(says(other, one) for other in known) for one in hidden)
