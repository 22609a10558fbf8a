"""A base class of environments with one agent that acts and sees what comes of it, step by step.

DensePolicy's agent (CodeAct): each message is one step, in which it acts or answers (``syntax``). A message that does
neither costs a step too, and is answered with what is wrong. Subclasses say what the agent is told, what an action
does, and what an answer is worth.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, Self

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.acting.syntax import CODE_ACT, Form, Move
from coterie.environments.protocol import (
    ActorKind,
    Grade,
    Observation,
    Shared,
    State,
    Syntax,
    Transition,
)
from coterie.environments.settings import EnvironmentSettings
from coterie.trajectories.calls import Tool
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending
from coterie.trajectories.turn import Message, Part, Speaker, Turn

AGENT = "agent"
ENVIRONMENT = Speaker("environment", "environment")
SOLVED = Ending("solved")
SHOTS = "shots"
"""Source of the messages that show how it is done; :func:`drop_shots` removes exactly these."""


class ActingSettings(EnvironmentSettings):
    """An environment in which one agent acts."""

    steps: int = key(30, "Most messages of the agent.", ge=1)


class Acting(ABC):
    """One agent that acts, each branch in a session of its own."""

    name: str
    metric = "success"
    version = "1"
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent"})
    needs: tuple[type, ...] = ()
    pure = False
    max_sessions = 64
    syntax: Syntax | None = None
    form: Form = CODE_ACT
    has_answers = True

    def __init__(self, steps: int) -> None:
        self.limits: Mapping[str, int] = MappingProxyType({"turns": steps})

    # -- what subclasses say ------------------------------------------------------------------

    @abstractmethod
    def tasks(
        self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()
    ) -> list[Task]: ...

    @abstractmethod
    def told(self, task: Task) -> str:
        """What the agent is told before it sees anything: what there is to do, and in which form."""

    @abstractmethod
    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]: ...

    @abstractmethod
    async def begin(self, task: Task, live: Any) -> Transition:
        """What the agent sees first: one observation (:func:`saying`)."""

    @abstractmethod
    async def do(self, state: State, action: str, live: Any) -> Transition: ...

    @abstractmethod
    async def answered(self, state: State, answer: str) -> Transition: ...

    @abstractmethod
    async def grade(self, state: State, live: Any) -> Grade: ...

    def shots(self, task: Task) -> Sequence[Message]:
        """Dialogues that show how it is done, each message a part with the source ``SHOTS``."""
        return ()

    def in_form(self, form: Form) -> Self:
        """The same environment for an agent that writes in another form."""
        other = copy.copy(self)
        other.form = form
        return other

    # -- how it goes --------------------------------------------------------------------------

    def acting(self, state: State) -> tuple[str, ...]:
        return (AGENT,)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        """None by a syntax of calls: actions are in the text."""
        return ()

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        told = Message("system", (Part(self.told(state.task), source="task"),))
        return (told, *self.shots(state.task), *map(_shown, state.turns))

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """Carry out what the message says."""
        move = self.form.read(taken[-1].text, taken[-1].truncated)
        if move.kind == "nothing":
            return Transition(state.data, saying(move.note))
        if move.kind == "action":
            return _noted(await self.do(state, move.content, live), move)
        return _noted(await self.answered(state, move.content), move)


def saying(text: str) -> tuple[Observation, ...]:
    return (Observation(ENVIRONMENT, (Part(text, source="environment"),)),)


def drop_shots(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """A recontext rule: the same messages without those that show how it is done."""
    return tuple(m for m in messages if all(part.source != SHOTS for part in m.parts) or m.turn)


def _noted(found: Transition, move: Move) -> Transition:
    if not move.note or not found.seen:
        return found
    (first, *others) = found.seen
    parts = (*first.parts, Part(f"\n{move.note}", source="environment"))
    seen = (Observation(first.speaker, parts, first.results), *others)
    return Transition(found.data, seen, found.answer, found.end, found.rewards)


def _shown(turn: Turn) -> Message:
    return Message("assistant" if turn.speaker.name == AGENT else "user", turn=turn.id)
