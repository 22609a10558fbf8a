"""The right way to do a task, and what was carried out of it so far."""

from dataclasses import dataclass

from coterie.datasets.plans import PlanStep
from coterie.environments.plan_ground.prompts import DONE, actions_text, plan_text


@dataclass(frozen=True, slots=True)
class Gold:
    """The right way to do a task, or one step of it."""

    steps: tuple[PlanStep, ...]
    first: int = 1
    """The number of the first step."""
    done: bool = False
    """Whether nothing is left to do: the planner should stop."""

    @property
    def plan(self) -> str:
        """What the planner should write."""
        return (
            DONE
            if self.done
            else plan_text([step.subgoal for step in self.steps], first=self.first)
        )

    @property
    def actions(self) -> str:
        """What the grounder should write."""
        return actions_text([one for step in self.steps for one in step.actions])


@dataclass(frozen=True, slots=True)
class Carried:
    """What was carried out so far."""

    values: tuple[tuple[str, str], ...] = ()
    """The results of actions by name."""
    subgoals: int = 0
    problems: int = 0
    """Action lines that could not be read or run."""
