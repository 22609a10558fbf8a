"""Traces: messages of a GAP agent in a trajectory, with thoughts, a plan, calls and an answer.

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

An expert that knows the gold facts writes such traces with a plan and one level in each call (parallel), or with one
query at a time and no plan (sequential). A control writes only the answer (closed).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from coterie.environments.workflow.plan import Plan

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
