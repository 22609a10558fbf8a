"""Optional fields of a task: searchable pages, elements of web pages, and the right operations on them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.datasets.plans import ActionPage, PlanRow, PlanStep
from coterie.environments.gold import GRADER
from coterie.environments.plan_ground.benchmarks import Unplanned
from coterie.tools.actions.executors import CANDIDATES, Element, Gold
from coterie.trajectories.task import Secret, Task

PAGES, ELEMENTS, RIGHT = "pages", "elements", "right_operations"


def public_fields(row: PlanRow, steps: Sequence[PlanStep], place: int) -> dict[str, object]:
    """Return the public fields of a task with these steps, which start at index ``place`` of the row."""
    if isinstance(row, Unplanned) and row.pages:
        return {PAGES: [list(page) for page in row.pages]}
    pages = _numbered(row, steps, place)
    return {ELEMENTS: {number: _elements(page) for number, page in pages.items()}} if pages else {}


def secret_fields(row: PlanRow, steps: Sequence[PlanStep], place: int) -> dict[str, Secret]:
    right = {
        number: [sorted(page.right), page.kind, page.value]
        for number, page in _numbered(row, steps, place).items()
    }
    if not right:
        return {}
    text = json.dumps(right, ensure_ascii=False)
    return {RIGHT: Secret(text, name=RIGHT, readers=frozenset({GRADER}))}


def pages_of(task: Task) -> list[tuple[str, str]]:
    """Return the pages of a task."""
    pages: Any = task.public.get(PAGES, [])
    return [(str(title), str(text)) for title, text in pages]


def elements_of(task: Task) -> dict[int, tuple[Element, ...]]:
    """Return the candidate elements of each action, by its number in the whole task."""
    pages: Any = task.public.get(ELEMENTS, {})
    return {int(n): tuple(Element(*one) for one in page) for n, page in pages.items()}


def right_of(task: Task) -> dict[int, Gold]:
    """Return the right operation of each action, by its number in the whole task, for graders."""
    if RIGHT not in task.secrets:
        return {}
    operations: Mapping[str, Any] = json.loads(task.secrets[RIGHT].reveal(GRADER))
    return {
        int(n): Gold(frozenset(ids), kind, value) for n, (ids, kind, value) in operations.items()
    }


def _numbered(row: PlanRow, steps: Sequence[PlanStep], place: int) -> dict[str, ActionPage]:
    first = 1 + sum(len(step.actions) for step in row.steps[:place])
    pages = [page for step in steps for page in step.pages]
    whole = len(pages) == sum(len(step.actions) for step in steps)
    return {str(first + n): page for n, page in enumerate(pages)} if whole else {}


def _elements(page: ActionPage) -> list[list[str]]:
    return [[one.id, one.tag, one.text] for one in page.elements[:CANDIDATES]]
