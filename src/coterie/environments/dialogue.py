"""Agents that talk: base of the environments, parts of prompts, and pools of message formats.

Optima (arXiv 2410.08115, section 3.1) samples a format for each dialogue, which gives selection more variety. Training
rows omit the instruction. Debates on mathematics have no pool (appendix H.3).
"""

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from coterie.config.folders import expanded
from coterie.config.settings import OptionalPath, key
from coterie.datasets.files import numbered
from coterie.environments.protocol import (
    WELL_FORMED,
    ActorKind,
    Answers,
    Grade,
    Pure,
    State,
    Transition,
)
from coterie.environments.qa_metrics import marked_answer
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.record.tree import LENGTH, Ending, Task
from coterie.record.turn import Message, Part, Turn, digest

LENGTH_RULE = (
    "- Keep every message short. A message that is longer than the token limit is cut off, and a cut-off answer "
    "counts as wrong.\n"
)
"""Cost of length. The rule names no number, because the limit is a setting of the sampler."""


FORMAT_SOURCE = "format"
"""Source of prompt parts that request a format. :func:`drop_format` removes these parts."""
AGREED = Ending("agreed")


class Dialogue(Answers, Pure, ABC):
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
        """All agents."""
        return dict.fromkeys(self.agents, "agent")

    @property
    def limits(self) -> Mapping[str, int]:
        """Maximum number of turns."""
        return {"turns": self.max_turns}

    @abstractmethod
    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the system prompt of an agent, without a format prompt."""

    @abstractmethod
    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the prompt of an agent that has all information and works alone."""

    def answer(self, text: str) -> str | None:
        return marked_answer(text)

    @abstractmethod
    def score(self, task: Task, answer: str | None) -> float:
        """Return the benchmark's metric for a final answer, in [0, 1]. May take seconds."""

    def well_formed(self, answer: str) -> bool:
        """Return True if an answer is not the example of the prompt."""
        return answer != self.example

    def next_actors(self, state: State) -> tuple[str, ...]:
        """Return the next agent; agents take turns."""
        return (self.agents[len(state.turns) % len(self.agents)],)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the system prompt and the dialogue, with the actor's own turns as assistant messages."""
        parts = self.system_parts(state.task, actor)
        # The request has its own source, so that training rows can leave it out.
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
        """Return the turns that an agent's prompt shows."""
        return state.turns

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """End when an answer equals the previous answer (agreement: Optima, section 3) or a turn is truncated."""
        turn = turns[-1]
        answer = self.answer_to(state.task, turn.text)
        # A message that was cut off ends the dialogue, which then scores 0.
        if turn.truncated:
            return Transition(answer=answer, end=LENGTH)
        previous = state.answer
        agreed = previous is not None and previous == answer
        if previous is not None and answer is not None and not agreed:
            # Comparing mathematics may take seconds, which must not block the event loop.
            agreed = await asyncio.to_thread(self.same, previous, answer)
        return Transition(answer=answer, end=AGREED if agreed else None)

    async def grade(self, state: State, session: Any) -> Grade:
        """Score the final answer, or 0 for a truncated dialogue. Comparing mathematics may take seconds."""
        answer = state.answer
        if state.end == LENGTH or answer is None:
            return Grade(0.0, {WELL_FORMED: 0.0})
        score = await asyncio.to_thread(self.score, state.task, answer)
        # An answer that equals the example of the prompt was probably copied, unless it is right.
        return Grade(score, {WELL_FORMED: float(score > 0 or self.well_formed(answer))})


def drop_format(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without format prompts: the recontext rule of iteration 0."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != FORMAT_SOURCE)) for m in messages
    )


MAX_LENGTH = 400
"""Maximum characters of a format, which is a short instruction in every prompt."""
ADVICE = (
    'use a JSONL file with lines such as {"index": 0, "format": "Write key = value pairs."}, or a YAML '
    "list of texts"
)


def read_pool(file: Path) -> tuple[str, ...]:
    """Return the formats of a file, in order. Raise ``UserError`` for a broken file or line, or a duplicate.

    The index of a line is for readers of the file; only the order counts.
    """
    pool: list[str] = []
    for position, raw in _yaml(file) if file.suffix in (".yaml", ".yml") else numbered(file):
        text = raw.get("format") if isinstance(raw, Mapping) else raw
        text = text.strip() if isinstance(text, str) else ""
        if not 0 < len(text) <= MAX_LENGTH or text in pool:
            reason = f"it has no new format of 1 to {MAX_LENGTH} characters"
            raise UserError(f"{file}, {position} is broken: {reason}", ADVICE)
        pool.append(text)
    return tuple(pool)


def _yaml(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: dates
        raise UserError(f"the format pool {file} can't be read: {error}", ADVICE) from error
    if not isinstance(values, list) or not values:
        raise UserError(f"the format pool {file} is not a list, or is empty", ADVICE)
    return ((f"item {number}", value) for number, value in enumerate(values, 1))


class FormatSettings(EnvironmentSettings):
    """Settings of an environment whose prompts may request a format."""

    format_pool_file: OptionalPath = key(
        None,
        "A file of formats (JSONL or YAML) instead of the packaged pool. Debates on mathematics have no packaged pool.",
        source="Optima section 3.1 and appendix H.3",
    )

    def pool(self, packaged: tuple[str, ...]) -> tuple[str, ...]:
        file = self.format_pool_file
        return packaged if file is None else tuple(read_pool(expanded(file)))

    def identity(self) -> str:
        # The content of the pool counts, not the name of its file.
        pool = hashlib.sha256("\n".join(self.pool(())).encode()).hexdigest()
        return digest(self.model_dump_json(exclude={"name", "format_pool_file"}), pool)
