"""Problems of programming contests for an agent that plans, runs programs and answers with one: AFM's code agent.

    coterie evaluate code dataset=livecodebench dataset.source=test.jsonl policy=RUN max_tokens=4096

The answer is one Python program between fences. It is right if it passes all tests of its row, in the sandbox; what the
tests expect no agent and no program can read.
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
"""The secret that holds the tests: a JSON list."""
NO_PROGRAM = "no program between fences"
SEVERAL = "more than one program"


class CodeSettings(AgentSettings):
    """How programs are asked for and judged."""

    limits: ContestLimits = ContestLimits()


class Code(WorkflowAgent):
    """One agent that writes a program."""

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
        """A problem, and its tests, which only a grader may read. Raises ``UserError`` for one without tests."""
        assert isinstance(row, ContestRow), "that was checked"
        if row.flaw:
            raise UserError(
                f"the problem {row.id} of {self.name} {row.flaw}",
                "leave it out: no program can be graded on it",
            )
        public = {"question": row.question, "starter": row.starter, "function": row.function}
        if row.sealed:
            public["tests"] = "public ones only"
        tests = json.dumps([test.model_dump() for test in row.tests])
        secret = Secret(tests, name=TESTS, readers=frozenset({GRADER}))
        return Task(f"{self.name}-{row.id}", public, {TESTS: secret})

    def instructions(self) -> str:
        return SHORT["program"] if self.terse else instructions("program")

    def asked(self, task: Task) -> str:
        """The problem, and how a solution begins where that is given."""
        starter = str(task.public.get("starter", ""))  # the questions of a file of traces have none
        given = f"\n\n{STARTER.format(starter=starter)}" if starter.strip() else ""
        return f"{super().asked(task)}{given}"

    # -- answers --------------------------------------------------------------------------------

    def read(self, text: str) -> str | None:
        """What stands in its tag; where that is missing and need not be there, the last block of Python."""
        found = final_answer(text)
        if found is None and self.settings.lenient and (blocks := python_blocks(text)):
            return f"```py\n{blocks[-1]}\n```"
        return found

    def program(self, answer: str) -> tuple[str, str]:
        """The program of an answer; or an empty text, and why it gives none.

        ``lenient`` takes the last one of several, as AFM's code does, and text without fences.
        """
        blocks = python_blocks(answer)
        if len(blocks) == 1 or (blocks and self.settings.lenient):
            return blocks[-1], ""
        if blocks:
            return "", SEVERAL
        return (code_of(answer), "") if self.settings.lenient else ("", NO_PROGRAM)

    async def grade(self, state: State, live: Any) -> Grade:
        """1 if all tests pass. ``fraction`` is the share that do, ``outcome`` what the first other one came to.

        Raises ``EngineError`` where the sandbox failed: no score then, which is not 0.
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
        found = await judge_program(live[Sandbox], program, tests, function, limits)
        return Grade(float(all(one.passed for one in found)), {**common, **measures(found)})

    # -- votes ----------------------------------------------------------------------------------

    def same(self, first: str, second: str) -> bool:
        """Whether two answers have the same program, to the letter."""
        return self.program(first) == self.program(second)

    def similarity(self, answer: str, other: str) -> float:
        """1 for the same program, else 0."""
        return float(self.same(answer, other))


def tests_of(task: Task) -> tuple[ContestTest, ...]:
    listed = json.loads(task.secrets[TESTS].reveal(GRADER))
    return tuple(ContestTest.model_validate(one) for one in listed)


def measures(found: Sequence[Verdict]) -> dict[str, float | str]:
    """What the verdicts of a program's tests come to: the share that passed, and the first that did not."""
    passed = sum(one.passed for one in found)
    first = next(((at, one) for at, one in enumerate(found, 1) if not one.passed), None)
    told: dict[str, float | str] = {
        "fraction": passed / len(found),
        "slow": float(any(one.outcome == "too slow" for one in found)),
        "crashed": float(any(one.outcome == "error" for one in found)),
        "outcome": "passed" if first is None else first[1].outcome,
    }
    if first is not None:
        told["why"] = f"test {first[0]} of {len(found)}: {first[1].why or first[1].outcome}"
    return told
