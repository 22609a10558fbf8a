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

Tags inside an observation are text, because the model did not write them. Violations of the order are only counted,
not enforced.

The answer is in the last complete ``<answer>...</answer>``, and ``|`` separates several answers. GAP's released code
requires all of them to be right in training, but only the first in evaluation. Here one setting applies to both.

An expert that knows the gold facts writes traces with a plan and one level in each call (parallel), or with one query
at a time and no plan (sequential). A control writes only the answer (closed). A trace that reveals information too
early is rejected (:class:`NoTrace`): a level must not contain the answer or results of this level or later levels,
unless they are in the question or in results of earlier levels.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.environments.answers import exact_match, f1
from coterie.environments.coding import python_blocks
from coterie.environments.workflow.plan import BrokenPlan, Plan, Task, parse_plan

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


ANSWER_SEPARATOR = "|"
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
    answers = tuple(part for one in answer.split(ANSWER_SEPARATOR) if (part := one.strip()))
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

_EMPTY = (
    "a an the of in on at to for from by with and or but is are was were be been being do does did has have had that "
    "this these those which who whom whose what when where why how it its he she his her they their them as than then "
    "also both s there can could would will about into"
)
"""Stop words of questions."""


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text without case, accents and punctuation."""
    return tuple(map(_fold, _WORD.findall(text)))


def telling(question: str) -> list[str]:
    """Return the words of a question that are no stop words, in their spelling."""
    empty = set(_EMPTY.split())
    stripped = (one.strip("\"'.,;:?!()[]") for one in question.split())
    return [one for one in stripped if not set(words(one)) <= empty]


def says(text: str, name: str) -> bool:
    """Return True if a text contains the words of a name in sequence; False for a name without words."""
    return _place(words(text), words(name)) is not None


def spelling_in(text: str, name: str) -> str:
    """Return the spelling of a name in a text, preferably with a capital letter, or ""."""
    matches = list(_WORD.finditer(text))
    folded, target = tuple(_fold(one[0]) for one in matches), words(name)
    spans = [
        (matches[place].start(), matches[place + len(target) - 1].end())
        for place in range(len(folded) - len(target) + 1)
        if target and folded[place : place + len(target)] == target
    ]
    spans.sort(key=lambda span: text[span[0]].islower())
    return _with_bracket(text, *spans[0]) if spans else ""


def bare(name: str) -> str:
    """Return a name without text in brackets, such as ``(1929 film)``."""
    return _BRACKETS.sub("", name).strip() or name


def alike(one: str, other: str) -> bool:
    """Return True if two names are equal or one contains the other."""
    first, second = sorted((words(bare(one)), words(bare(other))), key=len)
    if first == second:
        return bool(first)
    return len(first) >= LEAST and _place(second, first) is not None


def places_of(name: str, among: Sequence[str]) -> list[int]:
    """Return the indices of equal names, or else of names that are :func:`alike`."""
    equal = [place for place, one in enumerate(among) if words(one) == words(name)]
    return equal or [place for place, one in enumerate(among) if alike(one, name)]


def _fold(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word)
    return "".join(one for one in plain if not unicodedata.combining(one)).casefold()


def _place(text: tuple[str, ...], part: tuple[str, ...]) -> int | None:
    places = range(len(text) - len(part) + 1) if part else ()
    return next((place for place in places if text[place : place + len(part)] == part), None)


def _with_bracket(text: str, start: int, stop: int) -> str:
    span = text[start:stop]
    closed = text[stop : stop + 1] == ")" and span.count("(") > span.count(")")
    return span + ")" * closed


SEPARATOR = "|"
SEARCH = "wiki_search"
"""Tool of an expert."""
KNOWN = "So I know the answer."
"""End of the last thought."""
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
        if form == "closed":
            return ()
        if form == "parallel":
            return self.levels
        return tuple((one,) for level in self.levels for one in level)

    def _messages(self, rounds: tuple[tuple[Query, ...], ...], *, planned: bool) -> Iterator[str]:
        known: list[Query] = []
        for number, queries in enumerate(rounds):
            lines = [think(_thought(known, queries, planned=planned))]
            if planned and number == 0:
                lines = [think(_first(self.plan)), format_plan(self.plan), *lines]
            yield "\n".join((*lines, call(self.tool, [one.text for one in queries])))
            known = list(queries)
        last = _thought(known, (), planned=planned, conclusion=self.conclusion)
        yield "\n".join((think(last), tagged("answer", self.answer)))


def tagged(name: str, body: str) -> str:
    return f"<{name}>{body}</{name}>"


def think(thought: str) -> str:
    return tagged("think", thought)


def call(tool: str, queries: list[str]) -> str:
    """Return a call, or several in one tag; a separator within a query is escaped."""
    escaped = (_escape(one) for one in queries)
    return tagged(tool, SEPARATOR.join(escaped))


def _escape(query: str) -> str:
    """Escape separators in a query, and add a space after a final backslash, which would escape the next separator."""
    escaped = query.replace(SEPARATOR, f"\\{SEPARATOR}")
    return f"{escaped} " if escaped.endswith("\\") else escaped


def format_plan(plan: Plan) -> str:
    lines = [
        f"{task.id}: {task.text}\n- Dependencies: {', '.join(task.after) or 'none'}"
        for task in plan.tasks
    ]
    return tagged("plan", "\n" + "\n".join(lines) + "\n")


def _first(plan: Plan) -> str:
    shape = plan.shape
    tasks = "one task" if shape.tasks == 1 else f"{shape.tasks} tasks"
    levels = "one level" if shape.levels == 1 else f"{shape.levels} levels"
    return f"This takes {tasks} in {levels}."


def _thought(
    known: list[Query], queries: tuple[Query, ...], *, planned: bool, conclusion: str = ""
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
    tasks = [Task(name_of(place), one.task, one.after) for place, one in enumerate(steps)]
    if compare:
        waited = {other for one in steps for other in one.after}
        last = tuple(one.id for one in tasks if one.id not in waited)
        text = f"compare {' and '.join(f'{{{one}}}' for one in last)}"
        tasks.append(Task(name_of(len(tasks)), text, last))
    plan = _plan(tasks)
    by_id = {name_of(place): one for place, one in enumerate(steps)}
    levels = tuple(
        row
        for level in plan.levels
        if (row := tuple((id_, by_id[id_]) for id_ in level if id_ in by_id))
    )
    _check_known(question, answer, plan, [[step for _, step in level] for level in levels])
    if len({words(one.query) for one in steps}) < len(steps):
        raise NoTrace(TWICE)
    queries = (tuple(Query(id_, one.query, one.fact) for id_, one in level) for level in levels)
    return Trace(plan, tuple(queries), answer)


def _plan(tasks: Sequence[Task]) -> Plan:
    try:
        plan = Plan(tuple(tasks))
        same = parse_plan(format_plan(plan)) == plan
    except BrokenPlan as error:
        raise NoTrace(UNPLANNED) from error
    if not same:
        raise NoTrace(UNPLANNED)
    return plan


def _check_known(question: str, answer: str, plan: Plan, levels: Sequence[Sequence[Step]]) -> None:
    """Raise :class:`NoTrace` if a query, or a task of the plan, contains information that is not known yet."""
    results = [[step.result for step in level] for level in levels]
    for number, level in enumerate(levels):
        known = [question, *(one for row in results[:number] for one in row)]
        hidden = [answer, *(one for row in results[number:] for one in row)]
        texts = [step.query for step in level]
        if number == 0:
            texts += [task.text for task in plan.tasks]
        if any(_leaks(one, hidden, known) for one in texts):
            raise NoTrace(LEAK)


def _leaks(text: str, hidden: Sequence[str], known: Sequence[str]) -> bool:
    return any(says(text, one) and not any(says(other, one) for other in known) for one in hidden)
