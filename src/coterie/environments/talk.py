"""Base of environments in which agents talk, with names of agents and common parts of prompts.

The prompt of a single agent with the whole problem is chain of thought without examples (Kojima et al. 2022, "Large
Language Models are Zero-Shot Reasoners").
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.environments.answers import marked_answer
from coterie.environments.protocol import WELL_FORMED, ActorKind, Grade, Pure, State, Transition
from coterie.record.tree import LENGTH, Ending, Task
from coterie.record.turn import Message, Part, Turn

NAMES = ("Alice", "Bob", "Carol")
"""In speaking order: Optima's two agents, and one for its experiments with three agents."""


def named(names: Sequence[str]) -> str:
    """Join names in a sentence: ``Bob``, or ``Bob and Carol``."""
    return " and ".join(names)


def others(agent: str, agents: Sequence[str]) -> list[str]:
    return [name for name in agents if name != agent]


LENGTH_RULE = (
    "- Keep every message short. A message that is longer than the token limit is cut off, and a cut-off answer "
    "counts as wrong.\n"
)
"""Cost of length. The rule names no number, because the limit is a setting of the sampler."""


def answer_rule(when: str, what: str, meaning: str, example: str) -> str:
    """Return the rule for the format of an answer, which ends with an example on a line of its own."""
    return (
        f"- {when} with your answer on a line of its own: {what}, marked as in this example. Nothing else is read as "
        f"your answer. If the answer is {meaning}, the line is:\n{example}"
    )


def solo_prompt(question: str, ending: str, notes: Iterable[str] = ()) -> tuple[Part, ...]:
    """Return the prompt of an agent that has the whole problem; ``ending`` is the rule for its answer."""
    listed = tuple(Part(f"- {note}\n", source="task") for note in notes)
    rules = "Rules:\n- Think step by step, and write down the steps before the answer.\n"
    if listed:
        listed = (Part("Your notes:\n", source="task"), *listed)
        rules += "- Use only the facts in the notes.\n"
    return (
        Part("Answer the question below.\n", source="task"),
        *listed,
        Part(f"{rules}{LENGTH_RULE}{ending}\n\n", source="task"),
        Part(f"Question: {question}", source="task"),
    )


FORMAT_SOURCE = "format"
"""Source of prompt parts that request a format. :func:`drop_format` removes these parts."""
AGREED = Ending("agreed")
ANSWERED = Ending("answered")


class Talk(Pure, ABC):
    """Agents that talk in turn. Subclasses define tasks, prompts and answers."""

    name: str
    metric: str
    agents: tuple[str, ...]
    max_turns = 10
    example: str | None = None
    """Example answer in the prompt, which is not well formed as an answer."""
    formats: tuple[str, ...] = ()
    format_agents: tuple[str, ...] = ()

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return dict.fromkeys(self.agents, "agent")

    @property
    def limits(self) -> Mapping[str, int]:
        """Turns of all agents together."""
        return {"turns": self.max_turns}

    @abstractmethod
    def tasks(
        self, split: Split, count: int, seed: int, after: Sequence[int] = ()
    ) -> list[Task]: ...

    @abstractmethod
    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the system prompt of an agent, without a format prompt."""

    @abstractmethod
    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the prompt of an agent that has all information and works alone."""

    def answer(self, text: str) -> str | None:
        """Return the answer in a message, or ``None``."""
        return marked_answer(text)

    def answer_to(self, task: Task, text: str) -> str | None:
        return self.answer(text)

    def same(self, first: str, second: str) -> bool:
        """Return True if two answers are equal. May take seconds and is called from any thread."""
        return first == second

    @abstractmethod
    def similarity(self, answer: str, other: str) -> float:
        """Return the metric of one answer with the other as the reference, in [0, 1]."""

    @abstractmethod
    def score(self, task: Task, answer: str | None) -> float:
        """Return the benchmark's metric for a final answer, in [0, 1]. May take seconds."""

    def well_formed(self, answer: str) -> bool:
        return answer != self.example

    def acting(self, state: State) -> tuple[str, ...]:
        """Return the next agent in turn."""
        return (self.agents[len(state.turns) % len(self.agents)],)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the system prompt and the dialogue, with the actor's own turns as assistant messages."""
        parts = self.system_parts(state.task, actor)
        if state.variant is not None and actor in self.format_agents:
            parts += (Part(f"\nFormat: {state.variant}", source=FORMAT_SOURCE),)
        return (
            Message("system", parts),
            *(
                Message("assistant" if turn.speaker.name == actor else "user", turn=turn.id)
                for turn in self.prompt_turns(state, actor)
            ),
        )

    def prompt_turns(self, state: State, agent: str) -> tuple[Turn, ...]:
        """Return the turns in the prompt of ``agent``, in order."""
        return state.turns

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """End when an answer equals the previous answer (agreement: Optima, section 3) or a turn is truncated."""
        turn = turns[-1]
        answer = self.answer_to(state.task, turn.text)
        if turn.truncated:
            return Transition(answer=answer, end=LENGTH)
        before = state.answer
        agreed = before is not None and before == answer
        if before is not None and answer is not None and not agreed:
            agreed = await asyncio.to_thread(self.same, before, answer)
        return Transition(answer=answer, end=AGREED if agreed else None)

    async def grade(self, state: State, live: Any) -> Grade:
        """Score the final answer, or 0 for a truncated dialogue. Comparing mathematics may take seconds."""
        answer = state.answer
        if state.end == LENGTH or answer is None:
            return Grade(0.0, {WELL_FORMED: 0.0})
        score = await asyncio.to_thread(self.score, state.task, answer)
        return Grade(score, {WELL_FORMED: float(score > 0 or self.well_formed(answer))})


def drop_format(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without format prompts: the recontext rule of iteration 0."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != FORMAT_SOURCE)) for m in messages
    )
