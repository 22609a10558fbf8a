"""What the functions of the `persona` micro-world are made of: choices, each of which is one line of Python.

A function takes a list of whole numbers through two to four steps, always in the order of `ASPECTS`. Each step is
a `Choice`: one of the `KINDS` of its aspect, with a number where that kind takes one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Aspect = Literal["keep", "change", "order", "part", "give"]
ASPECTS: tuple[Aspect, ...] = ("keep", "change", "order", "part", "give")
"""Which numbers stay, how each is changed, how they are sorted, which part is taken, what is given back."""

ListValue = list[int] | int
"""What a function gives back: a list, or one number where it has a choice of `give`."""


@dataclass(frozen=True)
class ChoiceKind:
    """One way to settle an aspect."""

    aspect: Aspect
    name: str
    code: str
    """The line of Python, with `{k}` for the number."""
    told: str
    """How the person says it, with `{k}` for the number."""
    step: Callable[[list[int], int], ListValue]
    numbers: tuple[int, ...] = (0,)
    """The numbers that it may have; `(0,)` where it takes none."""


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
    """How one aspect of one function is settled."""

    kind: str
    number: int = 0
    """Its number; 0 where the kind takes none."""

    @property
    def aspect(self) -> Aspect:
        return BY_NAME[self.kind].aspect

    @property
    def code(self) -> str:
        """Its line of Python, without indentation."""
        return BY_NAME[self.kind].code.format(k=self.number)

    @property
    def told(self) -> str:
        """How the person says it: one short sentence without code."""
        return BY_NAME[self.kind].told.format(k=self.number)


def _all_choices(aspect: Aspect) -> tuple[Choice, ...]:
    kinds = [kind for kind in KINDS if kind.aspect == aspect]
    return tuple(Choice(kind.name, number) for kind in kinds for number in kind.numbers)


CHOICES: dict[Aspect, tuple[Choice, ...]] = {aspect: _all_choices(aspect) for aspect in ASPECTS}


def source_of(name: str, choices: Sequence[Choice]) -> str:
    """The function in Python: a line for each choice; no newline at its end."""
    lines = [f"def {name}(xs):", *(f"    {choice.code}" for choice in choices), "    return xs"]
    return "\n".join(lines)


def output_of(choices: Sequence[Choice], xs: Sequence[int]) -> ListValue:
    found: ListValue = list(xs)
    for choice in choices:
        assert isinstance(found, list), "nothing comes after what is given back"
        found = BY_NAME[choice.kind].step(found, choice.number)
    return found
