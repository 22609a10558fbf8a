r"""Mathematics problems for an agent that plans, runs programs and answers: AFM's code agent on mathematics.

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
    """Mathematics problems for one agent that runs programs."""

    kind = "code"
    graphs = False
    settings_type = AgentSettings
    row_types: tuple[type[QuestionRow], ...] = (MathRow,)
    metric = "solved"

    def __init__(self, settings: AgentSettings, rows: Rows) -> None:
        self.settings, self.rows, self.name = settings, rows, rows.name

    def task_of(self, row: QuestionRow) -> Task:
        """Return a problem and its secret answers. Raise ``UserError`` if they are missing."""
        if row.flaw:
            raise UserError(
                f"the problem {row.id} of {self.name}: {row.flaw}",
                "remove it, because answers can't be graded on it",
            )
        return Task(f"{self.name}-{row.id}", {"question": row.question}, secret_answers(row))

    def instructions(self) -> str:
        return SHORT["mathematics"] if self.terse else instructions("mathematics")

    def read(self, text: str) -> str | None:
        """Return the content of the answer tag, or of a box in it; if lenient, also of any box."""
        answer = final_answer(text)
        if answer is None and self.settings.lenient:
            answer = boxed_answer(text) or final_answer(text, lenient=True)
        return None if answer is None else boxed_answer(answer) or answer

    async def grade(self, state: State, live: Any) -> Grade:
        """Score 1 if the answer equals a right answer as mathematics. The comparison may take seconds."""
        right = await asyncio.to_thread(self.score, state.task, state.answer)
        return Grade(right, {WELL_FORMED: float(state.answer is not None)})

    def score(self, task: Task, answer: str | None) -> float:
        return float(
            answer is not None
            and any(same_mathematics(gold, answer) for gold in gold_answers(task))
        )

    def well_formed(self, answer: str) -> bool:
        return True

    def same(self, first: str, second: str) -> bool:
        return same_mathematics(first, second)

    def similarity(self, answer: str, other: str) -> float:
        return float(self.same(answer, other))
