"""Mathematics problems for an agent that runs Python: DensePolicy's first two environments, and a micro-world.

Actions are cells of a Python session. Answers are compared as in debates. The setting ``feedback`` selects the reply to
an answer: ``oracle`` tells whether it is right, as in DensePolicy; ``neutral`` always requests a check; with ``none``
the first answer is final. With ``functions`` the session has the functions of a file, for tasks such as M3ToolEval's
(Wang et al. 2024, "Executable Code Actions Elicit Better LLM Agents").
"""

import ast
import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from coterie.config.folders import expanded
from coterie.config.settings import PathText, key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.problems import MathRow, boxed_answer
from coterie.datasets.rows import QuestionRow
from coterie.environments.acting import (
    SHOTS,
    SOLVED,
    Acting,
    ActingSettings,
    observation,
    write_action,
    write_answer,
)
from coterie.environments.grading import same_mathematics, same_number, same_value
from coterie.environments.protocol import EnvironmentFault, Grade, Shared, State, Transition
from coterie.environments.qa_metrics import doubling, gold_answers, secret_answers
from coterie.environments.settings import MicroSplit, distinct, draw, series, split_random
from coterie.errors import UserError
from coterie.record.tree import ANSWERED, Ending, Task
from coterie.record.turn import Message, Part, Role, digest
from coterie.tools.sandbox.pool import PythonSession, Sandbox


def read_shots(subject: str) -> list[dict[str, str]]:
    """Read example dialogues of a subject: a problem, a thought, a cell, its output, a thought and an answer."""
    lines = (files("coterie") / "assets" / "shots.jsonl").read_text("utf-8").splitlines()
    return [shot for shot in map(json.loads, lines) if shot["subject"] == subject]


def _messages(shot: Mapping[str, str]) -> list[Message]:
    dialogue: tuple[tuple[Role, str], ...] = (
        ("user", f"Problem: {shot['problem']}"),
        ("assistant", write_action(shot["cell"], shot["plan"])),
        ("user", shot["seen"]),
        ("assistant", write_answer(shot["answer"], shot["conclusion"])),
    )
    return [Message(role, (Part(text, source=SHOTS),)) for role, text in dialogue]


MOST_SHOTS = 2

USED_UP = Ending("answers")
Feedback = Literal["oracle", "neutral", "none"]
SubjectName = Literal["numbers", "mathematics", "values"]
CELLS = (
    "What you do is Python: a cell of one session, so variables stay. You are shown what the cell prints and the value "
    "of its last expression. There are the standard library and numpy, and nothing else."
)


class Subject(NamedTuple):
    """Format and comparison of answers."""

    form: str
    same: Callable[[str, str], bool]
    """Comparison of a reference or an earlier answer (first) with an answer (second)."""


SUBJECTS: Mapping[SubjectName, Subject] = {
    "numbers": Subject("a number without a unit", same_number),
    "mathematics": Subject(r"in LaTeX, such as \frac{3}{7}", same_mathematics),
    "values": Subject("a value as Python writes it, without other words", same_value),
}
_FEEDBACK_RULES: Mapping[Feedback, str] = {
    "oracle": "You are told whether your answer is right. If it is not, find the mistake and answer again.",
    "neutral": "When you have answered you are asked to check. Your answer counts when you give it twice in a row.",
    "none": "Your first answer counts.",
}


class AnsweringSettings(ActingSettings):
    """Settings of an acting agent whose answers are checked."""

    answers: int = key(10, "Maximum answers of the agent.", source="DensePolicy's code: 10", ge=1)
    feedback: Feedback = key(
        "oracle",
        "Reply to an answer: right or wrong (`oracle`), or a request to check it (`neutral`: the same answer twice in "
        "a row is final). With `none` the first answer is final.",
        source="DensePolicy's code: oracle",
    )


class PythonMathsSettings(AnsweringSettings):
    """Settings of mathematics problems from a data set."""

    steps: int = key(
        8, "Maximum messages of the agent.", source="DensePolicy's code: 8 (MATH)", ge=1
    )
    shots: int = key(
        0,
        "Number of example dialogues before the problem.",
        source="DensePolicy's code: 8 (GSM8K), 1 (MATH)",
        ge=0,
        le=MOST_SHOTS,
    )
    subject: SubjectName | None = key(
        None,
        "Type of answers: `numbers`, `mathematics` in LaTeX, or `values` of Python (text, numbers, lists). The default "
        "is `mathematics` for the data set `math`, `values` with `functions`, and `numbers` for others.",
    )
    functions: PathText = key("", "A file of Python functions with docstrings that cells may call.")


@dataclass(frozen=True, slots=True)
class Attempts:
    """Answers and cells of the agent so far."""

    answers: tuple[str, ...] = ()
    right: tuple[bool, ...] = ()
    cells: int = 0
    failed_cells: int = 0

    def within(self, most: int) -> float:
        """Return 1 if the last of the first ``most`` answers is right, else 0."""
        return float(self.right[:most][-1:] == (True,))


class PythonMaths(Acting):
    """Mathematics problems for one agent with a Python session."""

    name = "python_maths"
    _shots: Sequence[Message] = ()
    metric = "solved"
    needs: tuple[type, ...] = (Sandbox,)
    settings_type: type[AnsweringSettings] = PythonMathsSettings
    row_types: tuple[type[QuestionRow], ...] = (QuestionRow,)
    wrong = "Your answer is not right. Find the mistake and answer again."
    """Reply to a wrong answer with ``feedback=oracle``."""
    check = "Check your answer. Then give it again, or a better one."
    """Reply to any answer with ``feedback=neutral``."""
    source = ""
    """First cell of each session."""

    def __init__(self, settings: PythonMathsSettings, rows: Rows) -> None:
        self.rows = rows
        default: SubjectName = "mathematics" if issubclass(rows.row, MathRow) else "numbers"
        subject = settings.subject or ("values" if settings.functions else default)
        if settings.functions:
            self.source = _read_functions(settings.functions)
            self.version = f"{self.version} {digest(self.source)[:12]}"
        chosen = read_shots(subject)[: settings.shots]
        self._shots = [message for shot in chosen for message in _messages(shot)]
        self._answering(settings, SUBJECTS[subject])

    def _answering(self, settings: AnsweringSettings, subject: Subject) -> None:
        super().__init__(settings.steps)
        self.most_answers = settings.answers
        self.feedback: Feedback = settings.feedback
        self.subject = subject

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        rows = draw(self.rows, split, count, seed, previous_counts)
        return [as_task(row, f"{self.rows.name}-{row.id}") for row in rows]

    # -- messages -----------------------------------------------------------------------------

    def system_prompt(self, task: Task) -> str:
        limits = f"You have at most {self.steps} messages."
        answers = f"Your answer is {self.subject.form}. {_FEEDBACK_RULES[self.feedback]}"
        functions = ["Functions:", *signatures(self.source)] if self.source else []
        rules = [CELLS, *functions] if self.form.acts else []
        how = "with Python" if self.form.acts else "by thinking"
        return "\n".join(
            [f"Solve a problem {how}.", self.form.instructions, *rules, answers, limits]
        )

    def shots(self, task: Task) -> Sequence[Message]:
        return self._shots

    def problem(self, task: Task) -> str:
        return f"Problem: {task.public['question']}"

    async def begin(self, task: Task, session: Any) -> Transition:
        await self._define(session)
        return Transition(Attempts(), observation(self.problem(task)))

    async def _define(self, live: PythonSession | None) -> None:
        if self.source and live is not None and (cell := await live.run(self.source)).failed:
            raise EnvironmentFault(f"the file of environment.functions failed: {cell.text}")

    # -- steps --------------------------------------------------------------------------------

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """Open a Python session, or nothing if there is no sandbox, because only a first prompt is needed."""
        return shared[Sandbox].session(seed) if Sandbox in shared else nullcontext()

    async def do(self, state: State, action: str, session: PythonSession) -> Transition:
        result = await session.run(action)
        # The sandbox began a new session, which does not have the functions yet.
        if result.lost:
            await self._define(session)
        attempts = _attempts(state)
        failed = attempts.failed_cells + bool(result.failed)
        data = replace(attempts, cells=attempts.cells + 1, failed_cells=failed)
        return Transition(data, observation(result.text))

    async def on_answer(self, state: State, answer: str) -> Transition:
        """Check an answer. Return the end, or the reply. The comparison may take seconds."""
        value, attempts = boxed_answer(answer) or answer, _attempts(state)
        golds = gold_answers(state.task)
        right = await asyncio.to_thread(
            lambda: any(self.subject.same(gold, value) for gold in golds)
        )
        data = replace(attempts, answers=(*attempts.answers, value), right=(*attempts.right, right))
        end = await self._end(data)
        seen = () if end else observation(self.wrong if self.feedback == "oracle" else self.check)
        return Transition(data, seen, value, end)

    async def _end(self, attempts: Attempts) -> Ending | None:
        if self.feedback == "none":
            return ANSWERED
        if self.feedback == "oracle" and attempts.right[-1]:
            return SOLVED
        if self.feedback == "neutral" and len(attempts.answers) > 1:
            last_two = attempts.answers[-2:]
            if await asyncio.to_thread(self.subject.same, *last_two):
                return ANSWERED
        return USED_UP if len(attempts.answers) >= self.most_answers else None

    async def grade(self, state: State, session: Any) -> Grade:
        """Score 1 if the last answer is right.

        ``within_t`` is the success within t answers. ``corrected`` is the success of dialogues with a wrong first
        answer.
        """
        attempts = _attempts(state)
        metrics: dict[str, float | int | str] = {
            "answers": len(attempts.answers),
            "cells": attempts.cells,
            "failed_cells": attempts.failed_cells,
            **{f"within_{mark}": attempts.within(mark) for mark in doubling(self.most_answers)},
        }
        if attempts.right and not attempts.right[0]:
            metrics["corrected"] = attempts.within(self.most_answers)
        return Grade(float(attempts.right[-1:] == (True,)), metrics)


def _read_functions(name: str) -> str:
    try:
        source = expanded(name).read_text("utf-8")
        if not signatures(source):
            raise ValueError("it has no function with a docstring")
    except (OSError, SyntaxError, ValueError) as error:
        problem = f"environment.functions={name}: {error}"
        raise UserError(problem, "give a file of Python functions with docstrings") from error
    return source


def signatures(source: str) -> list[str]:
    """Return the functions of a module that have a docstring, with their arguments and docstring."""
    functions = [
        statement for statement in ast.parse(source).body if isinstance(statement, ast.FunctionDef)
    ]
    texts = [
        (f"{function.name}({ast.unparse(function.args)})", ast.get_docstring(function))
        for function in functions
    ]
    return [f"{call}: {text}" for call, text in texts if text]


def as_task(row: QuestionRow, id_: str) -> Task:
    return Task(id_, {"question": row.question}, secret_answers(row))


def _attempts(state: State) -> Attempts:
    assert isinstance(state.data, Attempts)
    return state.data


# The ``sums`` micro-world: word problems that a tiny model can solve in one short cell.
#
#   Ann has 3 boxes with 14 pens in each. Ann gives 5 pens away. How many pens has Ann?    3 * 14 - 5
#   Ann has 3 boxes with 14 pens in all. Ann gives 5 pens away. How many pens has Ann?     14 - 5
#
# Half of the problems are traps: they state the total, so the habit of multiplying leads to a wrong program. A hash of
# a problem's owner, thing and numbers decides its split.

PROMPT = "Count with Python, then answer."
WRONG = "Wrong."
CHECK = "Check."
OWNERS = (
    "Ann", "Bob", "Cal", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo", "Mia", "Ned", "Pam", "Ray",
)  # fmt: skip
THINGS = ("pens", "cups", "hats", "keys", "maps", "nuts", "pots", "rugs")
BOXES = ("boxes", "bags")
MOST = 99
"""The largest number in a problem, a program or its result."""
# Room for the change of the second sentence, so that no result exceeds the maximum.
NUMBERS = [(n, m) for n in range(2, 8) for m in range(11, 45) if n * m <= MOST - 9]
CHANGES = range(2, 10)
TRAPS = 0.5
OTHERS = 0.3
Sign = Literal["+", "-"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    problem_id: str
    owner: str
    box: str
    thing: str
    boxes: int
    count: int
    trap: bool
    sign: Sign
    change: int
    other: str
    """An irrelevant fact, or ""."""

    def program_of(self, *, times: bool) -> str:
        term = f"{self.boxes} * {self.count}" if times else f"{self.count}"
        return f"{term} {self.sign} {self.change}"

    def answer_of(self, *, times: bool) -> int:
        term = self.boxes * self.count if times else self.count
        return term + self.change if self.sign == "+" else term - self.change

    @property
    def program(self) -> str:
        return self.program_of(times=not self.trap)

    @property
    def answer(self) -> int:
        return self.answer_of(times=not self.trap)


def canonical_key(problem: Problem) -> str:
    return f"{problem.owner}|{problem.thing}|{problem.program}|{problem.boxes}"


def problem_text(problem: Problem) -> str:
    owner, thing = problem.owner, problem.thing
    many = "all" if problem.trap else "each"
    first_fact = (
        f"{owner} has {problem.boxes} {problem.box} with {problem.count} {thing} in {many}."
    )
    then = {"+": f"gets {problem.change} {thing} more", "-": f"gives {problem.change} {thing} away"}
    facts = [first_fact, problem.other, f"{owner} {then[problem.sign]}."]
    return " ".join([*filter(None, facts), f"How many {thing} has {owner}?"])


@series
def generate(split: MicroSplit, seed: int, traps: float = TRAPS) -> Iterator[Problem]:
    """Yield the problems of a split."""
    rng = split_random(split, f"sums/{split}/{seed}/{traps}")
    names = f"{split}-{seed}-"
    return distinct(split, lambda n: _draw(f"{names}{n}", traps, rng), canonical_key, canonical_key)


def _draw(name: str, traps: float, rng: random.Random) -> Problem:
    owner, (thing, another) = rng.choice(OWNERS), rng.sample(THINGS, 2)
    boxes, count = rng.choice(NUMBERS)
    return Problem(
        name,
        owner,
        rng.choice(BOXES),
        thing,
        boxes,
        count,
        trap=rng.random() < traps,
        sign=rng.choice(("+", "-")),
        change=rng.choice(CHANGES),
        other=f"{owner} has {rng.choice(CHANGES)} {another}." if rng.random() < OTHERS else "",
    )


class SumsSettings(AnsweringSettings):
    """Settings of the micro-world."""

    steps: int = key(6, "Maximum messages of the agent.", ge=1)


class Sums(PythonMaths):
    """Word problems for one agent with a Python session."""

    name = "sums"
    settings_type = SumsSettings
    row_types = ()
    wrong = WRONG
    check = CHECK

    def __init__(self, settings: SumsSettings | None = None) -> None:
        self._answering(settings or SumsSettings(), SUBJECTS["numbers"])

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        problems = generate(split, seed).draw(split, count, previous_counts)
        return [sums_task(problem) for _, problem in problems]

    def system_prompt(self, task: Task) -> str:
        return PROMPT

    def problem(self, task: Task) -> str:
        return str(task.public["question"])


def sums_task(problem: Problem) -> Task:
    row = QuestionRow(
        id=problem.problem_id, question=problem_text(problem), answer=str(problem.answer)
    )
    return as_task(row, f"sums-{row.id}")
