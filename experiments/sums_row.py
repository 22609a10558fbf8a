"""Sums in a row: the first messages decide nothing, and two traps come later.

A world of ``tiny-acts``, which writes each cell in one of three styles, so runs differ in a style before they differ in
what matters. The first problems are no traps, and the base solves them. The others are traps, and the base falls into
more than half of them. After a wrong answer the agent may answer again, but only once in a task. Each message sees the
current problem only, as in ``sums``.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from coterie import Message, Task
from coterie.environments import Grade, Pure, State, Transition
from coterie.environments.acting import SOLVED, observation
from coterie.environments.plans.python_maths import (
    USED_UP,
    Attempts,
    Sums,
    generate,
    problem_text,
)
from coterie.environments.qa_metrics import GRADER, grader_secret

NEUTRAL, TRAPS = 2, 2
"""Problems that are no traps, and then problems that are."""
COUNT = NEUTRAL + TRAPS
_SUM = re.compile(r"[1-9]\d*(?: [*+-] [1-9]\d*)*")


class SumsRow(Pure, Sums):
    """Tasks of four problems. The model's cells are sums, so that no sandbox is needed."""

    name, needs = "sums-row", ()

    def tasks(
        self, split: Any, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        start = sum(previous_counts) if split == "train" else 0
        numbers = range(start, start + count)
        plain = generate(split, seed, 0.0)[: NEUTRAL * numbers.stop]
        traps = generate(split, seed, 1.0)[: TRAPS * numbers.stop]
        tasks = []
        for n in numbers:
            problems = [
                *plain[NEUTRAL * n : NEUTRAL * (n + 1)],
                *traps[TRAPS * n : TRAPS * (n + 1)],
            ]
            answers = grader_secret("answers", json.dumps([str(p.answer) for p in problems]))
            questions = [*map(problem_text, problems)]
            tasks.append(Task(f"{split}-{seed}-{n}", {"questions": questions}, answers))
        return tasks

    def question(self, state: State, number: int) -> str:
        return str(state.task.public["questions"][number])  # type: ignore[index]

    async def begin(self, task: Task, session: Any) -> Transition:
        return Transition(Attempts(), observation(self.question(State(task, 0), 0)))

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the system prompt, and the messages from the current problem on."""
        system, *messages = super().observe(state, actor)
        question = self.question(state, sum(attempts_of(state).right))
        return (system, *messages[[turn.text for turn in state.turns].index(question) :])

    async def do(self, state: State, action: str, session: Any) -> Transition:
        match = _SUM.search(action)
        # The pattern allows numbers and operators only.
        return Transition(state.data, observation(str(eval(match[0])) if match else "Nothing."))

    async def on_answer(self, state: State, answer: str) -> Transition:
        attempts = attempts_of(state)
        solved = sum(attempts.right)
        gold = json.loads(state.task.secrets["answers"].reveal(GRADER))[solved]
        is_right = self.subject.same(gold, answer)
        data = Attempts((*attempts.answers, answer), (*attempts.right, is_right))
        if sum(data.right) == COUNT:
            return Transition(data, (), answer, SOLVED)
        if data.right.count(False) > 1:
            return Transition(data, (), answer, USED_UP)
        reply = self.question(state, solved + 1) if is_right else self.wrong
        return Transition(data, observation(reply), answer)

    async def grade(self, state: State, session: Any) -> Grade:
        """Score 1 if all problems are solved."""
        return Grade(float(state.end == SOLVED), {"right": sum(attempts_of(state).right) / COUNT})


def attempts_of(state: State) -> Attempts:
    assert isinstance(state.data, Attempts)
    return state.data
