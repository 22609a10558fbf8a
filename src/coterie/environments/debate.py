"""Debate on real problems: one agent solves, the other looks for mistakes.

Optima's second setting (arXiv 2410.08115, section 4.1). Only the solver gives answers; the talk is
over when it gives the same answer again after the critic has spoken.
"""

from coterie.datasets.rows import QuestionRow
from coterie.environments.dialogue import GRADER, Split, gold_answer
from coterie.environments.extraction import boxed_number, number
from coterie.environments.rows import Rows
from coterie.environments.solo import solo_prompt
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.turn import Part

SOLVER, CRITIC = "Alice", "Bob"


class Debate:
    """A solver and a critic on GSM8K (see ``environments.dialogue``)."""

    agents: tuple[str, ...] = (SOLVER, CRITIC)
    max_turns = 10
    metric = "exact match"
    formats: tuple[str, ...] = ()
    format_agents: tuple[str, ...] = (SOLVER,)

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self._rows = Rows(name, source)

    def tasks(self, split: Split, count: int, seed: int, iteration: int = 0) -> list[Task]:
        """Tasks of one split of the data set, as many as it has at most."""
        rows = self._rows.draw(split, count, seed, iteration)
        return [self._task(row) for row in rows]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The agent's role, and the problem."""
        role = _SOLVER if agent == SOLVER else _CRITIC
        return (
            Part(role, audience=frozenset({agent}), source="task"),
            Part(f"\nProblem: {task.public['question']}", source="task"),
        )

    def answer(self, text: str) -> str | None:
        r"""The number in the last ``\boxed{...}``."""
        return boxed_number(text)

    def score(self, task: Task, answer: str | None) -> float:
        """Whether the two numbers are equal, 0 or 1."""
        return 0.0 if answer is None else self.similarity(answer, gold_answer(task))

    def similarity(self, answer: str, other: str) -> float:
        """Whether the two numbers are equal, 0 or 1; what states no number equals its like only."""
        return float((number(answer) or answer) == (number(other) or other))

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The problem."""
        return solo_prompt(str(task.public["question"]), _ENDING)

    def _task(self, row: QuestionRow) -> Task:
        answer = Secret(row.answer, name="answer", readers=frozenset({GRADER}))
        return Task(f"{self.name}-{row.id}", {"question": row.question}, {"answer": answer})


_ENDING = "End each message with \\boxed{number}: your answer, a number with no unit."
_SOLVER = (
    f"You are {SOLVER} and good at arithmetic. {CRITIC} reads your work and may find mistakes in "
    "it; mend them.\n"
    "- Go step by step.\n"
    f"- {_ENDING}"
)
_CRITIC = (
    f"You are {CRITIC}. {SOLVER} solves a problem; you read the work and look for mistakes.\n"
    "- Go through it step by step; name each mistake and say how to mend it.\n"
    "- Never state the answer yourself.\n"
    "- Tokens are dear: as few words as can be understood. If all is right, say only that."
)
