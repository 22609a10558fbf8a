"""Programming contests for an agent that plans, runs programs and answers with a program: AFM's code agent.

    coterie evaluate code dataset=livecodebench dataset.source=test.jsonl policy=RUN max_tokens=4096

The answer is one fenced Python program. It is right if it passes all tests of its row in the sandbox. Neither the agent
nor its programs can read the tests.
"""

import json
from collections.abc import Sequence
from typing import Any

from coterie.datasets.code_rows import ContestRow, ContestTest
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.code_text import code_of, python_blocks
from coterie.environments.gold import GRADER
from coterie.environments.protocol import WELL_FORMED, Grade, State
from coterie.environments.workflow.agent import AgentSettings, WorkflowAgent
from coterie.environments.workflow.answers import final_answer
from coterie.environments.workflow.prompts_code import SHORT, STARTER, instructions
from coterie.errors import UserError
from coterie.tools.contest import ContestLimits, Verdict, judge_program
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.task import Secret, Task

TESTS = "tests"
"""Name of the secret with the tests, a JSON list."""
NO_PROGRAM = "no program between fences"
SEVERAL = "more than one program"


class CodeSettings(AgentSettings):
    """Settings of prompts and of the tests' limits."""

    limits: ContestLimits = ContestLimits()


class Code(WorkflowAgent):
    """Programming contests for one agent."""

    kind = "code"
    graphs = False
    settings_type = CodeSettings
    row_types: tuple[type[QuestionRow], ...] = (ContestRow,)
    needs: tuple[type, ...] = (Sandbox,)
    metric = "solved"
    settings: CodeSettings

    def __init__(self, settings: CodeSettings, rows: Rows) -> None:
        self.settings, self.rows, self.name = settings, rows, rows.name

    # -- tasks ----------------------------------------------------------------------------------

    def task_of(self, row: QuestionRow) -> Task:
        """Return a problem with its tests as a secret for graders. Raise ``UserError`` if it has no tests."""
        assert isinstance(row, ContestRow), "row types are checked before"
        if row.flaw:
            raise UserError(
                f"the problem {row.id} of {self.name} {row.flaw}",
                "remove it, because programs can't be graded on it",
            )
        public = {"question": row.question, "starter": row.starter, "function": row.function}
        if row.sealed:
            public["tests"] = "public ones only"
        tests = json.dumps([test.model_dump() for test in row.tests])
        secret = Secret(tests, name=TESTS, readers=frozenset({GRADER}))
        return Task(f"{self.name}-{row.id}", public, {TESTS: secret})

    def instructions(self) -> str:
        return SHORT["program"] if self.terse else instructions("program")

    def request(self, task: Task) -> str:
        """Return the problem, with the beginning of the solution if it is given."""
        starter = str(task.public.get("starter", ""))  # questions of a traces file have none
        beginning = f"\n\n{STARTER.format(starter=starter)}" if starter.strip() else ""
        return f"{super().request(task)}{beginning}"

    # -- answers --------------------------------------------------------------------------------

    def read(self, text: str) -> str | None:
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

    async def grade(self, state: State, live: Any) -> Grade:
        """Score 1 if all tests pass. ``fraction`` is their share, ``outcome`` the result of the first failed test.

        Raises:
            EngineError: the sandbox failed.
        """
        task = state.task
        tests = tests_of(task)
        if not tests:
            return Grade(None, {"outcome": "no tests"})
        program, why = self.program(state.answer or "")
        common: dict[str, float | int | str] = {
            WELL_FORMED: float(bool(program)),
            "tests": len(tests),
            "public_tests_only": float("tests" in task.public),
        }
        if not program:
            outcome = "no answer" if state.answer is None else why
            return Grade(0.0, {**common, "fraction": 0.0, "outcome": outcome})
        function, limits = str(task.public["function"]), self.settings.limits
        verdicts = await judge_program(live[Sandbox], program, tests, function, limits)
        return Grade(float(all(one.passed for one in verdicts)), {**common, **measures(verdicts)})

    # -- votes ----------------------------------------------------------------------------------

    def same(self, first: str, second: str) -> bool:
        """Return True if two answers have exactly the same program."""
        return self.program(first) == self.program(second)

    def similarity(self, answer: str, other: str) -> float:
        return float(self.same(answer, other))


def tests_of(task: Task) -> tuple[ContestTest, ...]:
    listed = json.loads(task.secrets[TESTS].reveal(GRADER))
    return tuple(ContestTest.model_validate(one) for one in listed)


def measures(verdicts: Sequence[Verdict]) -> dict[str, float | str]:
    """Return the metrics of a program's tests: the share of passed tests, and the first failure."""
    passed = sum(one.passed for one in verdicts)
    first = next(((at, one) for at, one in enumerate(verdicts, 1) if not one.passed), None)
    metrics: dict[str, float | str] = {
        "fraction": passed / len(verdicts),
        "slow": float(any(one.outcome == "too slow" for one in verdicts)),
        "crashed": float(any(one.outcome == "error" for one in verdicts)),
        "outcome": "passed" if first is None else first[1].outcome,
    }
    if first is not None:
        metrics["why"] = f"test {first[0]} of {len(verdicts)}: {first[1].why or first[1].outcome}"
    return metrics
