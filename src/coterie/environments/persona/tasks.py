"""Tasks of the ``persona`` micro-world: a function with hidden choices, a vague request for it, and ten calls.

The request names the aspects of the function, but not its choices, for which the agent must ask.

A hash of a task's canonical key (its choices in order) decides its split, so no function is in two splits. The splits
share single choices, names and themes.
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
"""Maximum turns of the agent, including its answer."""
CALLS = 10
"""Number of calls that grade an answer."""

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
"""Phrases for the aspects of a function in a request."""

SIZES = (2, 3, 3, 4)
"""Numbers of choices in a function; each entry is equally likely."""
LENGTHS, ENTRIES = range(6, 10), range(13)
"""Lengths and entries of the lists in calls."""
TRIES = 8
"""Maximum draws of ten calls for a function."""


@dataclass(frozen=True)
class PersonaTask:
    """A function that a user requests."""

    task_id: str
    """Unique within (split, seed): split, seed and index."""
    opening: str
    """First message of the user, which ends with the signature."""
    reference: str
    """Source of the function. Hidden from the agent."""
    calls: tuple[str, ...]
    """Ten different call expressions. A change of any choice changes at least one of their values."""
    expected: tuple[ListValue, ...]
    """Values of the calls with the reference, not all equal. Hidden from the agent."""
    choices: tuple[Choice, ...]
    """Choices in the order of ``ASPECTS``. Hidden from the agent."""
    name: str


def canonical_key(choices: Sequence[Choice]) -> str:
    """Return the identity of a task across splits: its choices, but not names, themes and calls."""
    return ";".join(f"{choice.kind}|{choice.number}" for choice in choices)


def split_of(choices: Sequence[Choice]) -> MicroSplit:
    """Return the split that may contain this function, by the hash of its canonical key."""
    return split_of_key(canonical_key(choices))


def generate_tasks(
    split: MicroSplit, count: int, seed: int, sizes: tuple[int, ...] = SIZES
) -> list[PersonaTask]:
    """Return ``count`` tasks of a split, without duplicate pairs of choices and request.

    ``sizes`` are the numbers of choices in functions; each entry is equally likely. The result is deterministic, and a
    larger count extends a smaller one.

    Raises:
        ValueError: unknown split or size.
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
    """Return a task, or None if the draw belongs to another split or no calls distinguish its choices from others."""
    aspects = rng.sample(ASPECTS, rng.choice(sizes))
    choices = tuple(rng.choice(CHOICES[aspect]) for aspect in ASPECTS if aspect in aspects)
    if split_of(choices) != split:
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


def _distinguishing_lists(
    choices: Sequence[Choice], rng: random.Random
) -> list[tuple[int, ...]] | None:
    alternatives = _alternatives(choices)
    for _ in range(TRIES):
        lists = [tuple(rng.choices(ENTRIES, k=rng.choice(LENGTHS))) for _ in range(CALLS)]
        right = [output_of(choices, xs) for xs in lists]
        if len(set(lists)) < CALLS or all(value == right[0] for value in right):
            continue
        if all(_differs(other, lists, right) for other in alternatives):
            return lists
    return None


def _alternatives(choices: Sequence[Choice]) -> list[tuple[Choice, ...]]:
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
