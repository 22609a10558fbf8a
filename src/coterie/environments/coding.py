"""Backend programming: an agent asks a person what a Python function is to do, then writes it.

ColBench's first environment (SWEET-RL, arXiv 2503.15478, section 4.1), its rules in our own words: the person's request
is vague, the person knows the right function and cannot write code, the agent has ten turns and says a marker before
its answer, and an answer counts if it does on all hidden calls what the reference does. Answers run in the sandbox
alone.
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
from coterie.tools.sandbox.results import CallResult, Graded, Mode
from coterie.tools.sandbox.shown import format_value
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import TURNS, Ending
from coterie.trajectories.turn import Message, Part, Role, Speaker, Turn


def functions(code: str) -> frozenset[str]:
    """Names of the functions at the top of a module whose bodies do something; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        one.name for one in module.body if isinstance(one, kinds) and not all(map(_idle, one.body))
    )


def _idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


EXAMPLE = """\
def initials(name):
    words = name.split()
    return "".join(word[0] for word in words)"""
"""The function that the prompts show as an example of an answer."""


def work(turns: int, marker: str) -> str:
    """For an agent that asks before it answers, with so many messages in all."""
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
"""The role that judges the agent's turns in training, knowing the reference."""
TESTS = "tests"
"""The secret that holds the hidden calls, a JSON list."""
SHOWN_REFERENCE = "\nReference:\n"
"""What the reference comes after, at the end of a critic's system prompt."""
FENCE = "```"
MAX_VALUE = 200
"""Characters that are kept of what a call gave, and of why it failed."""
REFUSED = (
    "import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse",
)  # fmt: skip
"""Words with which ColBench's own grader gives an answer 0, wherever they stand; for ``legacy`` only."""


class Coding(Pure, ABC):
    """One agent and a person. Subclasses say where tasks come from."""

    name = "coding"
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent", PERSON: "person"})
    needs: tuple[type, ...] = (Sandbox,)
    settings_type = CodingSettings
    max_turns: int
    metric = "success"
    fenced = True
    """Whether the prompt asks for a block between fences."""
    script: UserSimulator | None = None
    """Who plays the person if nobody else is named."""

    def __init__(self, settings: CodingSettings) -> None:
        self.settings = settings
        self.mode: Mode = settings.grading
        self.tolerance = settings.tolerance
        self.strict = settings.strict
        self.max_turns = settings.turns
        self._expected: dict[str, Sequence[CallResult]] = {}

    @abstractmethod
    def tasks(
        self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()
    ) -> list[Task]: ...

    @property
    def limits(self) -> Mapping[str, int]:
        return {f"turns:{AGENT}": self.max_turns}

    # -- what is said -------------------------------------------------------------------------

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(work(self.max_turns, MARKER), source="task"),)

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """That the agent has to answer at once: the benchmark's single-turn baseline."""
        return (Part(at_once(MARKER), source="task"),)

    def visible(self, text: str) -> str:
        return visible(text)

    def answer(self, text: str) -> str | None:
        return answer_in(text)

    def request(self, task: Task) -> str:
        """What the person asks for at the beginning."""
        return str(task.public["question"])

    async def begin(self, task: Task, live: Any) -> Transition:
        """The person's request."""
        request = Part(self.request(task), source="task")
        return Transition(seen=(Observation(Speaker("person", PERSON), (request,)),))

    def acting(self, state: State) -> tuple[str, ...]:
        """The agent and the person in turn."""
        return (AGENT,) if state.turns[-1].speaker.name == PERSON else (PERSON,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """What was said, as both can read it; the agent is told how to work."""
        shown = tuple(self._shown(turn, actor) for turn in state.turns)
        if actor == PERSON:
            return shown
        return (Message("system", self.system_parts(state.task, actor)), *shown)

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """Over with an answer, or with the agent's last turn, which then counts as one."""
        said = taken[-1]
        if said.speaker.name == PERSON:
            return Transition()
        answer = self.answer(said.text)
        end: Ending | None = None if answer is None else ANSWERED
        if end is None and not state.left[f"turns:{AGENT}"]:
            answer, end = self.visible(said.text).strip(), TURNS
        return Transition(answer=answer, end=end)

    def _shown(self, turn: Turn, actor: str) -> Message:
        """A turn; of the agent's what the person can read, which is also what stays in its history."""
        role: Role = "assistant" if turn.speaker.name == actor else "user"
        if turn.speaker.name == AGENT and (seen := self.visible(turn.text)) != turn.text:
            return Message(role, (Part(seen, source=f"turn:{turn.id}"),))
        return Message(role, turn=turn.id)

    # -- what it is worth ---------------------------------------------------------------------

    async def grade(self, state: State, live: Any) -> Grade:
        """Success if all hidden calls give what the reference gives. Raises ``EngineError`` for a task
        whose reference gives nothing that can be compared."""
        task, code = state.task, self.code(state.answer or "")
        sandbox: Sandbox = live[Sandbox]
        reference, calls = task.secrets[REFERENCE].reveal(GRADER), hidden_calls(task)
        expected = await self.expected(task, sandbox)
        replies = [turn.text for turn in state.turns[1:] if turn.speaker.name == PERSON]
        common: dict[str, float | int | str] = {
            "turns": _own(state),
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
        found = await sandbox.grade_wires(
            *(code, calls, expected),
            mode=self.mode,
            tolerance=self.tolerance,
            strict=self.strict,
        )
        metrics = {**common, "fraction": found.fraction, "results": _results(found)}
        earned = found.success and not (leaked and self.settings.on_leak == "fail")
        return Grade(float(earned), metrics)

    def well_formed(self, task: Task, answer: str) -> bool:
        """Whether a marked answer has a whole function of a name that the reference has, in a closed block."""
        wanted = functions(task.secrets[REFERENCE].reveal(GRADER))
        closed = not self.fenced or answer.count(FENCE) >= 2
        return closed and not wanted.isdisjoint(functions(self.code(answer)))

    async def expected(self, task: Task, sandbox: Sandbox) -> list[Wire]:
        """What the reference gives for each hidden call, found once. Raises ``EngineError`` if it fails on one."""
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
        """The code of an answer; in ``legacy`` mode as ColBench's own grader finds it."""
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
    """A task of a coding environment; the reference is the person's, the critic's and the grader's to read."""
    secrets = {
        REFERENCE: Secret(reference, name=REFERENCE, readers=frozenset({PERSON, CRITIC, GRADER})),
        TESTS: Secret(json.dumps(list(calls)), name=TESTS, readers=frozenset({GRADER})),
    }
    return Task(id_, {"question": opening}, {**secrets, **(more or {})})


def with_reference(task: Task) -> Callable[[tuple[Message, ...]], tuple[Message, ...]]:
    """The recontext rule of the critic: the reference stands at the end of the system prompt."""
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
    """The calls that an answer is tested with, for graders."""
    calls: list[str] = json.loads(task.secrets[TESTS].reveal(GRADER))
    return calls


def _own(state: State) -> int:
    return sum(turn.speaker.name == AGENT for turn in state.turns)


def _results(graded: Graded) -> str:
    """What came of each test: JSON, a list of whether it passed, what the call gave, and why it failed."""
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
