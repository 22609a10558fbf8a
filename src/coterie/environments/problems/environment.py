"""The ``problems`` micro-world as an environment: a planner and a grounder on word problems that it makes."""

from collections.abc import Sequence

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.environments.plan_ground.environment import PLANNER, PlanGround, asked, whole_task
from coterie.environments.problems.calculator import SandboxCalculator
from coterie.environments.problems.tasks import FAR_PARTS, PARTS, Problem, generate
from coterie.environments.problems.wordings import (
    GROUNDER_PROMPT,
    PLANNER_PROMPT,
    actions,
    problem_text,
    results,
    right_subgoals,
)
from coterie.environments.settings import EnvironmentSettings
from coterie.trajectories.task import Task


class ProblemsSettings(EnvironmentSettings):
    """Settings of the micro-world."""

    far: bool = key(False, "Problems are told in other words, and have one more part.")


class Problems(PlanGround):
    """The micro-world of ``moat``."""

    name = "problems"
    settings_type = ProblemsSettings
    row_types = ()
    form = "onetime"
    max_turns = 2

    def __init__(self, settings: ProblemsSettings | None = None) -> None:
        settings = settings or ProblemsSettings()
        self.domain = SandboxCalculator()
        self.needs, self.metric = self.domain.needs, self.domain.metric
        self.far = settings.far

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split; train and held-out are disjoint by construction (see ``tasks``)."""
        start = sum(drawn) if split == "train" else 0
        told = (FAR_PARTS, "far") if self.far else (PARTS, "near")
        return [as_task(one) for one in generate(split, start + count, seed, *told)[start:]]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        """Held-out tasks; all have right actions."""
        return self.tasks("heldout", count, seed)

    def told(self, task: Task, actor: str) -> str:
        """The few words that the packaged model knows."""
        return PLANNER_PROMPT if actor == PLANNER else f"{GROUNDER_PROMPT} {asked(task)}"


def as_task(problem: Problem) -> Task:
    """The record's form of a problem, with a careful plan."""
    steps = [
        PlanStep(subgoal=subgoal, actions=(action,), result=value)
        for subgoal, action, value in zip(
            right_subgoals(problem), actions(problem), results(problem), strict=True
        )
    ]
    row = PlanRow(
        id=problem.problem_id,
        question=problem_text(problem),
        answer=str(problem.answer),
        steps=tuple(steps),
        domain="maths",
    )
    return whole_task(row)
