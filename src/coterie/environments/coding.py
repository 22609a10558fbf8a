"""Backend programming: an agent asks a user what a Python function should do (ColBench, arXiv 2503.15478, section 4.1).

Marks divide a message: one before the answer, one after thoughts, and fences. In an answer or a fence, marks inside
strings, docstrings and comments of the code are ignored. Answers run only in the sandbox.
"""

import ast
import builtins
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.engines.protocol import EngineError
from coterie.environments.answers import GRADER
from coterie.environments.protocol import (
    WELL_FORMED,
    ActorKind,
    Answers,
    Grade,
    Observation,
    Pure,
    State,
    Transition,
)
from coterie.environments.settings import EnvironmentSettings, RowTasks
from coterie.environments.talk import ANSWERED, LENGTH_RULE
from coterie.environments.user_simulator import (
    PERSON,
    REFERENCE,
    TranscriptLine,
    UserSimulator,
    leaks,
)
from coterie.record.tree import TURNS, Ending, Secret, Task
from coterie.record.turn import Message, Part, Role, Speaker, Turn
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult, Graded, Mode, format_value

MARKER = "I WANT TO ANSWER:"
"""Marker before the agent's answer, the same as in ColBench, so that its trajectories can be read."""
OUTPUT = "OUTPUT:"
"""Marker after thoughts, which other actors do not see and the history drops."""
_PYTHON = ("python", "python3", "py", "py3")

_LEXER = r"""
    (?P<literal>
        \"""(?:\\.|{stop}[^\\])*?\""" | '''(?:\\.|{stop}[^\\])*?'''
        | (?<!\w)[rbfuRBFU]{{0,2}}"(?:\\.|{stop}[^"\\\n])*" | (?<!\w)[rbfuRBFU]{{0,2}}'(?:\\.|{stop}[^'\\\n])*'
        | \#(?:{stop}[^\n])*
    )
    | (?P<marker>{marker}) | (?P<output>{output}) | (?P<opening>```[ \t]*(?P<language>\w*)[ \t]*\n) | (?P<ticks>```)
"""


def _lexer(stop: str) -> re.Pattern[str]:
    marker, output = (re.escape(mark) for mark in (MARKER, OUTPUT))
    text = _LEXER.format(marker=marker, output=output, stop=stop)
    return re.compile(text, re.VERBOSE | re.DOTALL)


_CODE = _lexer("")
_PROSE = _lexer(f"(?!{re.escape(MARKER)})")
"""In prose the marker always counts, since models put it in quotes or headings."""


class _Mark(NamedTuple):
    kind: Literal["marker", "output", "opening", "closing", "ticks"]
    start: int
    end: int
    language: str = ""


def _marks(text: str, *, code: bool) -> Iterator[_Mark]:
    fenced, at = False, 0
    while match := (_CODE if code or fenced else _PROSE).search(text, at):
        kind, at = match.lastgroup, match.end()
        if match["marker"]:
            code = True
            yield _Mark("marker", match.start(), at)
        elif match["output"]:
            yield _Mark("output", match.start(), at)
        elif fenced and not match["literal"]:
            fenced, at = False, match.start() + 3
            yield _Mark("closing", match.start(), at)
        elif match["opening"]:
            fenced = True
            yield _Mark("opening", match.start(), at, match["language"].lower())
        elif kind == "ticks":
            yield _Mark("ticks", match.start(), at)


def visible(text: str) -> str:
    """Return the text after ``OUTPUT:`` (up to a second one). An answer marker before it is kept."""
    marks = list(_marks(text, code=False))
    outputs = [mark for mark in marks if mark.kind == "output"]
    if not outputs:
        return text
    end = outputs[1].start if len(outputs) > 1 else len(text)
    result = text[outputs[0].end : end].strip()
    markers = [mark.start for mark in marks if mark.kind == "marker"]
    has_earlier = any(start < outputs[0].start for start in markers)
    has_later = any(outputs[0].end <= start < end for start in markers)
    return f"{MARKER} {result}" if has_earlier and not has_later else result


def answer_in(text: str) -> str | None:
    """Return the visible text after the answer marker, up to a second one; ``None`` without a marker."""
    visible_text = visible(text)
    markers = [mark for mark in _marks(visible_text, code=False) if mark.kind == "marker"]
    if not markers:
        return None
    end = markers[1].start if len(markers) > 1 else len(visible_text)
    return visible_text[markers[0].end : end].strip()


def code_of(answer: str) -> str:
    """Return the code of an answer: its first Python fence, else its first fence, else all of it."""
    marks = list(_marks(answer, code=True))
    fences = [mark for mark in marks if mark.kind == "opening"]
    if not fences:
        inline = any(mark.kind == "ticks" for mark in marks)
        return legacy_code_of(answer) if inline else answer.strip()
    fence = next((one for one in fences if one.language in _PYTHON), fences[0])
    ends = [mark.start for mark in marks if mark.kind == "closing" and mark.start >= fence.end]
    return answer[fence.end : ends[0] if ends else len(answer)].strip()


def python_blocks(text: str) -> list[str]:
    """Return the closed fenced blocks of Python or of no named language, in order."""
    marks = list(_marks(text, code=False))
    return [
        text[one.end : other.start].strip()
        for one, other in pairwise(mark for mark in marks if mark.kind in ("opening", "closing"))
        if (one.kind, other.kind) == ("opening", "closing") and one.language in ("", *_PYTHON)
    ]


def legacy_code_of(answer: str) -> str:
    """Return the code as ColBench's grader extracts it: another fence (``py``, ``Python``) becomes part of the code."""
    _, fence, after = answer.partition("```python")
    if not fence:
        _, fence, after = answer.partition("```")
    return (after.partition("```")[0] if fence else answer).strip()


def functions(code: str) -> frozenset[str]:
    """Return the names of a module's top-level functions with a non-trivial body; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    functions = (
        one for one in module.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(one.name for one in functions if not all(map(_is_trivial, one.body)))


def _is_trivial(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()):
            return True
    return False


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


AGENT = "agent"
CRITIC = "critic"
"""Role that rates the agent's turns in training and may read the reference."""
TESTS = "tests"
SHOWN_REFERENCE = "\nReference:\n"
MAX_VALUE = 200
REFUSED = (
    "import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse",
)  # fmt: skip
"""Words for which ColBench's grader scores an answer 0, anywhere in the answer; for ``legacy`` only."""


class CodingSettings(EnvironmentSettings):
    """Settings of an agent that writes functions for a user."""

    turns: int = key(10, "Maximum turns of the agent.", source="ColBench: 10", ge=1)
    grading: Mode = key(
        "module",
        "`module` runs code as a module. `legacy` runs it like SWEET-RL's grader, where answers with helpers, "
        "imports at the top or recursion fail, for comparison with published numbers.",
        source="SWEET-RL's code: legacy",
    )
    on_leak: Literal["keep", "fail", "drop"] = key(
        "keep",
        "Handling of dialogues in which the user quotes the reference: `keep` counts them (`leaks`), `fail` scores "
        "them 0, `drop` gives them no score, so that they are not trained on.",
    )
    tolerance: float = key(0.0, "Relative tolerance for equality of floats; 0 is exact.", ge=0)
    strict: bool = key(
        False,
        "Compare the types of results too. Otherwise 1, 1.0 and True are equal, and an iterator equals the list "
        "of its items.",
        source="SWEET-RL's code: Python's ==",
    )


class Coding(Answers, Pure):
    """Dialogue of an agent and a user about a function. Subclasses define the tasks."""

    name = "coding"
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent", PERSON: "person"})
    needs: tuple[type, ...] = (Sandbox,)
    settings_type = CodingSettings
    max_turns: int
    metric = "success"
    fenced = True
    script: UserSimulator | None = None

    def __init__(self, settings: CodingSettings) -> None:
        self.settings = settings
        self.mode: Mode = settings.grading
        self.max_turns = settings.turns
        self._expected: dict[str, Sequence[CallResult]] = {}

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        raise NotImplementedError

    @property
    def limits(self) -> Mapping[str, int]:
        return {f"turns:{AGENT}": self.max_turns}

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(work(self.max_turns, MARKER), source="task"),)

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the prompt of an agent that must answer at once: the benchmark's single-turn baseline."""
        return (Part(at_once(MARKER), source="task"),)

    def visible(self, text: str) -> str:
        return visible(text)

    def answer(self, text: str) -> str | None:
        return answer_in(text)

    def request(self, task: Task) -> str:
        return str(task.public["question"])

    async def begin(self, task: Task, live: Any) -> Transition:
        request = Part(self.request(task), source="task")
        return Transition(seen=(Observation(Speaker("person", PERSON), (request,)),))

    def acting(self, state: State) -> tuple[str, ...]:
        return (AGENT,) if state.turns[-1].speaker.name == PERSON else (PERSON,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        messages = tuple(self._message(turn, actor) for turn in state.turns)
        if actor == PERSON:
            return messages
        return (Message("system", self.system_parts(state.task, actor)), *messages)

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """End at an answer, or at the agent's last turn, which then counts as the answer."""
        turn = turns[-1]
        if turn.speaker.name == PERSON:
            return Transition()
        answer = self.answer(turn.text)
        end: Ending | None = None if answer is None else ANSWERED
        if end is None and not state.left[f"turns:{AGENT}"]:
            answer, end = self.visible(turn.text).strip(), TURNS
        return Transition(answer=answer, end=end)

    def _message(self, turn: Turn, actor: str) -> Message:
        """Return a turn as a message. Thoughts of the agent are removed, also in its own history."""
        role: Role = "assistant" if turn.speaker.name == actor else "user"
        if turn.speaker.name == AGENT and (seen := self.visible(turn.text)) != turn.text:
            return Message(role, (Part(seen, source=f"turn:{turn.id}"),))
        return Message(role, turn=turn.id)

    async def grade(self, state: State, live: Any) -> Grade:
        """Score 1 if all hidden calls return the same as with the reference."""
        task, code = state.task, self.code(state.answer or "")
        sandbox: Sandbox = live[Sandbox]
        reference, calls = task.secrets[REFERENCE].reveal(GRADER), hidden_calls(task)
        expected = await self.expected(task, sandbox)
        replies = [turn.text for turn in state.turns[1:] if turn.speaker.name == PERSON]
        common: dict[str, float | int | str] = {
            "turns": sum(turn.speaker.name == AGENT for turn in state.turns),
            "leaks": (leaked := await leaks(replies, reference)),
            WELL_FORMED: float(
                state.end == ANSWERED and self.well_formed(task, state.answer or "")
            ),
        }
        if leaked and self.settings.on_leak == "drop":
            return Grade(None, common)
        if not code or (
            self.mode == "legacy" and any(word in (state.answer or "") for word in REFUSED)
        ):
            why = "a word that this grader refuses" if code else "no code"
            return Grade(0.0, {**common, "fraction": 0.0, "why": why})
        own = self.settings
        result = await sandbox.grade(
            code, calls, expected, mode=self.mode, tolerance=own.tolerance, strict=own.strict
        )
        metrics = {**common, "fraction": result.fraction, "results": _results(result)}
        success = result.success and not (leaked and self.settings.on_leak == "fail")
        return Grade(float(success), metrics)

    def well_formed(self, task: Task, answer: str) -> bool:
        """Return True if the answer has a complete function with a name of the reference, in a closed block."""
        names = functions(task.secrets[REFERENCE].reveal(GRADER))
        closed = not self.fenced or answer.count("```") >= 2
        return closed and not names.isdisjoint(functions(self.code(answer)))

    async def expected(self, task: Task, sandbox: Sandbox) -> Sequence[CallResult]:
        """Return the (cached) results of the reference for the hidden calls."""
        if task.id not in self._expected:
            reference = task.secrets[REFERENCE].reveal(GRADER)
            self._expected[task.id] = await sandbox.run_reference(
                reference, hidden_calls(task), mode=self.mode
            )
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
    more: Mapping[str, Secret] | None = None,
) -> Task:
    """Return a task of a coding environment. The user, the critic and the grader may read the reference."""
    secrets = {
        REFERENCE: Secret(reference, name=REFERENCE, readers=frozenset({PERSON, CRITIC, GRADER})),
        TESTS: Secret(json.dumps(list(calls)), name=TESTS, readers=frozenset({GRADER})),
    }
    return Task(id_, {"question": opening}, {**secrets, **(more or {})})


def with_reference(task: Task) -> Callable[[tuple[Message, ...]], tuple[Message, ...]]:
    """Return the recontext rule of the critic, which appends the reference to the system prompt."""
    secret = (Part(SHOWN_REFERENCE, source="task"), task.secrets[REFERENCE].part(CRITIC))

    def edit(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        system, *rest = messages
        return (replace(system, parts=(*system.parts, *secret)), *rest)

    return edit


def transcript(environment: Coding, turns: Sequence[Turn]) -> list[TranscriptLine]:
    names = [turn.speaker.name for turn in turns]
    texts = [
        environment.visible(turn.text) if turn.speaker.name == AGENT else turn.text
        for turn in turns
    ]
    return list(zip(names, texts, strict=True))


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
    calls = [node.func for node in ast.walk(side) if isinstance(node, ast.Call)]
    return any(not isinstance(one, ast.Name) or not hasattr(builtins, one.id) for one in calls)
