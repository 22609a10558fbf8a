"""Plans and traces of GAP's agents: parsing, the order of tags, the final answer, and messages of an expert.

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

A plan is an acyclic graph of tasks. Its parser is lenient about case, spaces, bullets and bold type, and linear in
time. Tags inside an observation are text. Violations of the order are only counted. ``|`` separates several answers.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple

from coterie.environments.code_blocks import python_blocks
from coterie.environments.qa_metrics import exact_match, f1

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]{0,63})\}")


class BrokenPlan(Exception):
    """An invalid plan."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a plan."""

    id: str
    text: str
    """Description, possibly with placeholders for results of its dependencies."""
    after: tuple[str, ...] = ()


class Shape(NamedTuple):
    """Number of tasks, of levels (the longest chain), and of tasks in the largest level."""

    tasks: int
    levels: int
    width: int


@dataclass(frozen=True)
class Plan:
    """Checked tasks in the order of the text. Raises :class:`BrokenPlan` if they are not a valid plan."""

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        ids = {task.id for task in self.tasks}
        if not ids:
            raise BrokenPlan("there are no tasks")
        if len(ids) < len(self.tasks):
            raise BrokenPlan("an id is used twice")
        for task in self.tasks:
            if not ids.issuperset(task.after):
                raise BrokenPlan(f"{task.id}: a dependency is not a task")
            # A placeholder stands for a result, so the task must wait for it.
            if not set(task.after).issuperset(_PLACEHOLDER.findall(task.text)):
                raise BrokenPlan(f"{task.id}: a placeholder is not a dependency")
        # Preparing the sorter detects cycles.
        try:
            self.sorter().prepare()
        except CycleError:
            raise BrokenPlan("tasks wait for each other") from None

    def sorter(self) -> TopologicalSorter[str]:
        return TopologicalSorter({task.id: task.after for task in self.tasks})

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Ids by level. The tasks of a level depend only on earlier levels and are in the order of the text."""
        position = {task.id: number for number, task in enumerate(self.tasks)}
        sorter, levels = self.sorter(), []
        sorter.prepare()
        while sorter.is_active():
            level = sorter.get_ready()
            sorter.done(*level)
            levels.append(tuple(sorted(level, key=position.__getitem__)))
        return tuple(levels)

    @property
    def shape(self) -> Shape:
        return Shape(len(self.tasks), len(self.levels), max(map(len, self.levels)))


_TASK = re.compile(r"[\s\-*•#>]*T([0-9]{1,6})[ \t*]*[:.)](.*)", re.IGNORECASE | re.DOTALL)
_WAITS = re.compile(r"\b(?:dependency|dependencies|depends on)\b[ \t*]*:", re.IGNORECASE)
_ID = re.compile(r"T([0-9]{1,6})", re.IGNORECASE)
_WRITTEN = re.compile(r"\{[ \t]{0,4}T([0-9]{1,6})[ \t]{0,4}\}", re.IGNORECASE)
_SPLIT = re.compile(r"[\s,;&+]+")
_NONE = {"none", "nothing", "n/a", "na", "-", "–", "no", "null"}
_AROUND = " \t-–*([])."


def parse_plan(text: str) -> Plan:
    """Parse a list of tasks, with or without ``<plan>`` around it. Raise only :class:`BrokenPlan`."""
    _, tag, inside = text.partition("<plan>")
    body = (inside if tag else text).partition("</plan>")[0]
    ids: list[str] = []
    texts: list[list[str]] = []
    dependencies: list[tuple[str, ...] | None] = []
    for line in body.splitlines():
        # ``T1: ...`` begins a task. Further lines belong to it, up to the line of its dependencies.
        if task := _TASK.match(line):
            ids.append(f"T{int(task[1])}")
            texts.append([])
            dependencies.append(None)
            line = task[2]
        waits = _WAITS.search(line)
        text = (line[: waits.start()] if waits else line).strip()
        text = text.rstrip("-–([* \t") if waits else text
        if ids and dependencies[-1] is None and text.strip(_AROUND):
            texts[-1].append(text.strip(" \t*"))
        if waits:
            if not ids or dependencies[-1] is not None:
                raise BrokenPlan(f"dependencies without a task: {line[:80]!r}")
            dependencies[-1] = _dependencies(line[waits.end() :])
    # Placeholders are normalized: ``{ t01 }`` becomes ``{T1}``.
    plain = (_WRITTEN.sub(lambda match: f"{{T{int(match[1])}}}", " ".join(text)) for text in texts)
    tasks = zip(
        ids, plain, (task_dependencies or () for task_dependencies in dependencies), strict=True
    )
    return Plan(tuple(Task(*task) for task in tasks))


def _dependencies(text: str) -> tuple[str, ...]:
    text = text.strip(_AROUND)
    if not text or text.lower() in _NONE or text.lower().startswith(("none ", "none,", "none(")):
        return ()
    ids: dict[str, None] = {}
    for word in _SPLIT.split(text):
        name = _ID.fullmatch(word.strip(_AROUND))
        if name:
            ids[f"T{int(name[1])}"] = None
        elif word.lower() not in ("and", ""):
            raise BrokenPlan(f"{word[:80]!r} is not the id of a task")
    return tuple(ids)


CALLS = ("wiki_search", "web_search", "crawl_page", "code", "visual_inspector")
NAMES = ("think", "plan", *CALLS, "reflection", "suggested_answer", "double_check", "answer",
         "observation")  # fmt: skip
_TAG = re.compile(f"<(/?)({'|'.join(NAMES)})>")

AgentKind = Literal["mhqa", "web", "code", "all_tools"]


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
        # An observation may quote any tag, so only its own closing tag ends it.
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


def _checked_answers(*calls: str) -> dict[str, tuple[str, ...]]:
    """Return the allowed next tags of an agent that checks its answer and makes these calls."""
    return {
        "": ("plan", *calls),
        "plan": (*calls, "suggested_answer"),
        **dict.fromkeys(calls, (*calls, "reflection", "suggested_answer")),
        "reflection": ("plan", *calls, "suggested_answer"),
        "suggested_answer": ("double_check",),
        "double_check": ("plan", *calls, "answer"),
    }


_NEXT: Mapping[AgentKind, Mapping[str, tuple[str, ...]]] = {
    "mhqa": {
        "": ("plan", "wiki_search"),
        "plan": ("wiki_search",),
        "wiki_search": ("wiki_search", "reflection", "answer"),
        "reflection": ("plan", "wiki_search"),
    },
    "web": _checked_answers("web_search", "crawl_page"),
    "all_tools": _checked_answers("web_search", "crawl_page", "code", "visual_inspector"),
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
    "all_tools": (),
    "code": ("plan", "reflection"),
}


def violations(text: str, kind: AgentKind) -> list[str]:
    """Return the violations in a trajectory (the text after the question) for this kind of agent."""
    segments, stray = scan(text)
    rules, last_segment, previous = _NEXT[kind], "", ""
    faults = ["closed without being open"] * stray
    for number, (name, body, closed) in enumerate(segments):
        next_segment = segments[number + 1].name if number + 1 < len(segments) else None
        # Thoughts and observations have no place in the order of tags.
        is_after_answer, is_step = (
            last_segment == "answer",
            last_segment != "answer" and name not in ("think", "observation"),
        )
        in_order = name in rules.get(last_segment, ())
        is_known = is_step and (name in rules or name == "answer")
        beside = name in CALLS and previous in CALLS  # one message, several calls
        thought = previous == "think" or beside or name in _WITHOUT_THINKING[kind]
        # Several calls of one message have one observation each.
        unanswered = name == "observation" and previous not in (*CALLS, "observation")
        is_code, is_answered = (
            is_known and name == "code",
            next_segment in (None, "observation", *CALLS),
        )
        broken = {
            "not closed": not closed,
            "after the answer": is_after_answer,
            "observation without a call": unanswered and not is_after_answer,
            "not of this agent": is_step and not is_known,
            "wrong order": is_known and not in_order,
            "no think before it": is_known and not thought,
            "not between fences": is_code and closed and not python_blocks(body),
            "call without an observation": name in CALLS and not is_answered,
        }
        faults += [fault for fault, is_broken in broken.items() if is_broken]
        last_segment = name if is_known else last_segment
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
    tagged = next(
        (content.strip() for content in reversed(_ANSWER_TAG.findall(text)) if content.strip()),
        None,
    )
    if tagged is not None or not lenient:
        return tagged
    # In order of trust: an unclosed tag, a sentence that states the answer, the last line.
    if (unclosed := _OPEN.search(text)) and unclosed[1].strip():
        return unclosed[1].strip().splitlines()[0].strip()
    plain = [line.strip() for line in _LEFT.sub("\n", text).splitlines() if line.strip()]
    stated = [match[1] for line in plain if (match := _SAID.search(line))]
    last_line = (stated or plain)[-1:]
    return last_line[0].strip(" .*\"'") or None if last_line else None


def parts(answer: str | None, several: Several) -> list[str]:
    """Return all non-empty answers, or the first of them."""
    answers = [part for piece in (answer or "").split(SEPARATOR) if (part := piece.strip())]
    return answers if several == "all" else answers[:1]


def matches(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """Return 1.0 if every answer that counts equals a right answer (exact match), else 0.0."""
    answers = parts(answer, several)
    return float(bool(answers) and all(exact_match(answer, golds) for answer in answers))


def overlap(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """Return the average F1 of the answers that count."""
    answers = parts(answer, several)
    return sum(f1(answer, golds) for answer in answers) / len(answers) if answers else 0.0


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
    conclusion: str = ""
    """Conclusion that replaces the facts in the last thought; may be empty."""

    def messages(self, form: TraceForm) -> tuple[str, ...]:
        if form == "closed":
            return (tagged("answer", self.answer),)
        return tuple(self._messages(form))

    def rounds(self, form: TraceForm) -> tuple[tuple[Query, ...], ...]:
        """Return the queries of each message but the last."""
        if form == "parallel":
            return self.levels
        return () if form == "closed" else tuple((query,) for row in self.levels for query in row)

    def _messages(self, form: TraceForm) -> Iterator[str]:
        answered: tuple[Query, ...] = ()
        planned = form == "parallel"
        plan = [tagged("think", _first(self.plan)), format_plan(self.plan)] if planned else []
        for queries in self.rounds(form):
            # A message first states the facts that the results before it have shown.
            facts = " ".join(query.fact for query in answered if query.fact)
            if planned:
                following = f"Next: {', '.join(query.task for query in queries)}."
            else:
                following = f"I search for the {'next' if answered else 'first'} fact."
            thought = tagged("think", f"{facts} {following}".strip())
            yield "\n".join((*plan, thought, call(SEARCH, [query.text for query in queries])))
            answered, plan = queries, []
        facts = self.conclusion or " ".join(query.fact for query in answered if query.fact)
        thought = tagged("think", f"{facts} {KNOWN}".strip())
        yield "\n".join((thought, tagged("answer", self.answer)))


def tagged(name: str, body: str) -> str:
    return f"<{name}>{body}</{name}>"


def call(tool: str, queries: list[str]) -> str:
    """Return a call, or several in one tag; a separator within a query is escaped."""
    escaped = (query.replace(SEPARATOR, f"\\{SEPARATOR}") for query in queries)
    # A final backslash would escape the next separator.
    spaced = (f"{query} " if query.endswith("\\") else query for query in escaped)
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
