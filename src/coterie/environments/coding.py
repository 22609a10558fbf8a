"""Backend programming: an agent asks a person what a Python function is to do, then writes it.

ColBench's first environment (SWEET-RL, arXiv 2503.15478, section 4.1), its rules in our own words: the person's request
is vague, the person knows the right function and cannot write code, the agent has ten turns and says a marker before
its answer, and an answer counts if it does on all hidden calls what the reference does. Answers run in the sandbox
alone.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from coterie.datasets.catalogue import Split
from coterie.engines.protocol import EngineError
from coterie.environments.code_form import functions
from coterie.environments.code_prompts import at_once, work
from coterie.environments.code_text import MARKER, answer_in, code_of, legacy_code_of, visible
from coterie.environments.dialogue import ANSWERED, GRADER, WELL_FORMED, DialogueState
from coterie.environments.protocol import Grade
from coterie.environments.services import Services
from coterie.environments.user_simulator import (
    PERSON,
    REFERENCE,
    TranscriptLine,
    UserSimulator,
    leaks,
)
from coterie.tools.sandbox.inside.plain import Wire
from coterie.tools.sandbox.results import CallResult, Graded, Mode
from coterie.tools.sandbox.shown import shown
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import TURNS, Ending
from coterie.trajectories.turn import Message, Part, Speaker, Turn, digest, make_turn

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


class Coding(ABC):
    """One agent and a person (see ``environments.dialogue``). Subclasses say where tasks come from."""

    name = "coding"
    agents: tuple[str, ...] = (AGENT,)
    max_turns = 10
    """Of the agent."""
    metric = "success"
    formats: tuple[str, ...] = ()
    format_agents: tuple[str, ...] = ()
    fenced = True
    """Whether the prompt asks for a block between fences."""
    script: UserSimulator | None = None
    """Who plays the person if nobody else is named."""

    def __init__(self, mode: Mode = "module", tolerance: float = 0.0, strict: bool = False) -> None:
        self.mode: Mode = mode
        self.tolerance = tolerance
        self.strict = strict
        self._expected: dict[str, Sequence[CallResult]] = {}

    @abstractmethod
    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """See ``DialogueEnvironment.tasks``."""

    # -- what is said -------------------------------------------------------------------------

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """How the agent is to work."""
        return (Part(work(self.max_turns, MARKER), source="task"),)

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """That the agent has to answer at once: the benchmark's single-turn baseline."""
        return (Part(at_once(MARKER), source="task"),)

    def opening(self, task: Task) -> str:
        """The person's request."""
        return str(task.public["question"])

    def visible(self, text: str) -> str:
        """What of an utterance the person can read."""
        return visible(text)

    def answer(self, text: str) -> str | None:
        """The answer that an utterance gives."""
        return answer_in(text)

    async def follow(self, state: DialogueState, services: Services) -> DialogueState:
        """Over with an answer, or with the last turn, which then counts as one; else the person replies."""
        said = state.turns[-1]
        answer = self.answer(said.text)
        end: Ending | None = None if answer is None else ANSWERED
        if end is None and _own(state) >= self.max_turns:
            answer, end = self.visible(said.text).strip(), TURNS
        if end is not None:
            return replace(state, answer=answer, end=end)
        assert services.user_simulator is not None, "a person is part of this environment"
        seed = int(digest("person", said.id)[:15], 16)
        reply = await services.user_simulator.reply(state.task, self.transcript(state.turns), seed)
        turn = make_turn(
            said.id,
            Speaker("person", PERSON),
            [Part(reply or "…", source=PERSON)],
            author=services.user_simulator.name,
        )
        return replace(state, turns=(*state.turns, turn))

    def transcript(self, turns: Sequence[Turn]) -> list[TranscriptLine]:
        """A dialogue as both can read it."""
        return [
            (
                turn.speaker.name,
                turn.text if turn.speaker.name == PERSON else self.visible(turn.text),
            )
            for turn in turns
        ]

    # -- what it is worth ---------------------------------------------------------------------

    async def grade(self, state: DialogueState, services: Services) -> Grade:
        """Success if all hidden calls give what the reference gives. Raises ``EngineError`` for a task
        whose reference gives nothing that can be compared."""
        task, code = state.task, self.code(state.answer or "")
        reference, calls = task.secrets[REFERENCE].reveal(GRADER), hidden_calls(task)
        expected = await self.expected(task, services)
        replies = [turn.text for turn in state.turns[1:] if turn.speaker.name == PERSON]
        common: dict[str, float | int | str] = {
            "turns": _own(state),
            "leaks": await leaks(replies, reference),
            WELL_FORMED: float(
                state.end == ANSWERED and self.well_formed(task, state.answer or "")
            ),
        }
        if not code or (
            self.mode == "legacy" and any(word in (state.answer or "") for word in REFUSED)
        ):
            why = "a word that this grader refuses" if code else "no code"
            return Grade(0.0, {**common, "fraction": 0.0, "why": why})
        assert services.sandbox is not None, "a sandbox is part of this environment"
        found = await services.sandbox.grade_wires(
            *(code, calls, expected),
            mode=self.mode,
            tolerance=self.tolerance,
            strict=self.strict,
        )
        metrics = {**common, "fraction": found.fraction, "results": _results(found)}
        return Grade(float(found.success), metrics)

    def well_formed(self, task: Task, answer: str) -> bool:
        """Whether a marked answer has a whole function of a name that the reference has, in a closed block."""
        wanted = functions(task.secrets[REFERENCE].reveal(GRADER))
        closed = not self.fenced or answer.count(FENCE) >= 2
        return closed and not wanted.isdisjoint(functions(self.code(answer)))

    async def expected(self, task: Task, services: Services) -> list[Wire]:
        """What the reference gives for each hidden call, found once. Raises ``EngineError`` if it fails on one."""
        if task.id not in self._expected:
            assert services.sandbox is not None, "a sandbox is part of this environment"
            reference = task.secrets[REFERENCE].reveal(GRADER)
            self._expected[task.id] = await services.sandbox.run_reference(
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

    def same(self, first: str, second: str) -> bool:
        """Whether two answers are the same code."""
        return self.code(first) == self.code(second)

    def similarity(self, answer: str, other: str) -> float:
        """Whether two answers are the same code, 0 or 1."""
        return float(self.same(answer, other))


class SingleTurn(Coding):
    """The tasks of a coding environment without the conversation: the agent answers at once."""

    max_turns = 1

    def __init__(self, environment: Coding) -> None:
        super().__init__(environment.mode, environment.tolerance, environment.strict)
        self.environment = environment
        self.name = environment.name
        self.fenced = environment.fenced
        self.script = environment.script

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """As the environment's own."""
        return self.environment.tasks(split, count, seed, drawn)

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """As the environment's own, for an agent that has to answer at once."""
        return self.environment.solo_parts(task, agent)


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


def hidden_calls(task: Task) -> list[str]:
    """The calls that an answer is tested with, for graders."""
    calls: list[str] = json.loads(task.secrets[TESTS].reveal(GRADER))
    return calls


def _own(state: DialogueState) -> int:
    return sum(turn.speaker.name == AGENT for turn in state.turns)


def _results(graded: Graded) -> str:
    """What came of each test: JSON, a list of whether it passed, what the call gave, and why it failed."""
    return json.dumps(
        [
            {
                "passed": test.passed,
                "gave": shown(test.result.wire, MAX_VALUE) if test.result.wire else None,
                "why": test.reason[:MAX_VALUE],
            }
            for test in graded.tests
        ]
    )
