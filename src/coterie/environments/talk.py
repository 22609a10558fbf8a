"""Agents who talk in turn until two answers in succession are the same: Optima's kind of environment."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.environments.protocol import WELL_FORMED, ActorKind, Grade, State, Transition
from coterie.environments.pure import Pure
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Ending
from coterie.trajectories.turn import Message, Part, Turn

FORMAT_SOURCE = "format"
"""Source of the prompt part that asks for a format; :func:`drop_format` removes exactly these parts."""
AGREED = Ending("agreed")
ANSWERED = Ending("answered")


class Talk(Pure, ABC):
    """Agents who talk in turn. Subclasses say where tasks come from, what agents are told, and what answers are."""

    name: str
    metric: str
    agents: tuple[str, ...]
    max_turns = 10
    formats: tuple[str, ...] = ()
    format_agents: tuple[str, ...] = ()

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return dict.fromkeys(self.agents, "agent")

    @property
    def limits(self) -> Mapping[str, int]:
        """Turns of all agents together."""
        return {"turns": self.max_turns}

    # -- what subclasses say ------------------------------------------------------------------

    @abstractmethod
    def tasks(
        self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()
    ) -> list[Task]: ...

    @abstractmethod
    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """What an agent is told at the beginning, without a format prompt."""

    @abstractmethod
    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """What an agent is told who holds all that the agents hold, and works alone."""

    @abstractmethod
    def answer(self, text: str) -> str | None:
        """The answer that an utterance gives; ``None`` if it gives none."""

    def answer_to(self, task: Task, text: str) -> str | None:
        return self.answer(text)

    @abstractmethod
    def same(self, first: str, second: str) -> bool:
        """Whether two answers are the same one. May take seconds and is called from any thread."""

    @abstractmethod
    def similarity(self, answer: str, other: str) -> float:
        """How much two answers are the same, in [0, 1]: the metric of one if the other were right."""

    @abstractmethod
    def score(self, task: Task, answer: str | None) -> float:
        """The benchmark's metric for a final answer, in [0, 1]. May take seconds."""

    @abstractmethod
    def well_formed(self, answer: str) -> bool:
        """Whether an answer that was found is more than a copy of what the prompt shows as an example."""

    # -- how a talk goes ----------------------------------------------------------------------

    def acting(self, state: State) -> tuple[str, ...]:
        """They speak in turn, the first agent begins."""
        return (self.agents[len(state.turns) % len(self.agents)],)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """Its system prompt, then what it has heard; its own turns as assistant."""
        parts = self.system_parts(state.task, actor)
        if state.variant is not None and actor in self.format_agents:
            parts += (Part(f"\nFormat: {state.variant}", source=FORMAT_SOURCE),)
        return (
            Message("system", parts),
            *(_shown(turn, actor) for turn in self.heard(state, actor)),
        )

    def heard(self, state: State, agent: str) -> tuple[Turn, ...]:
        """The turns that ``agent`` is shown, in the order in which it is shown them: all."""
        return state.turns

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """Over when a newly given answer is the same as the one before it (Optima, section 3: both agents mark the
        same answer), and when a turn was cut."""
        said = taken[-1]
        answer = self.answer_to(state.task, said.text)
        if said.truncated:
            return Transition(answer=answer, end=LENGTH)
        agreed = await self._agree(state.answer, answer)
        return Transition(answer=answer, end=AGREED if agreed else None)

    async def grade(self, state: State, live: Any) -> Grade:
        """The metric of the final answer; 0 for a truncated talk. Comparing mathematics may take seconds."""
        answer = state.answer
        if state.end == LENGTH or answer is None:
            return Grade(0.0, {WELL_FORMED: 0.0})
        score = await asyncio.to_thread(self.score, state.task, answer)
        return Grade(score, {WELL_FORMED: float(score > 0 or self.well_formed(answer))})

    async def _agree(self, before: str | None, answer: str | None) -> bool:
        if before is None or answer is None or before == answer:
            return answer is not None and before == answer
        return await asyncio.to_thread(self.same, before, answer)


def drop_format(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The recontext rule of iteration 0: the same messages without any format prompt."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != FORMAT_SOURCE)) for m in messages
    )


def _shown(turn: Turn, agent: str) -> Message:
    return Message("assistant" if turn.speaker.name == agent else "user", turn=turn.id)
