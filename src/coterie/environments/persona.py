"""The ``persona`` micro-world: an agent asks a simulated user what a function should do.

A function transforms a list of integers in two to four steps, in the order of ``ASPECTS``. Each step is a
:class:`Choice`: one of the ``KINDS`` of its aspect, with a number if the kind takes one. The request names the aspects
of the function, but not its choices, for which the agent must ask. The user recognizes questions by keywords, so that
new wordings of a trained policy still count.

A hash of a task's canonical key (its choices in order) decides its split, so no function is in two splits. The splits
share single choices, names and themes.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.coding import Coding, coding_task
from coterie.environments.settings import CodingSettings, MicroSplit, check_split, split_of_key
from coterie.environments.user_simulator import PERSON, TranscriptLine, UserSimulator
from coterie.record.tree import Secret, Task
from coterie.record.turn import Part

Aspect = Literal["keep", "change", "order", "part", "give"]
ASPECTS: tuple[Aspect, ...] = ("keep", "change", "order", "part", "give")
"""Filter, transformation of each number, order, slice, and returned value."""

ListValue = list[int] | int
"""Returned value of a function: a list, or a number if it has a choice of ``give``."""


@dataclass(frozen=True)
class ChoiceKind:
    """A kind of choice for an aspect."""

    aspect: Aspect
    name: str
    code: str
    """Line of Python, with ``{k}`` for the number."""
    sentence: str
    """Sentence of the user, with ``{k}`` for the number."""
    step: Callable[[list[int], int], ListValue]
    numbers: tuple[int, ...] = (0,)
    """Possible numbers; ``(0,)`` if the kind takes none."""


LIMITS = tuple(range(3, 9))
AMOUNTS = tuple(range(2, 10))
PARTS = (2, 3, 4)

KINDS: tuple[ChoiceKind, ...] = (
    ChoiceKind(
        "keep",
        "even",
        "xs = [x for x in xs if x % 2 == 0]",
        "Keep only the even numbers.",
        lambda xs, k: [x for x in xs if x % 2 == 0],
    ),
    ChoiceKind(
        "keep",
        "odd",
        "xs = [x for x in xs if x % 2 == 1]",
        "Keep only the odd numbers.",
        lambda xs, k: [x for x in xs if x % 2 == 1],
    ),
    ChoiceKind(
        "keep",
        "above",
        "xs = [x for x in xs if x > {k}]",
        "Keep only numbers above {k}.",
        lambda xs, k: [x for x in xs if x > k],
        LIMITS,
    ),
    ChoiceKind(
        "keep",
        "below",
        "xs = [x for x in xs if x < {k}]",
        "Keep only numbers below {k}.",
        lambda xs, k: [x for x in xs if x < k],
        LIMITS,
    ),
    ChoiceKind(
        "change",
        "plus",
        "xs = [x + {k} for x in xs]",
        "Add {k} to each number.",
        lambda xs, k: [x + k for x in xs],
        AMOUNTS,
    ),
    ChoiceKind(
        "change",
        "times",
        "xs = [x * {k} for x in xs]",
        "Multiply each number by {k}.",
        lambda xs, k: [x * k for x in xs],
        AMOUNTS,
    ),
    ChoiceKind(
        "change",
        "minus",
        "xs = [x - {k} for x in xs]",
        "Subtract {k} from each number.",
        lambda xs, k: [x - k for x in xs],
        AMOUNTS,
    ),
    ChoiceKind("order", "up", "xs = sorted(xs)", "From small to large.", lambda xs, k: sorted(xs)),
    ChoiceKind(
        "order",
        "down",
        "xs = sorted(xs, reverse=True)",
        "From large to small.",
        lambda xs, k: sorted(xs, reverse=True),
    ),
    ChoiceKind(
        "part", "first", "xs = xs[:{k}]", "Only the first {k}.", lambda xs, k: xs[:k], PARTS
    ),
    ChoiceKind(
        "part", "last", "xs = xs[-{k}:]", "Only the last {k}.", lambda xs, k: xs[-k:], PARTS
    ),
    ChoiceKind("give", "sum", "xs = sum(xs)", "I want their sum.", lambda xs, k: sum(xs)),
    ChoiceKind(
        "give",
        "largest",
        "xs = max(xs, default=0)",
        "I want the largest one, or zero if there is none.",
        lambda xs, k: max(xs, default=0),
    ),
    ChoiceKind(
        "give",
        "smallest",
        "xs = min(xs, default=0)",
        "I want the smallest one, or zero if there is none.",
        lambda xs, k: min(xs, default=0),
    ),
    ChoiceKind(
        "give", "count", "xs = len(xs)", "I want to know how many there are.", lambda xs, k: len(xs)
    ),
)
BY_NAME: dict[str, ChoiceKind] = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Choice:
    """The choice of a function for an aspect."""

    kind: str
    number: int = 0
    """Number of the choice; 0 if the kind takes none."""

    @property
    def aspect(self) -> Aspect:
        return BY_NAME[self.kind].aspect

    @property
    def code(self) -> str:
        """Line of Python, without indentation."""
        return BY_NAME[self.kind].code.format(k=self.number)

    @property
    def sentence(self) -> str:
        """Short sentence of the user, without code."""
        return BY_NAME[self.kind].sentence.format(k=self.number)


def _all_choices(aspect: Aspect) -> tuple[Choice, ...]:
    kinds = [kind for kind in KINDS if kind.aspect == aspect]
    return tuple(Choice(kind.name, number) for kind in kinds for number in kind.numbers)


CHOICES: dict[Aspect, tuple[Choice, ...]] = {aspect: _all_choices(aspect) for aspect in ASPECTS}


def source_of(name: str, choices: Sequence[Choice]) -> str:
    """Return the Python source of the function, with one line for each choice and no final newline."""
    lines = [f"def {name}(xs):", *(f"    {choice.code}" for choice in choices), "    return xs"]
    return "\n".join(lines)


def output_of(choices: Sequence[Choice], xs: Sequence[int]) -> ListValue:
    value: ListValue = list(xs)
    for choice in choices:
        assert isinstance(value, list), "the returned value is the last step"
        value = BY_NAME[choice.kind].step(value, choice.number)
    return value


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


ANSWER_MARK = "I WANT TO ANSWER:"
"""First line of an answer; the code follows on the next line."""

SYSTEM_PROMPT = (
    "You write a Python function for a person. Ask short questions, one thing at a time. "
    f"Once you know enough, write {ANSWER_MARK} and then the code."
)


def with_reference(source: str) -> str:
    """Return the text after the instructions for a critic, which sees the reference, unlike the policy."""
    return f"\nReference:\n{source}"


UNCLEAR = "I am not sure what you mean."
"""Reply to a message about no aspect."""
NO_WISH = "I have no wish about that."
"""Reply to a question about an aspect that the function does not have."""
TOO_MUCH = "That is too much at once for me."
"""Reply to a question about several aspects."""

KEYWORDS: dict[Aspect, str] = {
    "keep": r"keep\w*|kept|filter\w*|even|odd|above|below|leave\w*|left|drop\w*|remov\w*|select\w*|choosy|stay\w*",
    "change": r"chang\w*|add|added|adds|plus|minus|times|multipl\w*|subtract\w*|arithmetic|calculat\w*|comput\w*",
    "order": r"order\w*|sort\w*|ascend\w*|descend\w*|up|down|increas\w*|decreas\w*|arrang\w*",
    "part": r"part|parts|how many|first|last|cut|cuts|short|slice\w*|limit\w*|begin\w*|start|end",
    "give": r"return\w*|back|result\w*|output\w*|sum|largest|smallest|total\w*|boil\w*|maximum|minimum",
}
"""Keywords of aspects, as regular expressions of whole words in lower case."""
_PATTERNS = {aspect: re.compile(rf"\b(?:{words})\b") for aspect, words in KEYWORDS.items()}


def aspects_named(text: str) -> list[Aspect]:
    """Return the aspects in a text, in the order of ``ASPECTS``."""
    return [aspect for aspect in ASPECTS if _PATTERNS[aspect].search(text.lower())]


def scripted_reply(choices: Sequence[Choice], text: str) -> str:
    """Return the user's reply to the agent's visible text: one short sentence without code.

    The reply tells a choice if the text asks only about its aspect.
    """
    aspects = aspects_named(text)
    if not aspects:
        return UNCLEAR
    if len(aspects) > 1:
        return TOO_MUCH
    return next((choice.sentence for choice in choices if choice.aspect == aspects[0]), NO_WISH)


HIDDEN = "choices"
"""Name of the secret with the choices, a JSON list of (kind, number)."""
_CHOICES = {(choice.kind, choice.number): choice for some in CHOICES.values() for choice in some}


class ScriptedUserSimulator:
    """A scripted user, who tells a choice if the agent asks for it alone."""

    name = "script:persona"

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        hidden = json.loads(task.secrets[HIDDEN].reveal(PERSON))
        return scripted_reply(
            [_CHOICES[kind, number] for kind, number in hidden], transcript[-1][1]
        )


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

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return tasks of a split. The splits are disjoint (see ``tasks``)."""
        start = sum(after) if split == "train" else 0
        return [as_task(task) for task in generate_tasks(split, start + count, seed)[start:]]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the short prompt that the packaged model knows."""
        return (Part(SYSTEM_PROMPT, source="task"),)


def as_task(task: PersonaTask) -> Task:

    hidden = json.dumps([(choice.kind, choice.number) for choice in task.choices])
    secret = Secret(hidden, name=HIDDEN, readers=frozenset({PERSON}))
    return coding_task(task.task_id, task.opening, task.reference, task.calls, {HIDDEN: secret})
