"""The plans that an agent writes, drawn as graphs: a column for each level, an arrow from what is waited for."""

from collections.abc import Iterator

from coterie.environments.workflow.measures import plans_of
from coterie.environments.workflow.plan import BrokenPlan, Plan
from coterie.environments.workflow.written import parse_plan
from coterie.reports.data import PlanArrow, PlanNode, PlanView
from coterie.trajectories.turn import Turn

WIDTH, HEIGHT = 190, 34
"""Of a task's box, in pixels."""
APART, BELOW = 46, 10
"""Pixels between columns, and between boxes of a column."""
LETTERS = 22
"""Of a task's text in its box."""
MOST = 60
"""Tasks of a plan that is drawn."""


def plan_views(turn: Turn) -> tuple[PlanView, ...]:
    return tuple(map(_drawn, _plans(turn.text)))


def _plans(text: str) -> Iterator[Plan]:
    for written in plans_of(text):
        try:
            plan = parse_plan(written)
        except BrokenPlan:
            continue
        if len(plan.tasks) <= MOST:
            yield plan


def _drawn(plan: Plan) -> PlanView:
    places = {
        id_: (column * (WIDTH + APART), row * (HEIGHT + BELOW))
        for column, level in enumerate(plan.levels)
        for row, id_ in enumerate(level)
    }
    nodes = tuple(
        PlanNode(task.id, _short(task.text), task.text, *places[task.id]) for task in plan.tasks
    )
    arrows = tuple(
        PlanArrow(
            places[other][0] + WIDTH,
            places[other][1] + HEIGHT // 2,
            places[task.id][0],
            places[task.id][1] + HEIGHT // 2,
        )
        for task in plan.tasks
        for other in task.after
    )
    shape = plan.shape
    width = shape.levels * (WIDTH + APART) - APART
    return PlanView(nodes, arrows, width, shape.width * (HEIGHT + BELOW) - BELOW, shape.levels)


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"
