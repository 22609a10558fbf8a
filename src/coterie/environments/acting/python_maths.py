"""Problems of mathematics for an agent that runs Python: DensePolicy's first two environments.

Actions are cells of a Python session. Answers are compared as debates compare them. A setting says what the agent
hears of an answer: with ``oracle`` it is told whether the answer is right, as DensePolicy's agents are; with
``neutral`` it is asked to check, whether it is right or not; with ``none`` its first answer is final.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.problems import MathRow, boxed_answer
from coterie.datasets.rows import QuestionRow
from coterie.environments.acting.environment import SHOTS, SOLVED, Acting, ActingSettings, saying
from coterie.environments.acting.syntax import written_action, written_answer
from coterie.environments.gold import gold_answers, secret_answers
from coterie.environments.mathematics import same_mathematics
from coterie.environments.numbers import same_number
from coterie.environments.protocol import Grade, Shared, State, Transition
from coterie.environments.rows import draw
from coterie.environments.talk import ANSWERED
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.session import PythonSession
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending
from coterie.trajectories.turn import Message, Part, Role


@dataclass(frozen=True, slots=True)
class Shot:
    """A problem, one cell, and an answer."""

    problem: str
    plan: str
    """The thought before the cell."""
    cell: str
    seen: str
    conclusion: str
    """The thought before the answer."""
    answer: str

    def messages(self) -> Iterator[Message]:
        said: tuple[tuple[Role, str], ...] = (
            ("user", problem_text(self.problem)),
            ("assistant", written_action(self.cell, self.plan)),
            ("user", self.seen),
            ("assistant", written_answer(self.answer, self.conclusion)),
        )
        for role, text in said:
            yield Message(role, (Part(text, source=SHOTS),))


def problem_text(question: str) -> str:
    return f"Problem: {question}"


NUMBERS = (
    Shot(
        "A baker makes 6 trays of 24 rolls every morning. She keeps 15 rolls for her family and sells the others for 2 "
        "dollars each. How many dollars does she earn in a week?",
        "First the rolls that are sold in a day, then the money of 7 days.",
        "sold = 6 * 24 - 15\nprint(sold * 2 * 7)",
        "1806",
        "She sells 129 rolls a day, which makes 258 dollars, and 1806 in a week.",
        "1806",
    ),
    Shot(
        "Nora reads 18 pages on Monday and twice as many on Tuesday. Her book has 150 pages. She wants to read as many "
        "pages on each of the next 4 days, and be done then. How many pages is that a day?",
        "The pages that are left, dealt to 4 days.",
        "monday = 18\ntuesday = 2 * monday\n(150 - monday - tuesday) / 4",
        "24.0",
        "96 pages are left, 24 for each day.",
        "24",
    ),
)
MATHEMATICS = (
    Shot(
        "How many positive integers less than 200 are divisible by neither 3 nor 5?",
        "There are few enough to count them.",
        "sum(1 for n in range(1, 200) if n % 3 and n % 5)",
        "107",
        "By inclusion and exclusion 199 - 66 - 39 + 13 = 107, which agrees.",
        "107",
    ),
    Shot(
        "A bag holds 5 red and 4 blue marbles. Two are drawn at random, and none is put back. What is the probability "
        "that both are blue?",
        "The first is blue in 4 of 9 cases, then the second in 3 of 8. I calculate with fractions, which are exact.",
        "from fractions import Fraction\nprint(Fraction(4, 9) * Fraction(3, 8))",
        "1/6",
        "The probability is one sixth.",
        r"\frac{1}{6}",
    ),
)


USED_UP = Ending("answers")
Feedback = Literal["oracle", "neutral", "none"]
SubjectName = Literal["numbers", "mathematics"]
CELLS = (
    "What you do is Python: a cell of one session, so variables stay. You are shown what the cell prints and the value "
    "of its last expression. There are the standard library and numpy, and nothing else."
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What answers are."""

    form: str
    same: Callable[[str, str], bool]
    """Whether an answer (second) is the same as the right one, or as the one before it (first)."""
    shots: tuple[Shot, ...]


SUBJECTS: Mapping[SubjectName, Subject] = {
    "numbers": Subject("a number without a unit", same_number, NUMBERS),
    "mathematics": Subject(r"in LaTeX, such as \frac{3}{7}", same_mathematics, MATHEMATICS),
}
_TOLD: Mapping[Feedback, str] = {
    "oracle": "You are told whether your answer is right. If it is not, find the mistake and answer again.",
    "neutral": "When you have answered you are asked to check. Your answer counts when you give it twice in a row.",
    "none": "Your first answer counts.",
}


class AnsweringSettings(ActingSettings):
    """An agent that acts, and whose answers are checked."""

    answers: int = key(10, "Most answers of the agent.", source="DensePolicy's code: 10", ge=1)
    feedback: Feedback = key(
        "oracle",
        "What the agent hears of an answer: whether it is right (`oracle`), that it should check it (`neutral`; it "
        "ends when the same answer is given twice in a row), or nothing, since the first is final (`none`).",
        source="DensePolicy's code: oracle",
    )


class PythonMathsSettings(AnsweringSettings):
    """Problems of a data set."""

    steps: int = key(8, "Most messages of the agent.", source="DensePolicy's code: 8 (MATH)", ge=1)
    shots: int = key(
        0,
        "Example dialogues that are shown before the problem.",
        source="DensePolicy's code: 8 (GSM8K), 1 (MATH)",
        ge=0,
        le=min(len(one.shots) for one in SUBJECTS.values()),
    )
    subject: SubjectName | None = key(
        None,
        "What answers are: `numbers`, or `mathematics` in LaTeX. The default is `mathematics` for the data set `math`, "
        "`numbers` for others.",
    )


@dataclass(frozen=True, slots=True)
class Played:
    """What the agent has done so far."""

    answers: tuple[str, ...] = ()
    right: tuple[bool, ...] = ()
    cells: int = 0
    failed_cells: int = 0
    """Those that did not run to their end."""

    def within(self, most: int) -> float:
        """Whether the last of the first so many answers is right: 0 or 1."""
        return float(self.right[:most][-1:] == (True,))


class PythonMaths(Acting):
    """One agent with a Python session."""

    name = "python_maths"
    metric = "solved"
    needs: tuple[type, ...] = (Sandbox,)
    settings_type: type[AnsweringSettings] = PythonMathsSettings
    row_types: tuple[type[QuestionRow], ...] = (QuestionRow,)
    wrong = "Your answer is not right. Find the mistake and answer again."
    """What the agent hears of a wrong answer, where it is told."""
    check = "Check your answer. Then give it again, or a better one."
    """What it hears of any answer, where it is not told."""

    def __init__(self, settings: PythonMathsSettings, rows: Rows) -> None:
        self.rows = rows
        default: SubjectName = "mathematics" if issubclass(rows.row, MathRow) else "numbers"
        self.shown_shots = settings.shots
        self._answering(settings, SUBJECTS[settings.subject or default])

    def _answering(self, settings: AnsweringSettings, subject: Subject) -> None:
        super().__init__(settings.steps)
        self.most_answers = settings.answers
        self.feedback: Feedback = settings.feedback
        self.subject = subject

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split of the data set, as many as it has at most."""
        found = draw(self.rows, split, count, seed, drawn)
        return [as_task(row, f"{self.rows.name}-{row.id}") for row in found]

    # -- what is said -------------------------------------------------------------------------

    def told(self, task: Task) -> str:
        limits = f"You have at most {self.limits['turns']} messages."
        answers = f"Your answer is {self.subject.form}. {_TOLD[self.feedback]}"
        how, cells = ("with Python", [CELLS]) if self.form.acts else ("by thinking", [])
        return "\n".join([f"Solve a problem {how}.", self.form.taught, *cells, answers, limits])

    def shots(self, task: Task) -> Sequence[Message]:
        """The first dialogues of the subject."""
        chosen = self.subject.shots[: self.shown_shots]
        return [message for shot in chosen for message in shot.messages()]

    def problem(self, task: Task) -> str:
        return problem_text(str(task.public["question"]))

    async def begin(self, task: Task, live: Any) -> Transition:
        return Transition(Played(), saying(self.problem(task)))

    # -- what is done -------------------------------------------------------------------------

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """A Python session; nothing where there is no sandbox, so that a first prompt can be looked at."""
        return shared[Sandbox].session(seed) if Sandbox in shared else nullcontext()

    async def do(self, state: State, action: str, live: PythonSession) -> Transition:
        found = await live.run(action)
        played = _played(state)
        failed = played.failed_cells + bool(found.failed)
        data = replace(played, cells=played.cells + 1, failed_cells=failed)
        return Transition(data, saying(found.text))

    async def answered(self, state: State, answer: str) -> Transition:
        """The end, or what the agent hears of its answer. Comparing may take seconds."""
        given, before = boxed_answer(answer) or answer, _played(state)
        golds = gold_answers(state.task)
        right = await asyncio.to_thread(lambda: any(self.subject.same(one, given) for one in golds))
        data = replace(before, answers=(*before.answers, given), right=(*before.right, right))
        end = await self._end(data)
        seen = () if end else saying(self.wrong if self.feedback == "oracle" else self.check)
        return Transition(data, seen, given, end)

    async def _end(self, played: Played) -> Ending | None:
        if self.feedback == "none":
            return ANSWERED
        if self.feedback == "oracle" and played.right[-1]:
            return SOLVED
        if self.feedback == "neutral" and len(played.answers) > 1:
            last_two = played.answers[-2:]
            if await asyncio.to_thread(self.subject.same, *last_two):
                return ANSWERED
        return USED_UP if len(played.answers) >= self.most_answers else None

    async def grade(self, state: State, live: Any) -> Grade:
        """Whether the last answer is right. ``within_t`` is whether the last of the first t answers is (success at t
        attempts); ``corrected`` the same of all answers, of dialogues whose first answer is wrong."""
        played = _played(state)
        metrics: dict[str, float | int | str] = {
            "answers": len(played.answers),
            "cells": played.cells,
            "failed_cells": played.failed_cells,
            **{f"within_{most}": played.within(most) for most in self._marks()},
        }
        if played.right and not played.right[0]:
            metrics["corrected"] = played.within(self.most_answers)
        return Grade(float(played.right[-1:] == (True,)), metrics)

    def _marks(self) -> list[int]:
        """Numbers of answers at which success is told: 1, 2, 4, ... and the most."""
        powers = (2**n for n in range(self.most_answers.bit_length()))
        return list(dict.fromkeys([*powers, self.most_answers]))


def as_task(row: QuestionRow, id_: str) -> Task:
    """The record's form of a problem."""
    return Task(id_, {"question": row.question}, secret_answers(row))


def _played(state: State) -> Played:
    assert isinstance(state.data, Played)
    return state.data
