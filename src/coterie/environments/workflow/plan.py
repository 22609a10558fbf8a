"""A plan: tasks, and which of them wait for which. A checked graph without cycles.

A model writes it as a list (``T1: ...`` with a line ``- Dependencies: none``) or as XML (``<graph>``); the module
``written`` reads both.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]{0,63})\}")
"""Where the result of another task is put: ``{s1}``."""


class BrokenPlan(Exception):
    """A text is not a plan that can be run: ``what`` is wrong, and ``where`` (a task, a line; may be empty)."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.what, self.where = what, where


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a plan."""

    id: str
    text: str
    """What to do or to ask; may have placeholders of the tasks that it waits for."""
    after: tuple[str, ...] = ()
    """Ids of the tasks that it waits for, in the order in which they were written."""
    tool: str | None = None
    """The tool that runs it, where the plan names one."""

    def bound(self, results: Mapping[str, str]) -> str:
        """Its text with results in the place of placeholders. Braces inside a result stay text."""
        return PLACEHOLDER.sub(lambda found: results[found[1]], self.text)


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a plan."""

    tasks: int
    levels: int
    """Also the number of tasks on the longest chain, the critical path where all tasks take equally long."""
    width: int
    """Tasks of the largest level."""


@dataclass(frozen=True)
class Plan:
    """Checked tasks, in the order in which they were written. Raises :class:`BrokenPlan` if they are not a plan."""

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BrokenPlan("there are no tasks")
        seen: set[str] = set()
        for task in self.tasks:
            if task.id in seen:
                raise BrokenPlan("this id is used twice", task.id)
            seen.add(task.id)
        for task in self.tasks:
            _check(task, seen)
        try:
            self.sorter().prepare()
        except CycleError as error:
            cycle = error.args[1]
            shown = [*cycle[:8], "..."] if len(cycle) > 9 else cycle
            raise BrokenPlan(f"tasks wait for each other: {' -> '.join(shown)}", cycle[0]) from None

    def sorter(self) -> TopologicalSorter[str]:
        return TopologicalSorter({task.id: task.after for task in self.tasks})

    @cached_property
    def by_id(self) -> Mapping[str, Task]:
        return {task.id: task for task in self.tasks}

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Ids: tasks that wait for nothing, then those that wait only for earlier levels, and so on.

        A level has the order in which its tasks were written.
        """
        place = {task.id: number for number, task in enumerate(self.tasks)}
        sorter, found = self.sorter(), []
        sorter.prepare()
        while sorter.is_active():
            level = sorter.get_ready()
            sorter.done(*level)
            found.append(tuple(sorted(level, key=place.__getitem__)))
        return tuple(found)

    @property
    def order(self) -> tuple[str, ...]:
        """All ids, level after level: each after those that it waits for."""
        return tuple(one for level in self.levels for one in level)

    @property
    def shape(self) -> Shape:
        return Shape(len(self.tasks), len(self.levels), max(map(len, self.levels)))


def _check(task: Task, known: set[str]) -> None:
    if task.id in task.after:
        raise BrokenPlan("it waits for itself", task.id)
    if len(set(task.after)) < len(task.after):
        raise BrokenPlan("a dependency is written twice", task.id)
    for other in task.after:
        if other not in known:
            raise BrokenPlan(f"it waits for {other[:80]!r}, which is not a task", task.id)
    placeholders = PLACEHOLDER.findall(task.text)
    unbound = next((one for one in placeholders if one not in task.after), None)
    if unbound is not None:
        raise BrokenPlan(
            f"its placeholder {{{unbound}}} is not one of the tasks that it waits for", task.id
        )
