"""Runs the tasks of a plan: level after level with a barrier between them, or each as soon as it can.

A task that fails is recorded, and so are those that wait for it; the others go on. How many run at the same time, and
how many run at all, is limited.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.config.settings import Settings, key
from coterie.environments.workflow.plan import Plan, Task
from coterie.tools.run import ToolError

Run = Callable[[str, str], Awaitable[str]]
"""Runs a task: its id and its text, in which placeholders are bound; a result out."""
State = Literal["done", "failed", "not run"]


class PlanLimits(Settings):
    """How a plan is run."""

    width: int = key(8, "Tasks of a plan that run at the same time.", ge=1)
    calls: int = key(64, "Tasks of a plan that are run; the rest is answered as not run.", ge=1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task."""

    id: str
    state: State
    text: str
    """The result; or why there is none."""
    began: float = 0.0
    """Seconds after the plan's beginning."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long a plan takes, in seconds, by the durations of its tasks."""

    serial: float
    """One task after another."""
    critical: float
    """The longest chain of tasks that wait for each other: with unlimited width and no barriers."""


async def run_by_levels(plan: Plan, run: Run, limits: PlanLimits) -> tuple[Outcome, ...]:
    """Outcomes in the order of the plan's tasks. No level begins before the one before it has ended.

    A task fails by ``ToolError`` or ``TimeoutError``. Any other exception, such as ``ToolUnavailable``, is raised
    when the tasks beside it are cancelled.
    """
    return await _run(plan, run, limits, barrier=True)


async def run_as_soon_as_possible(plan: Plan, run: Run, limits: PlanLimits) -> tuple[Outcome, ...]:
    """As :func:`run_by_levels`; but a task begins when those that it waits for have ended, and there is room."""
    return await _run(plan, run, limits, barrier=False)


def times(plan: Plan, durations: Iterable[tuple[str, float]]) -> Times:
    """Serial and critical-path time. Tasks without a duration take none. Raises ``ValueError`` for unknown ids."""
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


async def _run(plan: Plan, run: Run, limits: PlanLimits, *, barrier: bool) -> tuple[Outcome, ...]:
    place = {task.id: number for number, task in enumerate(plan.tasks)}
    allowed = set(plan.order[: limits.calls])  # the same tasks, however long each takes
    found: dict[str, Outcome] = {}
    waiting: list[str] = []
    running: dict[asyncio.Task[Outcome], str] = {}
    sorter, start = plan.sorter(), time.monotonic()
    sorter.prepare()
    try:
        while sorter.is_active():
            if not barrier or not (waiting or running):
                waiting = sorted((*waiting, *sorter.get_ready()), key=place.__getitem__)
            while waiting and len(running) < limits.width:
                task = plan.by_id[waiting.pop(0)]
                why = _hindered(task, allowed, found, limits)
                if why:
                    found[task.id] = Outcome(task.id, "not run", f"not run: {why}")
                    sorter.done(task.id)
                else:
                    running[asyncio.create_task(_one(task, run, found, start))] = task.id
            if running:
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in ended:
                    found[running[one]] = one.result()
                    sorter.done(running.pop(one))
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return tuple(found[task.id] for task in plan.tasks)


def _hindered(
    task: Task, allowed: set[str], found: Mapping[str, Outcome], limits: PlanLimits
) -> str:
    for other in task.after:
        if found[other].state != "done":
            return f"{other} {'failed' if found[other].state == 'failed' else 'was not run'}"
    return "" if task.id in allowed else f"a plan has at most {limits.calls} calls"


async def _one(task: Task, run: Run, found: Mapping[str, Outcome], start: float) -> Outcome:
    results = {other: found[other].text for other in task.after}
    began = time.monotonic()
    state: State = "done"
    try:
        text = await run(task.id, task.bound(results))
    except (ToolError, TimeoutError) as error:
        state, text = "failed", f"{error}" or "no answer in time"
    took = time.monotonic() - began
    return Outcome(task.id, state, text, round(began - start, 6), round(took, 6))
