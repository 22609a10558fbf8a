"""Tasks of the `persona` micro-world: a function with hidden choices, the vague words that ask for it, ten calls.

The opening tells which aspects the function has, never how they are settled; that the agent must ask.

What is disjoint between the splits: the *canonical key* of a task, i.e. its choices in order. A hash of it decides the
split, so no function of one split is asked for in another. Single choices, names and themes are shared.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key
from coterie.environments.persona.choices import (
    ASPECTS,
    CHOICES,
    Aspect,
    Choice,
    ListValue,
    output_of,
    source_of,
)

MAX_TURNS = 5
"""How many turns the agent has, its answer included."""
CALLS = 10
"""How many calls grade an answer."""


NAMES: tuple[str, ...] = (
    "tidy",
    "pick",
    "shelf",
    "basket",
    "report",
    "ledger",
    "garden",
    "parcel",
    "digest",
    "harvest",
    "summary",
    "notebook",
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
"""How an opening mentions that a function has an aspect."""

SIZES = (2, 3, 3, 4)
"""How many choices functions have, each entry equally often drawn."""
LENGTHS, ENTRIES = range(6, 10), range(13)
"""How long the lists of the calls are, and what they hold."""
TRIES = 8
"""How often ten calls are drawn before a function is given up."""


@dataclass(frozen=True)
class PersonaTask:
    """One function that a person wants written."""

    task_id: str
    """Unique within (split, seed): split, seed and index."""
    opening: str
    """The person's first message; ends with the signature."""
    reference: str
    """The function's source. Not for the agent's eyes."""
    calls: tuple[str, ...]
    """Ten call expressions, each another; a wrong value of any one choice changes the value of at least one."""
    expected: tuple[ListValue, ...]
    """What the reference gives for each call, not all equal. Not for the agent's eyes."""
    choices: tuple[Choice, ...]
    """The hidden choices, in the order of `ASPECTS`. Not for the agent's eyes."""
    name: str


def canonical_key(choices: Sequence[Choice]) -> str:
    """What makes two tasks the same across splits: the choices (not the names, themes and calls)."""
    return ";".join(f"{choice.kind}|{choice.number}" for choice in choices)


def split_of(choices: Sequence[Choice]) -> MicroSplit:
    """The one split that may contain this function, by the hash of its canonical key."""
    return split_of_key(canonical_key(choices))


def generate_tasks(
    split: MicroSplit, count: int, seed: int, sizes: tuple[int, ...] = SIZES
) -> list[PersonaTask]:
    """`count` tasks of one split; no two have both choices and opening in common.

    `sizes` are the numbers of choices that functions have, each entry equally often drawn. Equal arguments give equal
    tasks, and a larger count extends a smaller one. Raises `ValueError` for a split or size that there is not.
    """
    check_split(split)
    if not sizes or not set(sizes) <= {2, 3, 4}:
        raise ValueError(f"unknown sizes {sizes!r}: functions have 2, 3 or 4 choices")
    rng = random.Random(f"persona/{split}/{seed}/{sizes}")
    tasks: list[PersonaTask] = []
    seen: set[tuple[tuple[Choice, ...], str]] = set()
    while len(tasks) < count:
        task = _draw(f"{split}-{seed}-{len(tasks)}", split, sizes, rng)
        if task is not None and (task.choices, task.opening) not in seen:
            seen.add((task.choices, task.opening))
            tasks.append(task)
    return tasks


def _draw(
    task_id: str, split: MicroSplit, sizes: tuple[int, ...], rng: random.Random
) -> PersonaTask | None:
    """One task, or None if the draw is of another split or no calls tell its choices apart from others."""
    aspects = rng.sample(ASPECTS, rng.choice(sizes))
    choices = tuple(rng.choice(CHOICES[aspect]) for aspect in ASPECTS if aspect in aspects)
    if split_of(choices) != split:
        return None
    lists = _telling_lists(choices, rng)
    if lists is None:
        return None
    name = rng.choice(NAMES)
    return PersonaTask(
        task_id,
        opening=_opening(name, choices, rng),
        reference=source_of(name, choices),
        calls=tuple(f"{name}({list(xs)})" for xs in lists),
        expected=tuple(output_of(choices, xs) for xs in lists),
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


def _telling_lists(choices: Sequence[Choice], rng: random.Random) -> list[tuple[int, ...]] | None:
    wrong = _one_wrong(choices)
    for _ in range(TRIES):
        drawn = [tuple(rng.choices(ENTRIES, k=rng.choice(LENGTHS))) for _ in range(CALLS)]
        right = [output_of(choices, xs) for xs in drawn]
        if len(set(drawn)) < CALLS or all(value == right[0] for value in right):
            continue
        if all(_differs(other, drawn, right) for other in wrong):
            return drawn
    return None


def _one_wrong(choices: Sequence[Choice]) -> list[tuple[Choice, ...]]:
    return [
        (*choices[:place], other, *choices[place + 1 :])
        for place, choice in enumerate(choices)
        for other in CHOICES[choice.aspect]
        if other != choice
    ]


def _differs(
    choices: Sequence[Choice], lists: Sequence[tuple[int, ...]], values: Sequence[ListValue]
) -> bool:
    return any(output_of(choices, xs) != value for xs, value in zip(lists, values, strict=True))
