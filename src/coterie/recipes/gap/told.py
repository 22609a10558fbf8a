"""Traces of a file, as paths of the record: what the agent said is its own, what it was shown is not.

The agent is played by the file; what it was shown is what the file has, to the letter. Prompts are those of the
environment in which the policy is evaluated.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.datasets.rows import question_key
from coterie.environments.protocol import (
    ActorKind,
    Environment,
    Grade,
    Observation,
    Shared,
    State,
    Syntax,
    Transition,
)
from coterie.environments.talk import ANSWERED
from coterie.environments.traits import agents_of
from coterie.environments.workflow.answers import final_answer
from coterie.environments.workflow.trace import tagged
from coterie.recipes.gap.traces import ANSWER, TraceRow, observations
from coterie.rollout.scripted_sampler import stopped_at
from coterie.tools.tags import Tags
from coterie.trajectories.calls import Tool
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Message, Part, Role, Speaker, Turn

FILE = Speaker("tool", "file")


@dataclass(frozen=True, slots=True)
class Told:
    """A trace in pieces."""

    said: tuple[str, ...]
    """The agent's messages; one more than there are observations."""
    shown: tuple[str, ...]
    """What came after each message but the last, spaces between them included."""


def pieces(trace: str) -> Told:
    """What the agent said and was shown. Raises ``ValueError`` as :func:`observations`."""
    said, shown, at = list[str](), list[str](), 0
    for start, end in observations(trace):
        after = end + len(trace[end:]) - len(trace[end:].lstrip())
        before = trace[at:start]
        own = before.rstrip()
        if own or not said:
            said.append(own)
            shown.append(before[len(own) :] + trace[start:after])
        else:
            shown[-1] += trace[at:after]
        at = after
    return Told((*said, trace[at:].rstrip()), tuple(shown))


def unsaid(trace: str, calls: Tags) -> str:
    """Why an agent that calls in this form could not have said a trace; empty if it could have."""
    *before, last = pieces(trace).said
    for text in before:
        if not text:
            return "has an observation before anything is said"
        if (stopped := stopped_at(text, calls.stop)) is None or f"</{ANSWER}>" in text:
            tools = ", ".join(calls.calls)
            return f"has an observation that no call of a tool of this run ({tools}) comes before"
        if stopped < len(text):
            return f"goes on after {text[:stopped][-40:]!r}, where a message ends"
    end = stopped_at(last, calls.stop)
    return (
        "" if last.endswith(f"</{ANSWER}>") and end == len(last) else "does not end with its answer"
    )


def answer_alone(trace: str) -> Told:
    answer = final_answer(trace)
    assert answer is not None, "traces without an answer are not read"
    return Told((tagged("answer", answer),), ())


class ToldEnvironment:
    """Plays the traces of a file in the prompts of another environment. It opens no tools."""

    metric = "none"
    pure, max_sessions, needs = True, 1, ()

    def __init__(
        self, environment: Environment, traces: Sequence[TraceRow], *, closed: bool = False
    ) -> None:
        self.environment = environment
        self.name, self.version = environment.name, environment.version
        self.syntax: Syntax | None = environment.syntax
        syntax = environment.syntax
        self.role: Role = syntax.role if isinstance(syntax, Tags) else "tool"
        self.actors: Mapping[str, ActorKind] = environment.actors
        self.limits: Mapping[str, int] = {}
        (self.agent,) = agents_of(environment)
        read = answer_alone if closed else pieces
        self.by_task = {task_of(row).id: read(row.output) for row in traces}
        self.own_tasks = [task_of(row) for row in traces]

    def script(self, task: Task) -> Sequence[str]:
        return self.by_task[task.id].said

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """The questions of the file, in its order."""
        return self.own_tasks[:count] if split == "train" else []

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """Not called: there are no sessions."""
        return nullcontext()

    async def begin(self, task: Task, live: Any) -> Transition:
        return Transition()

    def acting(self, state: State) -> tuple[str, ...]:
        return (self.agent,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """The environment's first prompt, then what was said and shown."""
        first = self.environment.see(replace(state, turns=(), data=None), actor)
        rest = (
            Message(self.role if turn.speaker == FILE else "assistant", turn=turn.id)
            for turn in state.turns
        )
        return (*first, *rest)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        """The other environment's: a message ends with a call of one."""
        return self.environment.tools(replace(state, turns=(), data=None), actor)

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """What the file has next; over after its last message."""
        shown, at = self.by_task[state.task.id].shown, sum(t.speaker != FILE for t in state.turns)
        if at <= len(shown):
            part = Part(shown[at - 1], source="file")
            return Transition(seen=(Observation(FILE, (part,)),))
        return Transition(answer=final_answer(taken[-1].text), end=ANSWERED)

    async def grade(self, state: State, live: Any) -> Grade:
        """A file does not say what is right."""
        return Grade(None)


def task_of(row: TraceRow) -> Task:
    return Task(
        f"trace-{question_key(row.question or row.prompt)}",
        {"question": row.question or row.prompt},
    )
