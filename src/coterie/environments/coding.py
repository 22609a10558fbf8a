"""Backend programming: an agent asks a user about the behavior of a Python function, then writes it.

ColBench's first environment (SWEET-RL, arXiv 2503.15478, section 4.1) with rules in our own words. The user makes a
vague request, knows the right function and can't write code. The agent has ten turns and writes a marker before its
answer. An answer succeeds if it agrees with the reference on all hidden calls. Answers run only in the sandbox.
"""

import ast
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.engines.protocol import EngineError
from coterie.environments.code_text import MARKER, answer_in, code_of, legacy_code_of, visible
from coterie.environments.gold import GRADER
from coterie.environments.protocol import (
    WELL_FORMED,
    ActorKind,
    Grade,
    Observation,
    State,
    Transition,
)
from coterie.environments.pure import Pure
from coterie.environments.rules import LENGTH
from coterie.environments.settings import CodingSettings
from coterie.environments.talk import ANSWERED
from coterie.environments.user_simulator import (
    PERSON,
    REFERENCE,
    TranscriptLine,
    UserSimulator,
    leaks,
)
from coterie.tools.sandbox.inside.plain import Wire
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult, Graded, Mode, format_value
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import TURNS, Ending
from coterie.trajectories.turn import Message, Part, Role, Speaker, Turn


def functions(code: str) -> frozenset[str]:
    """Return the names of a module's top-level functions with a non-trivial body; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        one.name
        for one in module.body
        if isinstance(one, kinds) and not all(map(_is_trivial, one.body))
    )


def _is_trivial(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


EXAMPLE = """\
def initials(name):
    words = name.split()
    return "".join(word[0] for word in words)"""
"""Example answer in the prompts."""


def work(turns: int, marker: str) -> str:
    """Return the system prompt of an agent that asks before it answers, with ``turns`` messages in all."""
    return (
        "You write Python functions. A person asks you for one function, but the request leaves out rules that only "
        "the person knows.\n"
        "Rules:\n"
        "- First ask the person about everything that the request leaves open. Do not guess.\n"
        "- Ask one simple question in each message. The person knows no Python and answers in a sentence or two.\n"
        f"- Number of messages that you can send, your answer included: {turns}. Answer before they are used up.\n"
        f"{LENGTH}"
        f"- As soon as you know enough, send your answer. {_form(marker)}"
    )


def at_once(marker: str) -> str:
    return (
        "You write Python functions. A person asks you for one function. You cannot ask questions: your first message "
        "is your answer.\n"
        "Rules:\n"
        f"{LENGTH}"
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
"""Name of the secret with the hidden calls, a JSON list."""
SHOWN_REFERENCE = "\nReference:\n"
"""Text before the reference at the end of a critic's system prompt."""
FENCE = "```"
MAX_VALUE = 200
"""Maximum characters of a recorded result, and of a reason for failure."""
REFUSED = (
    "import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse",
)  # fmt: skip
"""Words for which ColBench's grader scores an answer 0, anywhere in the answer; for ``legacy`` only."""


class Coding(Pure, ABC):
    """Dialogue of an agent and a user about a function. Subclasses define the tasks."""

    name = "coding"
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent", PERSON: "person"})
    needs: tuple[type, ...] = (Sandbox,)
    settings_type = CodingSettings
    max_turns: int
    metric = "success"
    fenced = True
    """True if the prompt requests a fenced block."""
    script: UserSimulator | None = None
    """Default user simulator."""

    def __init__(self, settings: CodingSettings) -> None:
        self.settings = settings
        self.mode: Mode = settings.grading
        self.tolerance = settings.tolerance
        self.strict = settings.strict
        self.max_turns = settings.turns
        self._expected: dict[str, Sequence[CallResult]] = {}

    @abstractmethod
    def tasks(
        self, split: Split, count: int, seed: int, after: Sequence[int] = ()
    ) -> list[Task]: ...

    @property
    def limits(self) -> Mapping[str, int]:
        return {f"turns:{AGENT}": self.max_turns}

    # -- messages -----------------------------------------------------------------------------

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
        """Return the first request of the user."""
        return str(task.public["question"])

    async def begin(self, task: Task, live: Any) -> Transition:
        request = Part(self.request(task), source="task")
        return Transition(seen=(Observation(Speaker("person", PERSON), (request,)),))

    def acting(self, state: State) -> tuple[str, ...]:

        return (AGENT,) if state.turns[-1].speaker.name == PERSON else (PERSON,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the visible dialogue, for the agent after its system prompt."""
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

    # -- grading ------------------------------------------------------------------------------

    async def grade(self, state: State, live: Any) -> Grade:
        """Score 1 if all hidden calls return the same as with the reference.

        Raises:
            EngineError: the reference fails on a hidden call.
        """
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
        result = await sandbox.grade_wires(
            *(code, calls, expected),
            mode=self.mode,
            tolerance=self.tolerance,
            strict=self.strict,
        )
        metrics = {**common, "fraction": result.fraction, "results": _results(result)}
        success = result.success and not (leaked and self.settings.on_leak == "fail")
        return Grade(float(success), metrics)

    def well_formed(self, task: Task, answer: str) -> bool:
        """Return True if the answer has a complete function with a name of the reference, in a closed block."""
        names = functions(task.secrets[REFERENCE].reveal(GRADER))
        closed = not self.fenced or answer.count(FENCE) >= 2
        return closed and not names.isdisjoint(functions(self.code(answer)))

    async def expected(self, task: Task, sandbox: Sandbox) -> list[Wire]:
        """Return the (cached) results of the reference for the hidden calls.

        Raises:
            EngineError: the reference fails on a call.
        """
        if task.id not in self._expected:
            reference = task.secrets[REFERENCE].reveal(GRADER)
            self._expected[task.id] = await sandbox.run_reference(
                reference, hidden_calls(task), mode=self.mode
            )
        wires = []
        for result in self._expected[task.id]:
            if result.wire is None:
                raise EngineError(
                    f"task {task.id} can't be graded: its reference fails on "
                    f"`{result.call}`: {result.reason}"
                )
            wires.append(result.wire)
        return wires

    def code(self, answer: str) -> str:
        """Return the code of an answer, in ``legacy`` mode as ColBench's grader extracts it."""
        return legacy_code_of(answer) if self.mode == "legacy" else code_of(answer)

    def answer_to(self, task: Task, text: str) -> str | None:
        return self.answer(text)

    def same(self, first: str, second: str) -> bool:
        return self.code(first) == self.code(second)

    def similarity(self, answer: str, other: str) -> float:
        return float(self.same(answer, other))


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
    return [
        (
            turn.speaker.name,
            environment.visible(turn.text) if turn.speaker.name == AGENT else turn.text,
        )
        for turn in turns
    ]


def hidden_calls(task: Task) -> list[str]:
    """Return the hidden test calls of a task, for graders."""
    calls: list[str] = json.loads(task.secrets[TESTS].reveal(GRADER))
    return calls


def _results(graded: Graded) -> str:
    """Return the test results as a JSON list of outcome, returned value and reason of failure."""
    return json.dumps(
        [
            {
                "passed": test.passed,
                "gave": format_value(test.result.wire, MAX_VALUE) if test.result.wire else None,
                "why": test.reason[:MAX_VALUE],
            }
            for test in graded.tests
        ]
    )
