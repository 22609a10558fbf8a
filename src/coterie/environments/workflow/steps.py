"""Reasoning steps, and their conversion to a trace.

A trace that reveals information too early is rejected (:class:`NoTrace`). A level must not contain the answer or
results of this level or later levels, unless they are in the question or in results of earlier levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.environments.workflow.names import says, words
from coterie.environments.workflow.plan import BrokenPlan, Plan, Task
from coterie.environments.workflow.plan_parser import parse_plan
from coterie.environments.workflow.trace import Query, Trace, format_plan

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
