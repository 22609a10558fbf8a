"""The ``persona`` micro-world: an agent asks a simulated user what a function should do.

Three wishes fix what a hidden function does with a list of integers. Each wish is about one of eight aspects. The
request gives a theme and the number of wishes, but not their aspects. A theme makes four aspects likely, which an agent
can only learn from dialogues. A question about an aspect without a wish costs a turn. The user recognizes questions by
keywords. A hash of the wishes decides the split.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal, NamedTuple, get_args

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

Aspect = Literal["keep", "change", "order", "skip", "cut", "copy", "front", "end"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
"""What wishes are about, in the order in which a function applies them."""


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


LIMITS, AMOUNTS, DIGITS = tuple(range(3, 9)), tuple(range(2, 10)), tuple(range(10))
TIMES, ENDS = (2, 3, 4), (1, 2, 3)

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
    ChoiceKind("order", "back", "xs[::-1]", "Back to front."),
    ChoiceKind("skip", "first", "xs[::{k}]", "Begin with the first and go on by {k}.", TIMES),
    ChoiceKind("skip", "second", "xs[1::{k}]", "Begin with the second and go on by {k}.", TIMES),
    ChoiceKind("cut", "head", "xs[{k}:]", "Leave out the first {k}.", ENDS),
    ChoiceKind("cut", "tail", "xs[:-{k}]", "Leave out the last {k}.", ENDS),
    ChoiceKind("copy", "each", "[x for x in xs for _ in range({k})]", "Each one {k} times.", TIMES),
    ChoiceKind("copy", "all", "xs * {k}", "The whole list {k} times.", TIMES),
    ChoiceKind("front", "digit", "[{k}] + xs", "Put a {k} in front.", DIGITS),
    ChoiceKind("front", "count", "[len(xs)] + xs", "Put their count in front."),
    ChoiceKind("front", "sum", "[sum(xs)] + xs", "Put their sum in front."),
    ChoiceKind("end", "number", "xs + [{k}]", "Put a {k} at the end.", DIGITS),
    ChoiceKind("end", "largest", "xs + [max(xs, default=0)]", "Put the largest at the end."),
    ChoiceKind("end", "smallest", "xs + [min(xs, default=0)]", "Put the smallest at the end."),
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


def output_of(choices: Sequence[Choice], xs: Sequence[int]) -> list[int]:
    value = list(xs)
    for choice in choices:
        value = STEPS[choice.kind](value, choice.number)
    return value


STEPS: dict[str, Callable[[list[int], int], list[int]]] = {
    kind.name: eval(f"lambda xs, k: {kind.expression.format(k='k')}") for kind in KINDS
}
"""Functions of the kinds. Only the expressions above are evaluated, never a number or a text from outside."""


QUESTIONS = 6
MAX_TURNS = QUESTIONS + 1
CALLS = 10
WISHES = 3
LIKELY_SHARE = 0.95
"""Probability of each wish to be about an aspect that its theme makes likely."""

NAMES = split_words(
    "tidy pick shelf basket report ledger garden parcel digest harvest summary notebook"
)


SENTENCES = {
    "eggs": "I note the eggs of my hens every day.",
    "prices": "My shop has a list of prices.",
    "visitors": "We count the visitors of our library.",
    "runs": "I write down the length of my runs.",
    "points": "Our club has the points of all players.",
    "ages": "I have the ages of the children in my class.",
    "apples": "My garden gives me some apples every week.",
    "rain": "We measure the rain in our village.",
    "rides": "I write down the minutes of my bus rides.",
    "bread": "Our bakery knows how much bread it sells.",
    "letters": "The post office weighs all letters.",
    "books": "I know the pages of the books that I read.",
    "fish": "My brother counts the fish in his pond.",
    "songs": "The radio has the length of its songs.",
    "trees": "We measured the trees of our street.",
    "cakes": "My aunt sells cakes on the market.",
}
"""First sentence of a request, by the word of its theme in questions. The ``corpus`` has all themes."""

THEMES: dict[str, tuple[Aspect, ...]] = {
    "eggs": ("keep", "change", "front", "end"),
    "prices": ("keep", "order", "cut", "front"),
    "runs": ("change", "skip", "copy", "end"),
    "fish": ("order", "skip", "cut", "copy"),
}
"""Themes of tasks, and the aspects of most wishes, which neither the request nor a prompt tells.

Each aspect is likely in half of the themes, so that no aspect is better on average. There are few themes, because an
agent learns their likely aspects from some dozens of dialogues about each.
"""

LENGTHS, ENTRIES = range(8, 13), range(13)
TRIES = 8


@dataclass(frozen=True)
class PersonaTask:
    """A function that a user requests."""

    task_id: str
    opening: str
    reference: str
    calls: tuple[str, ...]
    """Ten call expressions, not all of one value. Without a choice, or with another one, at least one value changes."""
    choices: tuple[Choice, ...]
    name: str
    theme: str


def canonical_key(choices: Sequence[Choice]) -> str:
    """Return the identity of a task across splits: its choices, but not names, themes and calls."""
    return ";".join(f"{choice.kind}|{choice.number}" for choice in choices)


@series
def generate_tasks(split: MicroSplit, seed: int) -> Iterator[PersonaTask]:
    """Yield the tasks of a split, without duplicate pairs of choices and request.

    In the ``corpus`` no aspect is likely, so that a model learns questions there, but not what themes make likely.
    """
    rng = split_random(split, f"persona/{split}/{seed}")
    return distinct(
        split,
        lambda number: _draw(f"{split}-{seed}-{number}", split, rng),
        lambda task: (task.choices, task.opening),
    )


def _draw(task_id: str, split: MicroSplit, rng: random.Random) -> PersonaTask | None:
    """Return a task, or None if the draw belongs to another split or no calls distinguish its choices from others."""
    theme = rng.choice([*(SENTENCES if split == "corpus" else THEMES)])
    name = rng.choice(NAMES)
    aspects = rng.sample(ASPECTS, WISHES) if split == "corpus" else _aspects(theme, rng)
    # The function applies choices in the fixed order of aspects, however they were drawn.
    choices = tuple(rng.choice(CHOICES[aspect]) for aspect in ASPECTS if aspect in aspects)
    if split_of_key(canonical_key(choices)) != split:
        return None
    lists = _distinguishing_lists(choices, rng)
    if lists is None:
        return None
    return PersonaTask(
        task_id,
        opening=(
            f"{SENTENCES[theme]} I have {WISHES} wishes for a function. "
            f"Its signature is: def {name}(xs)"
        ),
        reference=source_of(name, choices),
        calls=tuple(f"{name}({list(xs)})" for xs in lists),
        choices=choices,
        name=name,
        theme=theme,
    )


def _aspects(theme: str, rng: random.Random) -> list[Aspect]:
    likely = THEMES[theme]
    count = sum(rng.random() < LIKELY_SHARE for _ in range(WISHES))
    others = [aspect for aspect in ASPECTS if aspect not in likely]
    return rng.sample(likely, count) + rng.sample(others, WISHES - count)


def aspect_sets(theme: str) -> dict[frozenset[str], float]:
    """Return the probability of each set of aspects under a theme."""
    likely, result = {*THEMES[theme]}, dict[frozenset[str], float]()
    for aspects in combinations(ASPECTS, WISHES):
        count = len(likely.intersection(aspects))
        among, rest = comb(len(likely), count), comb(len(ASPECTS) - len(likely), WISHES - count)
        share = comb(WISHES, count) * LIKELY_SHARE**count * (1 - LIKELY_SHARE) ** (WISHES - count)
        result[frozenset(aspects)] = share / (among * rest)
    return result


def _distinguishing_lists(
    choices: Sequence[Choice], rng: random.Random
) -> list[tuple[int, ...]] | None:
    # All functions that lack one choice or differ in it. The calls must tell each of them apart.
    alternatives = [
        (*choices[:index], *replacement, *choices[index + 1 :])
        for index, choice in enumerate(choices)
        for replacement in [(), *((other,) for other in CHOICES[choice.aspect] if other != choice)]
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
    "You write a Python function for a person. Ask what to keep, change, order, skip, cut or copy, and how to start "
    f"and end, one thing at a time, {QUESTIONS} times at most. Then write {MARKER} and the code."
)


UNCLEAR = "I am not sure what you mean."
NO_WISH = "I have no wish about that."
TOO_MUCH = "That is too much at once for me."

KEYWORDS: dict[Aspect, str] = {
    "keep": r"keep\w*|kept|filter\w*|even|odd|above|below|remov\w*|select\w*",
    "change": r"chang\w*|add|added|adds|plus|minus|multipl\w*|subtract\w*|arithmetic|calculat\w*|comput\w*",
    "order": r"order\w*|sort\w*|ascend\w*|descend\w*|arrang\w*|revers\w*",
    "skip": r"skip\w*|step|steps|stride",
    "cut": r"cut|cuts|cutting|drop\w*|part|parts|short\w*|slice\w*",
    "copy": r"copy|copied|copies|repeat\w*|twice|often|doubl\w*",
    "front": r"front|begin\w*|start\w*|prepend\w*",
    "end": r"end|ends|append\w*|finish\w*",
}
"""Keywords of aspects, as regular expressions of whole words in lower case."""
_PATTERNS = {aspect: re.compile(rf"\b(?:{words})\b") for aspect, words in KEYWORDS.items()}


def aspects_in(text: str) -> list[Aspect]:
    """Return the aspects that a message asks about."""
    return [aspect for aspect in ASPECTS if _PATTERNS[aspect].search(text.lower())]


def scripted_reply(choices: Sequence[Choice], text: str) -> str:
    """Return the user's reply to the agent's visible text: one short sentence without code.

    The reply tells a choice if the text asks only about its aspect.
    """
    aspects = aspects_in(text)
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
