r"""Problems of contests and of mathematics for an agent that plans and runs programs.

    coterie evaluate code dataset=livecodebench dataset.source=test.jsonl policy=RUN max_tokens=4096
    coterie evaluate code_maths dataset=aime24 dataset.source=aime24.jsonl policy=RUN max_tokens=4096

In ``code`` the answer is one fenced Python program. It is right if it passes all tests of its row in the sandbox.
Neither the agent nor its programs can read the tests. In ``code_maths`` answers are compared as mathematics, with or
without ``\boxed{...}``.
"""

import asyncio
import json
from typing import Any

from coterie.datasets.code_rows import STARTER, ContestLimits, ContestRow, ContestTest
from coterie.datasets.problems import MathRow, boxed_answer
from coterie.datasets.rows import QuestionRow
from coterie.environments.code_blocks import code_of, python_blocks
from coterie.environments.grading import same_mathematics
from coterie.environments.protocol import WELL_FORMED, Grade, State
from coterie.environments.qa_metrics import GRADER, gold_answers, grader_secret, question_of
from coterie.environments.workflow.agent import AgentSettings, WorkflowAgent
from coterie.environments.workflow.plan_graph import final_answer
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.tools.contest import judge_program, verdict_metrics
from coterie.tools.sandbox.pool import Sandbox

_FENCE = "```"
_TAGS = f"""\
Write your work in these tags, and nothing outside of them:
- <plan>...</plan>: once, at the beginning, your tasks. Two lines for each: its id and what is to be done, then the \
tasks that it has to wait for.
T1: first step
- Dependencies: none
T2: next step
- Dependencies: T1
- <think>...</think>: your thoughts, before each program and before your answer.
- <code>...</code>: a whole Python program between fences. What it is to read from its standard input goes into a \
second block. It can use the standard library and numpy, and nothing else, and prints what you want to see.
<code>
{_FENCE}py
print(int(input()) + 1)
{_FENCE}
{_FENCE}sh
41
{_FENCE}
</code>
- <observation>...</observation>: what the program printed. You are shown it after each program; never write one \
yourself.
- <reflection>...</reflection>: after each observation, what it says of your work, and what you will change.
"""
_CONTEST = f"""\
You solve a problem of a programming contest with a Python program. Try your program out before you answer.
{_TAGS}\
- <answer>...</answer>: at the end, one whole Python program between fences, and nothing else:
<answer>
{_FENCE}py
your program
{_FENCE}
</answer>
It is run on hidden tests. Unless the problem names a function to be written, it reads standard input and prints the \
result."""
_MATHEMATICS = (
    f"You solve a problem of mathematics. Let Python programs compute and check for you.\n{_TAGS}"
    r"- <answer>\boxed{...}</answer>: at the end, your answer in LaTeX."
)


TESTS, CHECKER, SOLUTION = "tests", "checker", "solution"
NO_PROGRAM = "no program between fences"
SEVERAL = "more than one program"


class CodeSettings(AgentSettings):
    """Settings of prompts and of the tests' limits."""

    limits: ContestLimits = ContestLimits()


class Code(WorkflowAgent):
    """Programming contests for one agent."""

    kind = "code"
    settings_type = CodeSettings
    row_types: tuple[type[QuestionRow], ...] = (ContestRow,)
    needs: tuple[type, ...] = (Sandbox,)
    metric = "solved"
    short = "Plan, run programs, and answer with the program that solves the problem."
    full = _CONTEST
    settings: CodeSettings

    def task_of(self, row: QuestionRow) -> Task:
        """Return a problem with its tests as a secret for graders. Raise ``UserError`` if it has no tests."""
        assert isinstance(row, ContestRow), "row types are checked before"
        if row.flaw:
            raise UserError(
                f"the problem {row.id} of {self.name} {row.flaw}",
                "remove it, because programs can't be graded on it",
            )
        public = {"question": row.question, "starter": row.starter, "function": row.function}
        # The data has only some of the official tests, and the score is only on these.
        if row.sealed:
            public["tests"] = "public ones only"
        if row.prelude:
            public["prelude"] = row.prelude
        # A test that is itself a program may be broken, so a right program is tried on it, too.
        extra = {CHECKER: row.checker, SOLUTION: row.answer if row.tests[0].kind == "check" else ""}
        secrets = grader_secret(TESTS, json.dumps([test.model_dump() for test in row.tests]))
        for name, text in extra.items():
            secrets |= grader_secret(name, text) if text else {}
        return Task(f"{self.name}-{row.id}", public, secrets)

    def request(self, task: Task) -> str:
        starter = str(task.public.get("starter", ""))  # questions of a traces file have none
        beginning = f"\n\n{STARTER.format(starter=starter)}" if starter.strip() else ""
        return f"{super().request(task)}{beginning}"

    def answer(self, text: str) -> str | None:
        """Return the content of the answer tag, or, if lenient, the last Python block."""
        answer = final_answer(text)
        if answer is None and self.settings.lenient and (blocks := python_blocks(text)):
            return f"```py\n{blocks[-1]}\n```"
        return answer

    def program(self, answer: str) -> tuple[str, str]:
        """Return the program of an answer, or "" and the reason.

        ``lenient`` accepts the last of several programs, like AFM's code, and text without fences.
        """
        blocks = python_blocks(answer)
        if len(blocks) == 1 or (blocks and self.settings.lenient):
            return blocks[-1], ""
        if blocks:
            return "", SEVERAL
        return (code_of(answer), "") if self.settings.lenient else ("", NO_PROGRAM)

    async def grade(self, state: State, session: Any) -> Grade:
        """Score 1 if all tests pass. ``fraction`` is their share, ``outcome`` the result of the first failed test."""
        task = state.task
        tests = tests_of(task)
        if not tests:
            return Grade(None, {"outcome": "no tests"})
        program, reason = self.program(state.answer or "")
        common: dict[str, float | int | str] = {
            WELL_FORMED: float(bool(program)),
            "tests": len(tests),
            "public_tests_only": float("tests" in task.public),
        }
        if not program:
            outcome = "no answer" if state.answer is None else reason
            return Grade(0.0, {**common, "fraction": 0.0, "outcome": outcome})
        function, limits = str(task.public["function"]), self.settings.limits
        checker, answer = (
            task.secrets[name].reveal(GRADER) if name in task.secrets else ""
            for name in (CHECKER, SOLUTION)
        )
        options = {
            "prelude": str(task.public.get("prelude", "")),
            "checker": checker,
            "answer": answer,
        }
        verdicts = await judge_program(
            session[Sandbox], program, tests, function, limits, **options
        )
        return Grade(
            float(all(verdict.passed for verdict in verdicts)),
            {**common, **verdict_metrics(verdicts)},
        )

    def same(self, first: str, second: str) -> bool:
        return self.program(first) == self.program(second)


def tests_of(task: Task) -> tuple[ContestTest, ...]:
    listed = json.loads(task.secrets[TESTS].reveal(GRADER))
    return tuple(ContestTest.model_validate(test) for test in listed)


class CodeMaths(WorkflowAgent):
    """Mathematics problems for one agent that runs programs."""

    kind = "code"
    settings_type = AgentSettings
    row_types: tuple[type[QuestionRow], ...] = (MathRow,)
    metric = "solved"
    short = "Plan, run programs, and answer the problem."
    full = _MATHEMATICS

    def task_of(self, row: QuestionRow) -> Task:
        """Return a problem and its secret answers. Raise ``UserError`` if they are missing."""
        if row.flaw:
            raise UserError(
                f"the problem {row.id} of {self.name}: {row.flaw}",
                "remove it, because answers can't be graded on it",
            )
        return super().task_of(row)

    def answer(self, text: str) -> str | None:
        """Return the content of the answer tag, or of a box in it; if lenient, also of any box."""
        answer = final_answer(text)
        if answer is None and self.settings.lenient:
            answer = boxed_answer(text) or final_answer(text, lenient=True)
        return None if answer is None else boxed_answer(answer) or answer

    async def grade(self, state: State, session: Any) -> Grade:
        """Score 1 if the answer equals a right answer as mathematics. The comparison may take seconds."""
        right = await asyncio.to_thread(self.score, state.task, state.answer)
        return Grade(right, {WELL_FORMED: float(state.answer is not None)})

    def score(self, task: Task, answer: str | None) -> float:
        golds, question = gold_answers(task), question_of(task)
        return float(
            answer is not None and any(same_mathematics(gold, answer, question) for gold in golds)
        )

    def same(self, first: str, second: str) -> bool:
        return same_mathematics(first, second)
