"""Base class of environments in which one agent acts step by step and sees the results.

DensePolicy's agent (CodeAct): each message is one step, with an action or an answer (see ``syntax``). A message with
neither also costs a step, and the reply explains the problem. Subclasses define the prompt, actions and grades.
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
"""Source of example messages. :func:`drop_shots` removes these messages."""


class ActingSettings(EnvironmentSettings):
    """Settings of an environment in which one agent acts."""

    steps: int = key(30, "Maximum messages of the agent.", ge=1)


class Acting(ABC):
    """Base class for one acting agent, with one session for each branch."""

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

    # -- abstract methods ---------------------------------------------------------------------

    @abstractmethod
    def tasks(
        self, split: Split, count: int, seed: int, after: Sequence[int] = ()
    ) -> list[Task]: ...

    @abstractmethod
    def system_prompt(self, task: Task) -> str:
        """Return the system prompt: possible actions and the message format."""

    @abstractmethod
    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]: ...

    @abstractmethod
    async def begin(self, task: Task, live: Any) -> Transition:
        """Return the first observation (see :func:`saying`)."""

    @abstractmethod
    async def do(self, state: State, action: str, live: Any) -> Transition: ...

    @abstractmethod
    async def on_answer(self, state: State, answer: str) -> Transition: ...

    @abstractmethod
    async def grade(self, state: State, live: Any) -> Grade: ...

    def shots(self, task: Task) -> Sequence[Message]:
        """Return the messages of example dialogues, whose parts have the source ``SHOTS``."""
        return ()

    def in_form(self, form: Form) -> Self:
        """Return a copy of the environment with another message format."""
        other = copy.copy(self)
        other.form = form
        return other

    # -- steps --------------------------------------------------------------------------------

    def acting(self, state: State) -> tuple[str, ...]:
        return (AGENT,)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:

        return ()

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        system = Message("system", (Part(self.system_prompt(state.task), source="task"),))
        return (system, *self.shots(state.task), *map(_message, state.turns))

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """Parse the message and run its action or answer."""
        move = self.form.read(turns[-1].text, turns[-1].truncated)
        if move.kind == "nothing":
            return Transition(state.data, saying(move.note))
        if move.kind == "action":
            return _add_note(await self.do(state, move.content, live), move)
        return _add_note(await self.on_answer(state, move.content), move)


def saying(text: str) -> tuple[Observation, ...]:
    return (Observation(ENVIRONMENT, (Part(text, source="environment"),)),)


def drop_shots(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without example messages, as a recontext rule."""
    return tuple(m for m in messages if all(part.source != SHOTS for part in m.parts) or m.turn)


def _add_note(transition: Transition, move: Move) -> Transition:
    if not move.note or not transition.seen:
        return transition
    (first, *others) = transition.seen
    parts = (*first.parts, Part(f"\n{move.note}", source="environment"))
    seen = (Observation(first.speaker, parts, first.results), *others)
    return Transition(transition.data, seen, transition.answer, transition.end, transition.rewards)


def _message(turn: Turn) -> Message:
    return Message("assistant" if turn.speaker.name == AGENT else "user", turn=turn.id)
