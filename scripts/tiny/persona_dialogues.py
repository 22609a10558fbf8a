"""Scripted dialogues of the `persona` micro-world: what its tiny model is pre-trained on.

An agent's *habit* is drawn anew in each turn, so that good and bad turns stand side by side in one dialogue: the
credit that a critic has to tell apart. What an agent does not know when it answers, it guesses.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.environments.collaboration import MARKER, SHOWN_REFERENCE
from coterie.environments.persona import (
    ASPECTS,
    CHOICES,
    MAX_TURNS,
    SIZES,
    SYSTEM_PROMPT,
    Aspect,
    Choice,
    PersonaTask,
    generate_tasks,
    scripted_reply,
    source_of,
)

ASKS: dict[Aspect, tuple[str, ...]] = {
    "keep": (
        "Which numbers are kept?",
        "Which numbers should it keep?",
        "Could you tell me which of the numbers are to be kept?",
    ),
    "change": (
        "How is each number changed?",
        "How should it change a number?",
        "Could you tell me in which way each of the numbers is to be changed?",
    ),
    "order": (
        "In what order?",
        "How should it sort them?",
        "Could you tell me in what order you would like to see the numbers?",
    ),
    "part": (
        "Which part of the list?",
        "Which part should it take?",
        "Could you tell me which part of the list you would like to have?",
    ),
    "give": (
        "What does it give back?",
        "What should it return?",
        "Could you tell me what kind of number it is to give back to you?",
    ),
}
"""Good questions: each is about one aspect."""
BEFORE: tuple[str, ...] = (
    "Good.",
    "Thank you, that helps me.",
    "Let me think about what you wrote before I write any code.",
    "That sounds like a nice little function, and I am glad to help you with it.",
)
"""What may come before a question, from terse to long-winded."""
BEFORE_SHARE = 0.3

THINGS: dict[Aspect, str] = {
    "keep": "which numbers are kept",
    "change": "how each number is changed",
    "order": "in what order they come",
    "part": "which part of the list it takes",
    "give": "what it gives back",
}
"""What a question about several aspects is joined from."""
SEVERAL: tuple[str, ...] = ("Tell me {things}.", "Please let me know {things}, all in one go.")
"""Questions about several aspects at once."""

VAGUE: tuple[str, ...] = (
    "Can you tell me more?",
    "What else should I know?",
    "Could you please explain to me with a few more words what you have in mind?",
    "Is there anything special about this function that I should think of?",
)
"""Questions about nothing in particular."""
THANKS: tuple[str, ...] = (
    "Thank you, now I know all that I need.",
    "Great, I will write the code for you now.",
)
"""Said by an agent that knows all, instead of answering."""


Habit = Literal["ask", "vague", "several", "guess", "again", "thanks", "answer"]
"""What an agent does in a turn: a good question (about the first thing that it does not know), a vague one, several at
once, an answer with guesses, a question whose answer it knows, a wasted thank-you, an answer that it knows all of."""


@dataclass(frozen=True)
class PersonaMix:
    """What a corpus is drawn from. The habits' shares are relative; `ask` is 1 minus the others."""

    vague: float = 0.10
    """How often an agent that lacks something asks about nothing in particular."""
    several: float = 0.08
    """How often it asks about several aspects at once."""
    guess: float = 0.15
    again: float = 0.08
    """How often it asks what it knows, also when it knows all; where it knows nothing, the turn is a vague one."""
    thanks: float = 0.12
    """How often an agent that knows all wastes the turn with thanks."""
    shown: float = 0.08
    """Share of dialogues whose system prompt also holds the reference."""
    sizes: tuple[int, ...] = SIZES
    """Numbers of choices of the functions."""


HABITS = PersonaMix()
"""The habits of the model before post-training."""
SKILL = PersonaMix(vague=0.0, several=0.0, guess=0.0, again=0.0, thanks=0.0)
"""Good questions only, then the answer."""


@dataclass(frozen=True)
class PersonaDialogue:
    """One scripted dialogue."""

    task: PersonaTask
    habits: tuple[Habit, ...]
    """What the agent did, turn by turn."""
    turns: tuple[str, ...]
    """What the agent said; the last is its answer, unless it ran out of turns."""
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
    for task in generate_tasks("corpus", seed, mix.sizes)[:count]:
        yield scripted_dialogue(task, mix, rng, shown=rng.random() < mix.shown)


def answer_text(source: str) -> str:
    """The turn that answers with a function."""
    return f"{MARKER}\n{source}"


def scripted_dialogue(
    task: PersonaTask, mix: PersonaMix, rng: random.Random, *, shown: bool = False
) -> PersonaDialogue:
    """One dialogue of at most `MAX_TURNS` turns of the agent, who does not count them: it may never answer."""
    known: list[Choice] = []
    habits: list[Habit] = []
    turns: list[str] = []
    replies: list[str] = []
    while len(turns) < MAX_TURNS:
        unknown = [choice for choice in task.choices if choice not in known]
        habit = _habit(known, unknown, mix, rng)
        habits.append(habit)
        if habit in ("answer", "guess"):
            told = task.choices if shown else _completed(task.choices, known, rng)
            turns.append(answer_text(source_of(task.name, told)))
            break
        if habit == "ask":
            known.append(unknown[0])
            turns.append(_question(known[-1], rng))
        else:
            turns.append(_wasted(habit, task.choices, known, rng))
        replies.append(scripted_reply(task.choices, turns[-1]))
    return PersonaDialogue(
        task, tuple(habits), tuple(turns), tuple(replies[: len(turns) - 1]), shown
    )


def _habit(
    known: Sequence[Choice], unknown: Sequence[Choice], mix: PersonaMix, rng: random.Random
) -> Habit:
    shares: dict[Habit, float] = {"again": mix.again}
    if unknown:
        shares |= {"vague": mix.vague, "several": mix.several, "guess": mix.guess}
    else:
        shares["thanks"] = mix.thanks
    shares["ask" if unknown else "answer"] = 1.0 - sum(shares.values())
    habit = rng.choices(tuple(shares), tuple(shares.values()))[0]
    return "vague" if habit == "again" and not known else habit


def _completed(
    choices: Sequence[Choice], known: Sequence[Choice], rng: random.Random
) -> list[Choice]:
    """The choices as the agent believes them: what it does not know is drawn."""
    return [choice if choice in known else rng.choice(CHOICES[choice.aspect]) for choice in choices]


def _question(choice: Choice, rng: random.Random) -> str:
    question = rng.choice(ASKS[choice.aspect])
    return f"{rng.choice(BEFORE)} {question}" if rng.random() < BEFORE_SHARE else question


def _wasted(
    habit: Habit, choices: Sequence[Choice], known: Sequence[Choice], rng: random.Random
) -> str:
    if habit == "vague":
        return rng.choice(VAGUE)
    if habit == "thanks":
        return rng.choice(THANKS)
    if habit == "again":
        return _question(rng.choice(known), rng)
    asked = rng.sample(choices, rng.randint(2, min(3, len(choices))))
    things = [THINGS[aspect] for aspect in ASPECTS if aspect in {one.aspect for one in asked}]
    return rng.choice(SEVERAL).format(things=f"{', '.join(things[:-1])} and {things[-1]}")
