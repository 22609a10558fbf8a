r"""Problems of mathematics for an agent that plans, runs programs and answers: AFM's code agent on mathematics.

    coterie evaluate code_maths dataset=aime24 dataset.source=aime24.jsonl policy=RUN max_tokens=4096

Answers are compared as mathematics, with or without ``\boxed{...}``.
"""

import asyncio
from typing import Any

from coterie.datasets.load import Rows
from coterie.datasets.problems import MathRow, boxed_answer
from coterie.datasets.rows import QuestionRow
from coterie.environments.gold import gold_answers, secret_answers
from coterie.environments.mathematics import same_mathematics
from coterie.environments.protocol import WELL_FORMED, Grade, State
from coterie.environments.workflow.agent import AgentSettings, WorkflowAgent
from coterie.environments.workflow.answers import final_answer
from coterie.environments.workflow.prompts_code import SHORT, instructions
from coterie.errors import UserError
from coterie.trajectories.task import Task


class CodeMaths(WorkflowAgent):
    """One agent that computes by programs."""

    kind = "code"
    graphs = False
    settings_type = AgentSettings
    row_types: tuple[type[QuestionRow], ...] = (MathRow,)
    metric = "solved"

    def __init__(self, settings: AgentSettings, rows: Rows) -> None:
        self.settings, self.rows, self.name = settings, rows, rows.name

    def task_of(self, row: QuestionRow) -> Task:
        """A problem and its secret answers. Raises ``UserError`` for one without."""
        if row.flaw:
            raise UserError(
                f"the problem {row.id} of {self.name}: {row.flaw}",
                "leave it out: no answer can be graded on it",
            )
        return Task(f"{self.name}-{row.id}", {"question": row.question}, secret_answers(row))

    def instructions(self) -> str:
        return SHORT["mathematics"] if self.terse else instructions("mathematics")

    def read(self, text: str) -> str | None:
        """What stands in its tag, or in the box in it; where the tag may be missing, also in any box."""
        found = final_answer(text)
        if found is None and self.settings.lenient:
            found = boxed_answer(text) or final_answer(text, lenient=True)
        return None if found is None else boxed_answer(found) or found

    async def grade(self, state: State, live: Any) -> Grade:
        """1 for an answer that is the same mathematics as a right one. Comparing may take seconds."""
        right = await asyncio.to_thread(self.score, state.task, state.answer)
        return Grade(right, {WELL_FORMED: float(state.answer is not None)})

    def score(self, task: Task, answer: str | None) -> float:
        """1 for a right answer, else 0."""
        return float(
            answer is not None
            and any(same_mathematics(gold, answer) for gold in gold_answers(task))
        )

    def well_formed(self, answer: str) -> bool:
        return True

    def same(self, first: str, second: str) -> bool:
        return same_mathematics(first, second)

    def similarity(self, answer: str, other: str) -> float:
        """1 for the same answer, else 0."""
        return float(self.same(answer, other))
