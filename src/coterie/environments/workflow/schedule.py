"""Execution of plans: each task runs as soon as its dependencies are done.

A failed task is recorded, and its dependents are not run; other tasks continue. The numbers of parallel tasks and of
all tasks are limited.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.config.settings import Settings, key
from coterie.environments.workflow.plan import Plan, Task
from coterie.tools.calls import ToolError

Run = Callable[[str, str], Awaitable[str]]
"""Function that runs a task, from its id and its text with bound placeholders to its result."""
State = Literal["done", "failed", "not run"]


class PlanLimits(Settings):
    """Limits of the execution of a plan."""

    width: int = key(8, "Maximum parallel tasks of a plan.", ge=1)
    calls: int = key(64, "Maximum tasks of a plan; further tasks are not run.", ge=1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a task."""

    id: str
    state: State
    text: str
    """The result, or the reason for the lack of a result."""
    began: float = 0.0
    """Start in seconds after the start of the plan."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Times:
    """Duration of a plan in seconds, from the durations of its tasks."""

    serial: float
    """Duration of all tasks in sequence."""
    critical: float
    """Duration of the longest chain of dependent tasks, without a limit of width."""


def times(plan: Plan, durations: Iterable[tuple[str, float]]) -> Times:
    """Return the serial and the critical-path time. The default duration is 0. Raise ``ValueError`` for unknown ids."""
    took = dict.fromkeys(plan.by_id, 0.0)
    for id_, seconds in durations:
        if id_ not in took:
            raise ValueError(f"{id_!r} is not a task of the plan")
        took[id_] += seconds
    ends: dict[str, float] = {}
    for id_ in plan.order:
        begin = max((ends[one] for one in plan.by_id[id_].after), default=0.0)
        ends[id_] = begin + took[id_]
    return Times(sum(took.values()), max(ends.values()))


async def run_plan(plan: Plan, run: Run, limits: PlanLimits) -> tuple[Outcome, ...]:
    """Run each task as soon as its dependencies are done. Return outcomes in the order of the plan's tasks.

    A task fails with ``ToolError`` or ``TimeoutError``. Any other exception, such as ``ToolUnavailable``, is raised
    after the cancellation of the running tasks.
    """
    place = {task.id: number for number, task in enumerate(plan.tasks)}
    allowed = set(plan.order[: limits.calls])  # the same tasks, however long each takes
    outcomes: dict[str, Outcome] = {}
    waiting: list[str] = []
    running: dict[asyncio.Task[Outcome], str] = {}
    sorter, start = plan.sorter(), time.monotonic()
    sorter.prepare()
    try:
        while sorter.is_active():
            waiting = sorted((*waiting, *sorter.get_ready()), key=place.__getitem__)
            while waiting and len(running) < limits.width:
                task = plan.by_id[waiting.pop(0)]
                why = _obstacle(task, allowed, outcomes, limits)
                if why:
                    outcomes[task.id] = Outcome(task.id, "not run", f"not run: {why}")
                    sorter.done(task.id)
                else:
                    running[asyncio.create_task(_one(task, run, outcomes, start))] = task.id
            if running:
                completed, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in completed:
                    outcomes[running[one]] = one.result()
                    sorter.done(running.pop(one))
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return tuple(outcomes[task.id] for task in plan.tasks)


def _obstacle(
    task: Task, allowed: set[str], outcomes: Mapping[str, Outcome], limits: PlanLimits
) -> str:
    for other in task.after:
        if outcomes[other].state != "done":
            return f"{other} {'failed' if outcomes[other].state == 'failed' else 'was not run'}"
    return "" if task.id in allowed else f"a plan has at most {limits.calls} calls"


async def _one(task: Task, run: Run, outcomes: Mapping[str, Outcome], start: float) -> Outcome:
    results = {other: outcomes[other].text for other in task.after}
    began = time.monotonic()
    state: State = "done"
    try:
        text = await run(task.id, task.bound(results))
    except (ToolError, TimeoutError) as error:
        state, text = "failed", f"{error}" or "no answer in time"
    took = time.monotonic() - began
    return Outcome(task.id, state, text, round(began - start, 6), round(took, 6))
