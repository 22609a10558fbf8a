"""Scripted dialogues of the `persona` micro-world: what its tiny model is pre-trained on.

An agent's *habit* is drawn anew in each turn, so that good and bad turns stand side by side in one dialogue: the
credit that a critic has to tell apart. Without the reference an agent asks about all aspects alike. With the reference
in its prompt it prefers the aspects of its lines, so that a critic can read them there.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.environments.collaboration import MARKER, SHOWN_REFERENCE
from coterie.environments.persona import (
    ASPECTS,
    QUESTIONS,
    SYSTEM_PROMPT,
    Aspect,
    PersonaTask,
    generate_tasks,
    scripted_reply,
    source_of,
)

ASKS: dict[Aspect, str] = {
    "keep": "keep only some?",
    "change": "change them?",
    "order": "order them?",
    "skip": "skip some?",
    "cut": "cut some off?",
    "copy": "copy them?",
    "front": "start with what?",
    "end": "end with what?",
}
"""Good questions: each is about one aspect."""
VAGUE: tuple[str, ...] = ("what else matters?", "tell me more?")
"""Questions about nothing in particular."""


Habit = Literal["ask", "vague", "guess", "answer"]
"""What an agent does in a turn: a good question about an aspect that it has not asked about, a vague one, an answer
that lacks wishes, an answer with all of them."""


@dataclass(frozen=True)
class PersonaMix:
    """What a corpus is drawn from."""

    vague: float = 0.10
    """How often an agent that lacks something asks about nothing in particular."""
    guess: float = 0.04
    """How often it answers too early."""
    shown: float = 0.25
    """Share of dialogues whose system prompt also holds the reference."""
    read: float = 0.4
    """How often an agent that is shown the reference asks about one of its lines, and not about any aspect.

    If it always did, a critic could lower the probability of other questions only, even below that of bad turns."""


HABITS = PersonaMix()
"""The habits of the model before post-training."""
SKILL = PersonaMix(vague=0.0, guess=0.0)
"""Good questions only, then the answer."""


@dataclass(frozen=True)
class PersonaDialogue:
    """One scripted dialogue."""

    task: PersonaTask
    habits: tuple[Habit, ...]
    """What the agent did, turn by turn."""
    turns: tuple[str, ...]
    """What the agent said; the last is its answer."""
    replies: tuple[str, ...]
    """What the person said to each turn but the last."""
    shown: bool
    """Whether the agent's system prompt holds the reference."""

    @property
    def prompt(self) -> str:
        """The agent's system prompt."""
        return SYSTEM_PROMPT + (SHOWN_REFERENCE + self.task.reference if self.shown else "")

    @property
    def right(self) -> bool:
        return self.turns[-1] == answer_text(self.task.reference)


def corpus(seed: int, count: int, mix: PersonaMix = HABITS) -> Iterator[PersonaDialogue]:
    """`count` scripted dialogues on tasks of the `corpus` split."""
    rng = random.Random(f"persona/corpus/{seed}")
    for task in generate_tasks("corpus", seed)[:count]:
        yield scripted_dialogue(task, mix, rng, shown=rng.random() < mix.shown)


def answer_text(source: str) -> str:
    """The turn that answers with a function."""
    return f"{MARKER}\n{source}"


def question(theme: str, ask: str) -> str:
    """The turn that asks. It names the theme, so that a model sees it where it chooses an aspect."""
    return f"About the {theme}: {ask}"


def scripted_dialogue(
    task: PersonaTask, mix: PersonaMix, rng: random.Random, *, shown: bool = False
) -> PersonaDialogue:
    """One dialogue of at most `QUESTIONS` questions and the answer, which has only what the agent knows."""
    unasked, unknown = [*ASPECTS], [choice.aspect for choice in task.choices]
    habits: list[Habit] = []
    turns: list[str] = []
    while True:
        habits.append(_habit(len(turns), unknown, mix, rng))
        if habits[-1] in ("answer", "guess"):
            break
        ask = rng.choice(VAGUE)
        if habits[-1] == "ask":
            is_read = shown and rng.random() < mix.read
            aspect = rng.choice(unknown if is_read else unasked)
            unasked.remove(aspect)
            unknown = [other for other in unknown if other != aspect]
            ask = ASKS[aspect]
        turns.append(question(task.theme, ask))
    replies = tuple(scripted_reply(task.choices, turn) for turn in turns)
    told = [choice for choice in task.choices if choice.aspect not in unknown]
    turns.append(answer_text(source_of(task.name, told)))
    return PersonaDialogue(task, tuple(habits), tuple(turns), replies, shown)


def _habit(questions: int, unknown: Sequence[Aspect], mix: PersonaMix, rng: random.Random) -> Habit:
    if not unknown:
        return "answer"
    if questions == QUESTIONS:
        return "guess"
    shares: dict[Habit, float] = {"vague": mix.vague, "guess": mix.guess}
    shares["ask"] = 1.0 - sum(shares.values())
    return rng.choices(tuple(shares), tuple(shares.values()))[0]
