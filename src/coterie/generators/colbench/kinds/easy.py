"""Functions of one line with one hidden choice: for small models.

The first value of a choice is the obvious one, and the others differ from it on some calls only, so that a plain guess
passes all tests of some tasks and a part of those of others.
"""

import random
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.generators.colbench.kinds.kind import DrawArguments, FunctionKind

ABOUTS = (
    "my shop", "our club", "my class", "a game", "my garden", "our newsletter", "the school fair", "my diary",
    "our choir", "a quiz",
)  # fmt: skip
WORDS = (
    "Anna", "apple", "bell", "cherry", "door", "ear", "kayak", "level", "moon", "note", "Otto", "pear", "radar",
    "river", "stone", "sun", "tea", "tree", "ox",
)  # fmt: skip
NAMES = ("Ann", "Bob", "Cyd", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Lou")


def _easy(
    split: Split, signature: str, what: str, values: tuple[str, ...], draw: DrawArguments
) -> FunctionKind:
    request = f"For $about: please write me a Python function {what}. "
    return FunctionKind(
        split, "easy", signature, request, ABOUTS, "return $value", {"value": values}, draw
    )


def _list(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(0, 12) for _ in range(rng.randint(2, 5))],)


def _number(rng: random.Random) -> tuple[int]:
    return (rng.randint(-4, 15),)


def _pair(rng: random.Random) -> tuple[int, int]:
    return (rng.randint(1, 12), rng.randint(1, 12))


def _word(rng: random.Random) -> tuple[str]:
    return (rng.choice(WORDS),)


def _name(rng: random.Random) -> tuple[Any]:
    return (rng.choice(NAMES),)


EASY: tuple[FunctionKind, ...] = (
    _easy(
        "train",
        "double(x)",
        "that doubles a number",
        ("2 * x", "2 * max(x, 0)", "min(2 * x, 20)", "2 * abs(x)"),
        _number,
    ),
    _easy(
        "train",
        "total(xs)",
        "that adds up a list of numbers",
        ("sum(xs)", "min(sum(xs), 25)", "sum(x for x in xs if x > 2)", "max(sum(xs), 15)"),
        _list,
    ),
    _easy(
        "train",
        "area(width, height)",
        "for the area of a rectangle",
        ("width * height", "max(width * height, 20)", "min(width * height, 60)"),
        _pair,
    ),
    _easy(
        "train",
        "largest(xs)",
        "that finds the largest number of a list",
        ("max(xs)", "min(max(xs), 10)", "max(xs[:3])", "max(max(xs), 8)"),
        _list,
    ),
    _easy(
        "train",
        "backwards(word)",
        "that turns a word around",
        ("word[::-1]", "word[::-1].lower()", "word[::-1][:4]", "word[::-1].strip('r')"),
        _word,
    ),
    _easy(
        "train",
        "is_even(n)",
        "that tells whether a number is even",
        ("n % 2 == 0", "n % 2 == 0 and n > 0", "n % 2 == 0 and n < 10", "n % 2 == 0 or n > 10"),
        _number,
    ),
    _easy(
        "train",
        "greet(name)",
        "that greets somebody (as in Hello, Ann!)",
        (
            "'Hello, ' + name + '!'",
            "('Hi, ' if name < 'D' else 'Hello, ') + name + '!'",
            "'Hello, ' + name + ('!!' if name > 'I' else '!')",
        ),
        _name,
    ),
    _easy(
        "train",
        "average(xs)",
        "for the average of a list of numbers",
        ("sum(xs) / len(xs)", "sum(xs) // len(xs)", "round(sum(xs) / len(xs))"),
        _list,
    ),
    _easy(
        "heldout",
        "length(word)",
        "that counts the letters of a word",
        ("len(word)", "min(len(word), 4)", "len(set(word.lower()))"),
        _word,
    ),
    _easy(
        "heldout",
        "square(x)",
        "that squares a number",
        ("x * x", "min(x * x, 100)", "x * abs(x)"),
        _number,
    ),
    _easy(
        "heldout",
        "smallest(xs)",
        "that finds the smallest number of a list",
        ("min(xs)", "max(min(xs), 2)", "min(xs[:3])", "min(min(xs), 5)"),
        _list,
    ),
    _easy(
        "heldout",
        "add(a, b)",
        "that adds two numbers",
        ("a + b", "max(a + b, 8)", "min(a + b, 15)"),
        _pair,
    ),
    _easy(
        "heldout",
        "is_odd(n)",
        "that tells whether a number is odd",
        ("n % 2 == 1", "n % 2 == 1 and n > 0", "n % 2 == 1 and n < 9", "n % 2 == 1 or n > 10"),
        _number,
    ),
)
"""Eight kinds to train on, five held out."""
