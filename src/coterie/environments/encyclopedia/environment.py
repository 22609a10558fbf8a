"""The ``encyclopedia`` environment: questions about invented entries, for an agent that searches and answers."""

from collections.abc import Sequence
from functools import cached_property

from coterie.config.settings import MOST_SEED, key
from coterie.datasets.catalogue import Split
from coterie.datasets.rows import QuestionRow
from coterie.environments.encyclopedia.entries import Encyclopedia, make_encyclopedia
from coterie.environments.encyclopedia.expert import PROMPT, expert_trace
from coterie.environments.encyclopedia.questions import Question, generate
from coterie.environments.gold import secret_answers
from coterie.environments.workflow.environment import Workflow, WorkflowSettings
from coterie.environments.workflow.gold_passages import has_passages
from coterie.environments.workflow.trace import Trace
from coterie.trajectories.task import Task


class EncyclopediaSettings(WorkflowSettings):
    """Settings of the micro-world."""

    world: int = key(0, "Seed of the encyclopedia.", ge=0, le=MOST_SEED)


class EncyclopediaQuestions(Workflow):
    """Questions about invented entries: half compare entities, half are chains."""

    kind = "mhqa"
    settings_type = EncyclopediaSettings
    row_types: tuple[type[QuestionRow], ...] = ()

    def __init__(self, settings: EncyclopediaSettings | None = None) -> None:
        own = settings or EncyclopediaSettings()
        self._configure(own, "encyclopedia")
        self.world = own.world
        self._questions: dict[str, Question] = {}

    @cached_property
    def encyclopedia(self) -> Encyclopedia:
        return make_encyclopedia(self.world)

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        start = sum(after) if split == "train" else 0
        questions = generate(split, start + count, seed, self.encyclopedia)[start:]
        tasks = [question_task(one) for one in questions]
        self._questions |= {task.id: one for task, one in zip(tasks, questions, strict=True)}
        return tasks

    @property
    def terse(self) -> bool:
        return True  # the tiny model knows the format

    def instructions(self) -> str:
        """Return the short prompt that the tiny model knows."""
        return PROMPT

    def trace(self, task: Task) -> Trace:
        return expert_trace(self._questions[task.id])

    def grounded(self, task: Task, results: Sequence[str]) -> bool:
        """Return True if the results contain the entries of all facts."""
        return has_passages(results, [fact.subject for fact in self._questions[task.id].facts])


def question_task(question: Question) -> Task:
    row = QuestionRow(id=question.question_id, question=question.text, answer=question.answer)
    public = {"question": row.question, "type": question.kind}
    return Task(f"encyclopedia-{row.id}", public, secret_answers(row))
