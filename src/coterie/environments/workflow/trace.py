"""What an agent of GAP says in a trajectory, written down: thoughts, a plan, calls, an answer.

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

An expert that knows the gold writes traces like this, with a plan and a level of it in each call (parallel), or one
query after the other without a plan (sequential). A control says the answer alone (closed).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from coterie.environments.workflow.plan import Plan

SEPARATOR = "|"
SEARCH = "wiki_search"
"""The tool that an expert calls."""
KNOWN = "So I know the answer."
"""With what the last thought ends."""
TraceForm = Literal["parallel", "sequential", "closed"]


@dataclass(frozen=True, slots=True)
class Query:
    """One call, and why it is made."""

    task: str
    text: str
    found: str = ""
    """What it is to find, in the words of a later thought; empty where nothing is said of it."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What is to be said of one question. Queries of a level wait only for those of earlier levels."""

    plan: Plan
    levels: tuple[tuple[Query, ...], ...]
    """By the levels of the plan: one query for each task that needs a search."""
    answer: str
    tool: str = SEARCH
    conclusion: str = ""
    """What follows from all that was found: the last thought says it instead of what was found, unless it is empty."""

    def messages(self, form: TraceForm) -> tuple[str, ...]:
        """The agent's messages, each to be ended by a tool's results, but the last one."""
        if form == "closed":
            return (tagged("answer", self.answer),)
        return tuple(self._messages(self.rounds(form), planned=form == "parallel"))

    def rounds(self, form: TraceForm) -> tuple[tuple[Query, ...], ...]:
        """The queries of each message but the last."""
        if form == "closed":
            return ()
        if form == "parallel":
            return self.levels
        return tuple((one,) for level in self.levels for one in level)

    def _messages(self, rounds: tuple[tuple[Query, ...], ...], *, planned: bool) -> Iterator[str]:
        known: list[Query] = []
        for number, queries in enumerate(rounds):
            said = [think(_thought(known, queries, planned=planned))]
            if planned and number == 0:
                said = [think(_first(self.plan)), written_plan(self.plan), *said]
            yield "\n".join((*said, call(self.tool, [one.text for one in queries])))
            known = list(queries)
        last = _thought(known, (), planned=planned, conclusion=self.conclusion)
        yield "\n".join((think(last), tagged("answer", self.answer)))


def tagged(name: str, body: str) -> str:
    return f"<{name}>{body}</{name}>"


def think(thought: str) -> str:
    return tagged("think", thought)


def call(tool: str, queries: list[str]) -> str:
    """A call, or several in one tag; a separator within a query is escaped."""
    escaped = (_escaped(one) for one in queries)
    return tagged(tool, SEPARATOR.join(escaped))


def _escaped(query: str) -> str:
    """A query in which no separator stands alone; one that ends with a backslash must not escape the one after it."""
    found = query.replace(SEPARATOR, f"\\{SEPARATOR}")
    return f"{found} " if found.endswith("\\") else found


def written_plan(plan: Plan) -> str:
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
    found = " ".join(one.found for one in known if one.found)
    if not queries:
        found, following = conclusion or found, KNOWN
    elif planned:
        following = f"Next: {', '.join(one.task for one in queries)}."
    else:
        following = "I search for the next fact." if known else "I search for the first fact."
    return f"{found} {following}".strip()
