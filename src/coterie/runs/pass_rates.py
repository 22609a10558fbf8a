"""Pass rates of a policy by task, from the scores of stored dialogues (not from rewards)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie.datasets.rows import QuestionRow, question_key
from coterie.environments.answers import question_of
from coterie.record.store import Store
from coterie.runs.reinforce.loop import step_records
from coterie.runs.reinforce.sampling import step_stage


@dataclass(frozen=True, slots=True)
class PassRate:
    """Pass rate of one task."""

    passed: int
    graded: int
    """Dialogues with a score. Failed and ungraded dialogues are not counted."""

    @property
    def rate(self) -> float:
        """Share of graded dialogues that passed."""
        return self.passed / self.graded


@dataclass(frozen=True, slots=True)
class PassRates:
    """Pass rates of all tasks of a stage."""

    by_task: Mapping[str, PassRate]
    by_question: Mapping[str, PassRate]
    """Pass rates by key of the question, for tasks whose ids differ from the ids of rows."""

    def of(self, data_set: str, row: QuestionRow) -> PassRate | None:
        """Return the pass rate of a row's task; ``None`` if it has no graded dialogue."""
        return self.by_task.get(f"{data_set}-{row.id}") or self.by_question.get(row.key)


def pass_rates(store: Store, iteration: int, stage: str, passing: float) -> PassRates:
    """Return the pass rates of a stage. A dialogue passes if its score is at least ``passing``."""
    return _rates(store, iteration, [stage], passing)


def step_rates(store: Store, iteration: int, stage: str, passing: float) -> PassRates:
    """Return the pass rates of reinforcement learning, of each task in the newest step that sampled it.

    Only finished steps count, because the groups of an unfinished step may be incomplete.
    """
    steps = sorted(step_records(store, iteration, stage))
    return _rates(store, iteration, [step_stage(stage, step) for step in steps], passing)


def _rates(store: Store, iteration: int, stages: Iterable[str], passing: float) -> PassRates:
    by_task, by_question = dict[str, PassRate](), dict[str, PassRate]()
    for tree in (tree for stage in stages for tree in store.outlines(iteration, stage)):
        scores = [one.score for one in tree.outcomes.values() if one.score is not None]
        if scores:
            rate = PassRate(sum(score >= passing for score in scores), len(scores))
            by_task[tree.task] = rate
            by_question[question_key(question_of(store.task(tree.task)))] = rate
    return PassRates(by_task, by_question)
