"""Backend programming: an agent asks a user what a Python function should do (ColBench, arXiv 2503.15478, section 4.1).

Answers run only in the sandbox.
"""

import ast
import builtins
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.config.settings import key
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.engines.protocol import EngineError
from coterie.environments.code_blocks import MARKER, code_of, legacy_code_of
from coterie.environments.collaboration import (
    REFERENCE,
    Collaboration,
    CollaborationSettings,
    collaboration_task,
)
from coterie.environments.dialogue import LENGTH_RULE
from coterie.environments.protocol import AGENT, WELL_FORMED, Grade, State
from coterie.environments.qa_metrics import GRADER, grader_secret
from coterie.environments.settings import RowTasks
from coterie.record.tree import ANSWERED, Secret, Task
from coterie.record.turn import Part
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult, Graded, Mode, format_value


def functions(code: str) -> frozenset[str]:
    """Return the names of a module's top-level functions with a non-trivial body; none if it does not parse."""
    try:
        # Warnings about the agent's code, such as invalid escapes, say nothing about the run.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    functions = (
        statement
        for statement in module.body
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(
        function.name for function in functions if not all(map(_is_trivial, function.body))
    )


def _is_trivial(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(statement, ast.Pass) or isinstance(value, ast.Constant)


EXAMPLE = """\
def initials(name):
    words = name.split()
    return "".join(word[0] for word in words)"""


def work(turns: int, marker: str) -> str:
    """Return the system prompt of an agent that asks before it answers, with ``turns`` messages in all."""
    return (
        "You write Python functions. A person asks you for one function, but the request leaves out rules that only "
        "the person knows.\n"
        "Rules:\n"
        "- First ask the person about everything that the request leaves open. Do not guess.\n"
        "- Ask one simple question in each message. The person knows no Python and answers in a sentence or two.\n"
        f"- Number of messages that you can send, your answer included: {turns}. Answer before they are used up.\n"
        f"{LENGTH_RULE}"
        f"- As soon as you know enough, send your answer. {_form(marker)}"
    )


def at_once(marker: str) -> str:
    return (
        "You write Python functions. A person asks you for one function. You cannot ask questions: your first message "
        "is your answer.\n"
        "Rules:\n"
        f"{LENGTH_RULE}"
        f"- {_form(marker)}"
    )


def _form(marker: str) -> str:
    return (
        f"The answer is a message with {marker} on a line of its own, and then one Python block with the complete "
        "function: the first line with the name and the arguments that the person gave, and the whole body. Write "
        "nothing else. If the person wants the first letters of a name, the answer is:\n"
        f"{marker}\n```python\n{EXAMPLE}\n```"
    )


USER_PROMPT = (
    "Play a person who asked an assistant for a Python function. The function must do exactly what this code does. The "
    "person knows what it does, but cannot read or write code:\n\n"
    "{reference}\n\n"
    "Rules:\n"
    "- Answer the last message of the assistant in one or two short sentences, in plain words. Write the sentences "
    "alone.\n"
    "- A reply of more than {max_characters} characters is cut off.\n"
    "- Say only what the code above does. If the code does not tell, say: I do not know.\n"
    "- Do not quote or write code, and do not tell more than the assistant asked.\n\n"
    "The conversation so far:\n{transcript}"
)

TESTS = "tests"
MAX_VALUE = 200
REFUSED = (
    "import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse",
)  # fmt: skip
"""Words for which ColBench's grader scores an answer 0, anywhere in the answer; for ``legacy`` only."""


class CodingSettings(CollaborationSettings):
    """Settings of an agent that writes functions for a user."""

    grading: Mode = key(
        "module",
        "`module` runs code as a module. `legacy` runs it like SWEET-RL's grader, where answers with helpers, "
        "imports at the top or recursion fail, for comparison with published numbers.",
        source="SWEET-RL's code: legacy",
    )
    tolerance: float = key(0.0, "Relative tolerance for equality of floats; 0 is exact.", ge=0)
    strict: bool = key(
        False,
        "Compare the types of results too. Otherwise 1, 1.0 and True are equal, and an iterator equals the list "
        "of its items.",
        source="SWEET-RL's code: Python's ==",
    )


class Coding(Collaboration):
    """Dialogue of an agent and a user about a function. Subclasses define the tasks."""

    name = "coding"
    needs: tuple[type, ...] = (Sandbox,)
    settings_type = CodingSettings
    settings: CodingSettings
    metric = "success"
    reward = "fraction"
    user_prompt = USER_PROMPT
    fenced = True

    def __init__(self, settings: CodingSettings) -> None:
        super().__init__(settings)
        self.mode: Mode = settings.grading
        # By task. Many dialogues of a run are about the same task.
        self._expected: dict[str, Sequence[CallResult]] = {}

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(work(self.max_turns, MARKER), source="task"),)

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(at_once(MARKER), source="task"),)

    async def grade(self, state: State, session: Any) -> Grade:
        """Score 1 if all hidden calls return the same as with the reference."""
        task, code = state.task, self.code(state.answer or "")
        sandbox: Sandbox = session[Sandbox]
        calls, expected = hidden_calls(task), await self.expected(task, sandbox)
        common: dict[str, float | int | str] = {
            "turns": sum(turn.speaker.name == AGENT for turn in state.turns),
            WELL_FORMED: float(
                state.end == ANSWERED and self.well_formed(task, state.answer or "")
            ),
        }
        if not code or (
            self.mode == "legacy" and any(word in (state.answer or "") for word in REFUSED)
        ):
            reason = "a word that this grader refuses" if code else "no code"
            return Grade(0.0, {**common, "fraction": 0.0, "why": reason})
        settings = self.settings
        result = await sandbox.grade(
            code,
            calls,
            expected,
            mode=self.mode,
            tolerance=settings.tolerance,
            strict=settings.strict,
        )
        metrics = {**common, "fraction": result.fraction, "results": _results(result)}
        return Grade(float(result.success), metrics)

    def well_formed(self, task: Task, answer: str) -> bool:
        """Return True if the answer has a complete function with a name of the reference, in a closed block."""
        names = functions(task.secrets[REFERENCE].reveal(GRADER))
        # An opening and a closing fence.
        closed = not self.fenced or answer.count("```") >= 2
        return closed and not names.isdisjoint(functions(self.code(answer)))

    async def expected(self, task: Task, sandbox: Sandbox) -> Sequence[CallResult]:
        """Return the (cached) results of the reference for the hidden calls."""
        if task.id not in self._expected:
            reference = task.secrets[REFERENCE].reveal(GRADER)
            self._expected[task.id] = await sandbox.run_reference(
                reference, hidden_calls(task), mode=self.mode
            )
        # Without the reference's value, no answer to the task could be judged.
        for result in self._expected[task.id]:
            if result.wire is None:
                raise EngineError(
                    f"task {task.id} can't be graded: its reference fails on "
                    f"`{result.call}`: {result.reason}"
                )
        return self._expected[task.id]

    def code(self, answer: str) -> str:
        """Return the code of an answer, in ``legacy`` mode as ColBench's grader extracts it."""
        return legacy_code_of(answer) if self.mode == "legacy" else code_of(answer)

    def same(self, first: str, second: str) -> bool:
        return self.code(first) == self.code(second)


def coding_task(
    id_: str,
    opening: str,
    reference: str,
    calls: Sequence[str],
    secrets: Mapping[str, Secret] | None = None,
) -> Task:
    tests = grader_secret(TESTS, json.dumps(list(calls)))
    return collaboration_task(id_, opening, reference, {**tests, **(secrets or {})})


def hidden_calls(task: Task) -> list[str]:
    calls: list[str] = json.loads(task.secrets[TESTS].reveal(GRADER))
    return calls


def _results(graded: Graded) -> str:
    """Return the test results as a JSON list of outcome, returned value and reason of failure."""
    results = []
    for test in graded.tests:
        gave = format_value(test.result.wire, MAX_VALUE) if test.result.wire else None
        results.append({"passed": test.passed, "gave": gave, "why": test.reason[:MAX_VALUE]})
    return json.dumps(results)


class BackendProgramming(RowTasks, Coding):
    """Backend Programming, with a model as the user. Rows without a reference or tests are left out."""

    row_types: tuple[type[QuestionRow], ...] = (CodeRow,)

    def __init__(self, settings: CodingSettings, rows: Rows) -> None:
        super().__init__(settings)
        self.name = rows.name
        self.rows = rows

    def task_of(self, row: QuestionRow) -> Task:
        """Return the task of a row, which may come from outside the data set."""
        assert isinstance(row, CodeRow), "the data set has code rows"
        # The released grader evaluates the whole comparison of a test.
        calls = row.tests if self.mode == "legacy" else [compared(call) for call in row.tests]
        return coding_task(f"{self.name}-{row.id}", row.question, row.answer, calls)


def compared(call: str) -> str:
    """Return the calls that a test compares with expected values, such as ``f(2)`` for ``f(2) == 4``.

    The reference program gives the expected values, so an ``__eq__`` of the answer never decides. Other tests, such as
    ``f(2)``, stay unchanged.
    """
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return call
    sides = _compared_calls(tree)
    if not sides:
        return call
    # Several calls are evaluated as one tuple.
    return ast.unparse(sides[0] if len(sides) == 1 else ast.Tuple(sides, ast.Load()))


def _compared_calls(node: ast.expr) -> list[ast.expr]:
    """Return the calls in comparisons by ``==``, possibly joined by ``and``; [] for other expressions."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        parts = [_compared_calls(value) for value in node.values]
        return [side for part in parts for side in part] if all(parts) else []
    if not isinstance(node, ast.Compare) or any(type(op) is not ast.Eq for op in node.ops):
        return []
    return [side for side in (node.left, *node.comparators) if _calls_more_than_builtins(side)]


def _calls_more_than_builtins(side: ast.expr) -> bool:
    # A call of a builtin alone, such as ``len([1])``, does not use the answer's function.
    calls = [node.func for node in ast.walk(side) if isinstance(node, ast.Call)]
    return any(
        not isinstance(callee, ast.Name) or not hasattr(builtins, callee.id) for callee in calls
    )
