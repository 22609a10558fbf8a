"""Steps of a reasoning, made into a trace: what is asked, what it waits for, and what it finds.

A trace that says something before it can be known is refused (:class:`NoTrace`). Hidden from a level are the answer and
all that this level and later ones find, unless the question or an earlier level has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.environments.workflow.names import says, words
from coterie.environments.workflow.plan import BrokenPlan, Plan, Task
from coterie.environments.workflow.trace import Query, Trace, written_plan
from coterie.environments.workflow.written import parse_plan

LEAK = "a query or a task says what is not known then"
TWICE = "two tasks ask the same"
UNPLANNED = "its tasks are no plan that can be written and read"


class NoTrace(Exception):
    """A row can't be turned into a sound trace; ``reason`` is one of few, to be counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Step:
    """One search. Steps are named by their place: ``T1``, ``T2``, ..."""

    task: str
    """What the plan says of it: what is not known has placeholders, such as ``{T1}``."""
    query: str
    result: str
    found: str
    after: tuple[str, ...] = ()


def name_of(place: int) -> str:
    """The id of a step, by its place from 0 on."""
    return f"T{place + 1}"


def is_yes_or_no(answer: str) -> bool:
    return words(answer) in (("yes",), ("no",))


def traced(question: str, answer: str, steps: Sequence[Step], *, compare: bool = False) -> Trace:
    """The trace of these steps; with ``compare`` a last task without a search, which waits for all that nothing else
    waits for. Raises :class:`NoTrace`.
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
        found
        for level in plan.levels
        if (found := tuple((id_, by_id[id_]) for id_ in level if id_ in by_id))
    )
    _check_known(question, answer, plan, [[step for _, step in level] for level in levels])
    if len({words(one.query) for one in steps}) < len(steps):
        raise NoTrace(TWICE)
    queries = (tuple(Query(id_, one.query, one.found) for id_, one in level) for level in levels)
    return Trace(plan, tuple(queries), answer)


def _plan(tasks: Sequence[Task]) -> Plan:
    try:
        plan = Plan(tuple(tasks))
        same = parse_plan(written_plan(plan)) == plan
    except BrokenPlan as error:
        raise NoTrace(UNPLANNED) from error
    if not same:
        raise NoTrace(UNPLANNED)
    return plan


def _check_known(question: str, answer: str, plan: Plan, levels: Sequence[Sequence[Step]]) -> None:
    """Nothing may be said before it is found. The plan is written when nothing is."""
    results = [[step.result for step in level] for level in levels]
    for number, level in enumerate(levels):
        known = [question, *(one for found in results[:number] for one in found)]
        hidden = [answer, *(one for found in results[number:] for one in found)]
        said = [step.query for step in level]
        if number == 0:
            said += [task.text for task in plan.tasks]
        if any(_leaks(one, hidden, known) for one in said):
            raise NoTrace(LEAK)


def _leaks(text: str, hidden: Sequence[str], known: Sequence[str]) -> bool:
    return any(says(text, one) and not any(says(other, one) for other in known) for one in hidden)
