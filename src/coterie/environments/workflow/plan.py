"""Plans as acyclic graphs of tasks: parsing, validation and parallel execution.

A plan is a list (``T1: ...`` with a line ``- Dependencies: none``) or XML (``<graph>``). The parser is lenient about
case, spaces, bullets and bold type, and strict about the graph. Its time is linear in the length of the text.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple
from xml.etree import ElementTree
from xml.parsers.expat import ErrorString

from coterie.tools.calls import ToolError

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]{0,63})\}")


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
    tool: str | None = None

    def bound(self, results: Mapping[str, str]) -> str:
        """Return the text with results instead of placeholders. Braces in a result remain text."""
        return PLACEHOLDER.sub(lambda match: results[match[1]], self.text)


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


_TASK = re.compile(r"[\s\-*•#>]*T([0-9]{1,6})[ \t*]*[:.)](.*)", re.IGNORECASE | re.DOTALL)
_WAITS = re.compile(r"\b(?:dependency|dependencies|depends on)\b[ \t*]*:", re.IGNORECASE)
_ID = re.compile(r"T([0-9]{1,6})", re.IGNORECASE)
_WRITTEN = re.compile(r"\{[ \t]{0,4}T([0-9]{1,6})[ \t]{0,4}\}", re.IGNORECASE)
_SPLIT = re.compile(r"[\s,;&+]+")
_NONE = {"none", "nothing", "n/a", "na", "-", "–", "no", "null"}
_AROUND = " \t-–*([])."
_LONE = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});)")
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,63})\((.*)\)", re.DOTALL)
_NODE_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def parse_plan(text: str) -> Plan:
    """Parse a plan, with or without ``<plan>`` around it. Raise only :class:`BrokenPlan`."""
    _, tag, inside = text.partition("<plan>")
    body = (inside if tag else text).partition("</plan>")[0]
    start = body.find("<graph")
    return Plan(_graph(body[start:]) if start >= 0 else _list(body))


def _list(body: str) -> tuple[Task, ...]:
    ids: list[str] = []
    texts: list[list[str]] = []
    after: list[tuple[str, ...] | None] = []
    for number, line in enumerate(body.splitlines(), 1):
        if task := _TASK.match(line):
            ids.append(f"T{int(task[1])}")
            texts.append([])
            after.append(None)
            line = task[2]
        waits = _WAITS.search(line)
        text = (line[: waits.start()] if waits else line).strip()
        text = text.rstrip("-–([* \t") if waits else text
        if ids and after[-1] is None and text.strip(_AROUND):
            texts[-1].append(text.strip(" \t*"))
        if waits:
            if not ids:
                raise BrokenPlan("dependencies before the first task", f"line {number}")
            if after[-1] is not None:
                raise BrokenPlan("a second list of dependencies", ids[-1])
            after[-1] = _dependencies(line[waits.end() :], ids[-1])
    plain = (_WRITTEN.sub(lambda one: f"{{T{int(one[1])}}}", " ".join(text)) for text in texts)
    return tuple(Task(*one) for one in zip(ids, plain, (one or () for one in after), strict=True))


def _dependencies(text: str, id_: str) -> tuple[str, ...]:
    text = text.strip(_AROUND)
    if not text or text.lower() in _NONE or text.lower().startswith(("none ", "none,", "none(")):
        return ()
    ids: dict[str, None] = {}
    for word in _SPLIT.split(text):
        name = _ID.fullmatch(word.strip(_AROUND))
        if name:
            ids[f"T{int(name[1])}"] = None
        elif word.lower() not in ("and", ""):
            raise BrokenPlan(f"{word[:80]!r} is not the id of a task", id_)
    return tuple(ids)


def _graph(body: str) -> tuple[Task, ...]:
    """Parse a text that begins with ``<graph``, so it can't declare entities; named entities stay text."""
    end = body.find("</graph>")
    if end < 0:
        raise BrokenPlan("<graph> is not closed")
    source = _LONE.sub("&amp;", body[: end + len("</graph>")])
    try:
        nodes = ElementTree.fromstring(source.encode(errors="replace"))
    except ElementTree.ParseError as error:
        what = f"not XML: {ErrorString(error.code)}"
        raise BrokenPlan(what, f"line {error.position[0]}") from None
    return tuple(map(_node, nodes))


def _node(node: ElementTree.Element) -> Task:
    id_ = node.get("id", "").strip()
    if node.tag != "node":
        raise BrokenPlan(f"<{node.tag[:80]}> can't stand here")
    if not _NODE_ID.fullmatch(id_):
        raise BrokenPlan(f"{id_[:80]!r} can't be the id of a node")
    if len(node):
        raise BrokenPlan(f"<{node[0].tag[:80]}> can't stand here", id_)
    waits = node.get("depends", "").strip()
    listed = () if waits.lower() in _NONE else _SPLIT.split(waits)
    tool, text = _parse_call((node.text or "").strip())
    return Task(id_, text, tuple(dict.fromkeys(one for one in listed if one)), tool)


def _parse_call(text: str) -> tuple[str | None, str]:
    """Return the tool and the argument of ``search("...")``, or ``None`` and the plain text."""
    call = _CALL.fullmatch(text)
    if not call:
        return None, text
    argument = call[2].strip()
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "\"'":
        argument = argument[1:-1]
    return call[1], argument


Run = Callable[[str, str], Awaitable[str]]
"""Function that runs a task, from its id and its text with bound placeholders to its result."""
State = Literal["done", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a task."""

    id: str
    state: State
    text: str
    began: float = 0.0
    """Start in seconds after the start of the plan."""
    seconds: float = 0.0


class Times(NamedTuple):
    """Seconds of all tasks in sequence, and of the longest chain of dependent tasks."""

    serial: float
    critical: float


def times(plan: Plan, seconds: Mapping[str, float]) -> Times:
    """Return the serial and the critical-path time of a plan, from the seconds of its tasks."""
    ends: dict[str, float] = {}
    for id_ in plan.order:
        begin = max((ends[one] for one in plan.by_id[id_].after), default=0.0)
        ends[id_] = begin + seconds.get(id_, 0.0)
    return Times(sum(seconds.values()), max(ends.values()))


async def run_plan(plan: Plan, run: Run, *, width: int, calls: int) -> tuple[Outcome, ...]:
    """Run each task as soon as its dependencies are done. Return outcomes in the order of the plan's tasks.

    At most ``width`` tasks run in parallel, and only the first ``calls`` tasks by level run.

    A task fails with ``ToolError`` or ``TimeoutError``. Any other exception, such as ``ToolUnavailable``, is raised
    after the cancellation of the running tasks.
    """
    allowed = set(plan.order[:calls])  # the same tasks, however long each takes
    slots, start = asyncio.Semaphore(width), time.monotonic()
    running: dict[str, asyncio.Task[Outcome]] = {}

    async def run_one(task: Task) -> Outcome:
        outcomes = {other: await running[other] for other in task.after}
        if why := _obstacle(task, allowed, outcomes, calls):
            return Outcome(task.id, "not run", f"not run: {why}")
        state: State = "done"
        async with slots:
            began = time.monotonic()
            try:
                text = await run(
                    task.id, task.bound({id_: one.text for id_, one in outcomes.items()})
                )
            except (ToolError, TimeoutError) as error:
                state, text = "failed", f"{error}" or "no answer in time"
            took = time.monotonic() - began
        return Outcome(task.id, state, text, round(began - start, 6), round(took, 6))

    try:
        async with asyncio.TaskGroup() as group:
            for id_ in plan.order:
                running[id_] = group.create_task(run_one(plan.by_id[id_]))
    except ExceptionGroup as error:
        raise error.exceptions[0] from None
    return tuple(running[task.id].result() for task in plan.tasks)


def _obstacle(task: Task, allowed: set[str], outcomes: Mapping[str, Outcome], calls: int) -> str:
    for other in task.after:
        if outcomes[other].state != "done":
            return f"{other} {'failed' if outcomes[other].state == 'failed' else 'was not run'}"
    return "" if task.id in allowed else f"a plan has at most {calls} calls"
