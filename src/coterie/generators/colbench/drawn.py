"""Rows of Backend Programming drawn by a seed from coterie's own kinds of function.

Of each row the reference is run on its ten calls in the sandbox, as ``coterie data check`` does, and the row is kept
if nothing at all is wrong with it. What is disjoint between the splits: the kinds.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.datasets.code_rows import SENTENCE, CodeRow
from coterie.errors import UserError
from coterie.generators.colbench.checks import TESTS, check_rows
from coterie.generators.colbench.kinds import KINDS, FunctionKind, Level
from coterie.progress import Progress
from coterie.tools.sandbox.pool import Sandbox


def kinds_of(split: Split, level: Level) -> list[FunctionKind]:
    """The kinds of one split and level."""
    return [kind for kind in KINDS if kind.split == split and kind.level == level]


async def draw_rows(
    split: Split, level: Level, count: int, seed: int, sandbox: Sandbox, progress: Progress
) -> list[CodeRow]:
    """``count`` rows, no two of which have both words and choices in common; the kinds take turns.

    Equal arguments give equal rows, and a larger count begins with the rows of a smaller one. Raises
    ``UserError`` if there are not as many.
    """
    kinds = kinds_of(split, level)
    shares = [len(range(place, count, len(kinds))) for place in range(len(kinds))]
    sources = [_candidates(kind, seed) for kind in kinds]
    kept: list[list[CodeRow]] = [[] for _ in kinds]
    while any(lacking := [share - len(rows) for share, rows in zip(shares, kept, strict=True)]):
        drawn = [
            (place, row)
            for place, (source, lack) in enumerate(zip(sources, lacking, strict=True))
            for row in islice(source, lack)
        ]
        if len(drawn) < sum(lacking):
            raise _too_few(split, level, count, kinds)
        for found in await check_rows(list(enumerate(row for _, row in drawn)), sandbox, progress):
            if not found.findings:
                kept[drawn[found.number][0]].append(found.row)
    return [kept[number % len(kinds)][number // len(kinds)] for number in range(count)]


def _candidates(kind: FunctionKind, seed: int) -> Iterator[CodeRow]:
    """Every task of a kind once, in an order drawn by the seed, with calls drawn for each; the requests take turns, so
    that none comes again before the others have."""
    rng = random.Random(f"colbench/{kind.name}/{seed}")
    every, abouts = list(product(*kind.choices.values())), rng.sample(kind.abouts, len(kind.abouts))
    rounds = zip(*(rng.sample(every, len(every)) for _ in abouts), strict=True)
    for found in rounds:
        for about, values in zip(abouts, found, strict=True):
            yield _row(kind, about, dict(zip(kind.choices, values, strict=True)), rng)


def _row(kind: FunctionKind, about: str, choices: Mapping[str, Any], rng: random.Random) -> CodeRow:
    """The task with these choices."""
    question = f"{kind.asked(about)}{SENTENCE} def {kind.signature}"
    answer, calls = kind.source(choices), dict[str, None]()
    while len(calls) < TESTS:
        calls[kind.call(rng)] = None
    digest = hashlib.sha256(f"{question}\n{answer}".encode()).hexdigest()
    return CodeRow(id=digest[:16], question=question, answer=answer, tests=tuple(calls))


def _too_few(split: Split, level: Level, count: int, kinds: list[FunctionKind]) -> UserError:
    smallest = min(kinds, key=lambda kind: kind.size)
    return UserError(
        f"{count} {split} rows are more than can be drawn of the {len(kinds)} {level} kinds: they take turns, and of "
        f"`{smallest.name}` there are {smallest.size}",
        f"ask for {len(kinds) * smallest.size * 9 // 10} or fewer",
    )
