"""Plans: acyclic graphs of tasks.

A model writes a plan as a list (``T1: ...`` with a line ``- Dependencies: none``) or as XML (``<graph>``). The module
``plan_parser`` reads both.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]{0,63})\}")
"""Placeholder for the result of another task, such as ``{s1}``."""


class BrokenPlan(Exception):
    """An invalid plan: ``what`` is wrong, and ``where`` (a task, a line, or "")."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.what, self.where = what, where


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a plan."""

    id: str
    text: str
    """Description or query, possibly with placeholders for its dependencies."""
    after: tuple[str, ...] = ()
    """Ids of its dependencies, in the order of the text."""
    tool: str | None = None
    """The tool of the task, if the plan names one."""

    def bound(self, results: Mapping[str, str]) -> str:
        """Return the text with results instead of placeholders. Braces in a result remain text."""
        return PLACEHOLDER.sub(lambda match: results[match[1]], self.text)


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a plan."""

    tasks: int
    levels: int
    """Number of levels, which is the length of the longest chain of tasks."""
    width: int
    """Number of tasks in the largest level."""


@dataclass(frozen=True)
class Plan:
    """Checked tasks in the order of the text. Raises :class:`BrokenPlan` if they are not a valid plan."""

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
            listed = [*cycle[:8], "..."] if len(cycle) > 9 else cycle
            raise BrokenPlan(
                f"tasks wait for each other: {' -> '.join(listed)}", cycle[0]
            ) from None

    def sorter(self) -> TopologicalSorter[str]:
        return TopologicalSorter({task.id: task.after for task in self.tasks})

    @cached_property
    def by_id(self) -> Mapping[str, Task]:
        return {task.id: task for task in self.tasks}

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Ids by level. The tasks of a level depend only on earlier levels and are in the order of the text."""
        place = {task.id: number for number, task in enumerate(self.tasks)}
        sorter, levels = self.sorter(), []
        sorter.prepare()
        while sorter.is_active():
            level = sorter.get_ready()
            sorter.done(*level)
            levels.append(tuple(sorted(level, key=place.__getitem__)))
        return tuple(levels)

    @property
    def order(self) -> tuple[str, ...]:
        """All ids by level, each after its dependencies."""
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
