"""How often a policy solves each task, by the dialogues that a store holds.

By score, whatever was added to it for a reward.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie.datasets.rows import QuestionRow, question_key
from coterie.environments.gold import question_of
from coterie.runs.reinforce.loop import step_records
from coterie.runs.reinforce.sampling import place
from coterie.trajectories.store import Store


@dataclass(frozen=True, slots=True)
class PassRate:
    """Of one task."""

    passed: int
    graded: int
    """Dialogues that ended with a score. One that failed, or that a judge could not grade, says nothing."""

    @property
    def rate(self) -> float:
        """Share of the graded ones that passed."""
        return self.passed / self.graded


@dataclass(frozen=True, slots=True)
class PassRates:
    """Of all tasks of a stage."""

    by_task: Mapping[str, PassRate]
    by_question: Mapping[str, PassRate]
    """By the key of a question, for tasks whose ids are not those of rows."""

    def of(self, data_set: str, row: QuestionRow) -> PassRate | None:
        """That of the task that a row became; ``None`` if it was not played, or never graded."""
        return self.by_task.get(f"{data_set}-{row.id}") or self.by_question.get(row.key)


def pass_rates(store: Store, iteration: int, stage: str, passing: float) -> PassRates:
    """Rates of the tasks that have a graded dialogue; one passes whose score is at least ``passing``."""
    return _rates(store, iteration, [stage], passing)


def step_rates(store: Store, iteration: int, stage: str, passing: float) -> PassRates:
    """The same of the tasks of a reinforcement learning, each by the newest step that has sampled it.

    A step counts when it was taken: before that its groups may not be whole.
    """
    steps = sorted(step_records(store, iteration, stage))
    return _rates(store, iteration, [place(stage, step) for step in steps], passing)


def _rates(store: Store, iteration: int, stages: Iterable[str], passing: float) -> PassRates:
    by_task, by_question = dict[str, PassRate](), dict[str, PassRate]()
    for tree in (tree for stage in stages for tree in store.outlines(iteration, stage)):
        scores = [one.score for one in tree.outcomes.values() if one.score is not None]
        if scores:
            found = PassRate(sum(score >= passing for score in scores), len(scores))
            by_task[tree.task] = found
            by_question[question_key(question_of(store.task(tree.task)))] = found
    return PassRates(by_task, by_question)
