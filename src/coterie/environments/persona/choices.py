"""Choices that make up the functions of the ``persona`` micro-world, each one line of Python.

A function transforms a list of integers in two to four steps, in the order of ``ASPECTS``. Each step is a
:class:`Choice`: one of the ``KINDS`` of its aspect, with a number if the kind takes one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

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
