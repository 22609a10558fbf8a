"""The ``persona`` micro-world: an agent asks a simulated user what a function should do.

Two to four choices fix what a hidden function does with a list of integers. The request names their aspects,
and the agent must ask for the choices. The user recognizes questions by keywords. A hash of the choices decides the
split.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.coding import Coding, CodingSettings, coding_task
from coterie.environments.collaboration import MARKER
from coterie.environments.settings import (
    MicroSplit,
    distinct,
    series,
    split_of_key,
    split_random,
    split_words,
)
from coterie.environments.user_simulator import PERSON, TranscriptLine, UserSimulator
from coterie.record.tree import Secret, Task
from coterie.record.turn import Part

Aspect = Literal["keep", "change", "order", "part", "give"]
ASPECTS: tuple[Aspect, ...] = ("keep", "change", "order", "part", "give")
"""Filter, transformation of each number, order, slice, and returned value."""

ListValue = list[int] | int
"""Returned value of a function: a list, or a number if it has a choice of ``give``."""


class ChoiceKind(NamedTuple):
    """A kind of choice for an aspect."""

    aspect: Aspect
    name: str
    expression: str
    """Python expression of the new ``xs``, with ``{k}`` for the number."""
    sentence: str
    """Sentence of the user, with ``{k}`` for the number."""
    numbers: tuple[int, ...] = (0,)
    """Possible numbers; ``(0,)`` if the kind takes none."""


LIMITS = tuple(range(3, 9))
AMOUNTS = tuple(range(2, 10))
PARTS = (2, 3, 4)
LARGEST = "I want the largest one, or zero if there is none."
SMALLEST = "I want the smallest one, or zero if there is none."

KINDS: tuple[ChoiceKind, ...] = (
    ChoiceKind("keep", "even", "[x for x in xs if x % 2 == 0]", "Keep only the even numbers."),
    ChoiceKind("keep", "odd", "[x for x in xs if x % 2 == 1]", "Keep only the odd numbers."),
    ChoiceKind(
        "keep", "above", "[x for x in xs if x > {k}]", "Keep only numbers above {k}.", LIMITS
    ),
    ChoiceKind(
        "keep", "below", "[x for x in xs if x < {k}]", "Keep only numbers below {k}.", LIMITS
    ),
    ChoiceKind("change", "plus", "[x + {k} for x in xs]", "Add {k} to each number.", AMOUNTS),
    ChoiceKind("change", "times", "[x * {k} for x in xs]", "Multiply each number by {k}.", AMOUNTS),
    ChoiceKind(
        "change", "minus", "[x - {k} for x in xs]", "Subtract {k} from each number.", AMOUNTS
    ),
    ChoiceKind("order", "up", "sorted(xs)", "From small to large."),
    ChoiceKind("order", "down", "sorted(xs, reverse=True)", "From large to small."),
    ChoiceKind("part", "first", "xs[:{k}]", "Only the first {k}.", PARTS),
    ChoiceKind("part", "last", "xs[-{k}:]", "Only the last {k}.", PARTS),
    ChoiceKind("give", "sum", "sum(xs)", "I want their sum."),
    ChoiceKind("give", "largest", "max(xs, default=0)", LARGEST),
    ChoiceKind("give", "smallest", "min(xs, default=0)", SMALLEST),
    ChoiceKind("give", "count", "len(xs)", "I want to know how many there are."),
)
BY_NAME: dict[str, ChoiceKind] = {kind.name: kind for kind in KINDS}


class Choice(NamedTuple):
    """The choice of a function for an aspect."""

    kind: str
    number: int = 0

    @property
    def aspect(self) -> Aspect:
        return BY_NAME[self.kind].aspect

    @property
    def code(self) -> str:
        """Line of Python, without indentation."""
        return f"xs = {BY_NAME[self.kind].expression.format(k=self.number)}"

    @property
    def sentence(self) -> str:
        """Short sentence of the user, without code."""
        return BY_NAME[self.kind].sentence.format(k=self.number)


CHOICES: dict[Aspect, tuple[Choice, ...]] = {
    aspect: tuple(
        Choice(kind.name, number)
        for kind in KINDS
        if kind.aspect == aspect
        for number in kind.numbers
    )
    for aspect in ASPECTS
}


def source_of(name: str, choices: Sequence[Choice]) -> str:
    """Return the Python source of the function, with one line for each choice and no final newline."""
    lines = [f"def {name}(xs):", *(f"    {choice.code}" for choice in choices), "    return xs"]
    return "\n".join(lines)


def output_of(choices: Sequence[Choice], xs: Sequence[int]) -> ListValue:
    value: ListValue = list(xs)
    for choice in choices:
        value = STEPS[choice.kind](value, choice.number)
    return value


STEPS: dict[str, Callable[[ListValue, int], ListValue]] = {
    kind.name: eval(f"lambda xs, k: {kind.expression.format(k='k')}") for kind in KINDS
}
"""Functions of the kinds. Only the expressions above are evaluated, never a number or a text from outside."""


MAX_TURNS = 5
CALLS = 10

NAMES = split_words(
    "tidy pick shelf basket report ledger garden parcel digest harvest summary notebook"
)
THEMES: tuple[str, ...] = (
    "I note the eggs of my hens every day.",
    "My shop has a list of prices.",
    "We count the visitors of our library.",
    "I write down how far I run.",
    "Our club has the points of all players.",
    "I have the ages of the children in my class.",
    "My garden gives me some apples every week.",
    "We measure the rain in our village.",
    "I keep the minutes of each bus ride.",
    "Our bakery knows how much bread it sells.",
)
HINTS: dict[Aspect, tuple[str, ...]] = {
    "keep": ("leaves some numbers out", "is choosy about the numbers"),
    "change": ("changes each number", "does a bit of arithmetic"),
    "order": ("puts them in order", "sorts them my way"),
    "part": ("takes a part of the list", "cuts the list short"),
    "give": ("gives back one number", "makes one number of it all"),
}

SIZES = (2, 3, 3, 4)
LENGTHS, ENTRIES = range(6, 10), range(13)
TRIES = 8


@dataclass(frozen=True)
class PersonaTask:
    """A function that a user requests."""

    task_id: str
    opening: str
    reference: str
    calls: tuple[str, ...]
    """Ten call expressions, not all of one value. Another choice would change at least one of their values."""
    choices: tuple[Choice, ...]
    name: str


def canonical_key(choices: Sequence[Choice]) -> str:
    """Return the identity of a task across splits: its choices, but not names, themes and calls."""
    return ";".join(f"{choice.kind}|{choice.number}" for choice in choices)


@series
def generate_tasks(
    split: MicroSplit, seed: int, sizes: tuple[int, ...] = SIZES
) -> Iterator[PersonaTask]:
    """Yield the tasks of a split, without duplicate pairs of choices and request.

    ``sizes`` are the numbers of choices in functions; each entry is equally likely.
    """
    rng = split_random(split, f"persona/{split}/{seed}/{sizes}")
    return distinct(
        split,
        lambda number: _draw(f"{split}-{seed}-{number}", split, sizes, rng),
        lambda task: (task.choices, task.opening),
    )


def _draw(
    task_id: str, split: MicroSplit, sizes: tuple[int, ...], rng: random.Random
) -> PersonaTask | None:
    """Return a task, or None if the draw belongs to another split or no calls distinguish its choices from others."""
    aspects = rng.sample(ASPECTS, rng.choice(sizes))
    # The function applies choices in the fixed order of aspects, however they were drawn.
    choices = tuple(rng.choice(CHOICES[aspect]) for aspect in ASPECTS if aspect in aspects)
    if split_of_key(canonical_key(choices)) != split:
        return None
    lists = _distinguishing_lists(choices, rng)
    if lists is None:
        return None
    name = rng.choice(NAMES)
    return PersonaTask(
        task_id,
        opening=_opening(name, choices, rng),
        reference=source_of(name, choices),
        calls=tuple(f"{name}({list(xs)})" for xs in lists),
        choices=choices,
        name=name,
    )


def _opening(name: str, choices: Sequence[Choice], rng: random.Random) -> str:
    phrases = [rng.choice(HINTS[choice.aspect]) for choice in choices]
    wish = f"{', '.join(phrases[:-1])} and {phrases[-1]}"
    return (
        f"{rng.choice(THEMES)} I need a function that {wish}. "
        f"The signature of the function is: def {name}(xs)"
    )


def _distinguishing_lists(
    choices: Sequence[Choice], rng: random.Random
) -> list[tuple[int, ...]] | None:
    # All functions that differ in one choice. The calls must tell each of them apart.
    alternatives = [
        (*choices[:index], alternative, *choices[index + 1 :])
        for index, choice in enumerate(choices)
        for alternative in CHOICES[choice.aspect]
        if alternative != choice
    ]
    for _ in range(TRIES):
        lists = [tuple(rng.choices(ENTRIES, k=rng.choice(LENGTHS))) for _ in range(CALLS)]
        right = [output_of(choices, xs) for xs in lists]
        # With equal values a constant function would pass.
        if len(set(lists)) < CALLS or all(value == right[0] for value in right):
            continue
        if all(
            [output_of(alternative, xs) for xs in lists] != right for alternative in alternatives
        ):
            return lists
    return None


SYSTEM_PROMPT = (
    "You write a Python function for a person. Ask short questions, one thing at a time. "
    f"Once you know enough, write {MARKER} and then the code."
)


UNCLEAR = "I am not sure what you mean."
NO_WISH = "I have no wish about that."
TOO_MUCH = "That is too much at once for me."

KEYWORDS: dict[Aspect, str] = {
    "keep": r"keep\w*|kept|filter\w*|even|odd|above|below|leave\w*|left|drop\w*|remov\w*|select\w*|choosy|stay\w*",
    "change": r"chang\w*|add|added|adds|plus|minus|times|multipl\w*|subtract\w*|arithmetic|calculat\w*|comput\w*",
    "order": r"order\w*|sort\w*|ascend\w*|descend\w*|up|down|increas\w*|decreas\w*|arrang\w*",
    "part": r"part|parts|how many|first|last|cut|cuts|short|slice\w*|limit\w*|begin\w*|start|end",
    "give": r"return\w*|back|result\w*|output\w*|sum|largest|smallest|total\w*|boil\w*|maximum|minimum",
}
"""Keywords of aspects, as regular expressions of whole words in lower case."""
_PATTERNS = {aspect: re.compile(rf"\b(?:{words})\b") for aspect, words in KEYWORDS.items()}


def scripted_reply(choices: Sequence[Choice], text: str) -> str:
    """Return the user's reply to the agent's visible text: one short sentence without code.

    The reply tells a choice if the text asks only about its aspect.
    """
    aspects = [aspect for aspect in ASPECTS if _PATTERNS[aspect].search(text.lower())]
    if not aspects:
        return UNCLEAR
    if len(aspects) > 1:
        return TOO_MUCH
    return next((choice.sentence for choice in choices if choice.aspect == aspects[0]), NO_WISH)


HIDDEN = "choices"
"""Name of the secret with the choices, a JSON list of (kind, number)."""


class ScriptedUserSimulator:
    """A scripted user, who tells a choice if the agent asks for it alone."""

    name = "script:persona"

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        choices = [Choice(*fields) for fields in json.loads(task.secrets[HIDDEN].reveal(PERSON))]
        return scripted_reply(choices, transcript[-1][1])


class PersonaSettings(CodingSettings):
    """Settings of the micro-world."""

    turns: int = key(MAX_TURNS, "Maximum turns of the agent.", ge=1)


class Persona(Coding):
    """Micro-world of the recipe ``sweet_rl``."""

    name = "persona"
    settings_type = PersonaSettings
    fenced = False
    script: UserSimulator | None = ScriptedUserSimulator()

    def __init__(self, settings: PersonaSettings | None = None) -> None:
        super().__init__(settings or PersonaSettings())

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        tasks = generate_tasks(split, seed).draw(split, count, previous_counts)
        return [as_task(task) for _, task in tasks]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(SYSTEM_PROMPT, source="task"),)


def as_task(task: PersonaTask) -> Task:
    hidden = json.dumps(task.choices)
    secret = Secret(hidden, name=HIDDEN, readers=frozenset({PERSON}))
    return coding_task(task.task_id, task.opening, task.reference, task.calls, {HIDDEN: secret})
