"""When what a program gives is what a test of a contest asks for.

Lines are compared without the spaces around them, and empty lines at both ends do not count, as LiveCodeBench does.
Words of a line are equal if they are spelled alike, or are the same number. A number that is expected with a point is
met within :data:`TOLERANCE`, as CodeContests does; a whole number is met exactly.
"""

import json
import math
import re
from decimal import Decimal

from coterie.tools.sandbox.compare import same
from coterie.tools.sandbox.inside.plain import NotPlain, encode

TOLERANCE = 1e-6
"""Absolute or relative; that of most problems (CodeContests' own is 1e-5)."""
LONGEST = 400
"""Characters of a number; longer ones must be spelled alike."""
_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d{1,4})?", re.ASCII)


def same_output(expected: str, printed: str) -> bool:
    wanted, found = (_lines(text) for text in (expected, printed))
    return len(wanted) == len(found) and all(map(_same_line, wanted, found))


def same_value(expected: str, given: str) -> bool:
    """Whether a function gave what it should; both are JSON. ``1``, ``1.0`` and ``true`` are the same, as in Python."""
    try:
        wanted, found = (encode(json.loads(text)) for text in (expected, given))
    except (ValueError, RecursionError, NotPlain):
        return False
    return same(wanted, found, TOLERANCE)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    wanted, found = expected.split(), printed.split()
    return len(wanted) == len(found) and all(map(_same_word, wanted, found))


def _same_word(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    if max(len(expected), len(printed)) > LONGEST:
        return False
    wanted, found = _NUMBER.fullmatch(expected), _NUMBER.fullmatch(printed)
    if wanted is None or found is None:
        return False
    if any(wanted.groups()):
        one, other = float(expected), float(printed)
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return Decimal(expected) == Decimal(printed)
