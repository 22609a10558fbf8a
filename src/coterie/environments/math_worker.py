r"""A process that tells whether two answers are the same mathematics. Started by ``environments.mathematics``.

    echo '["\\frac12", "0.5"]' | python -m coterie.environments.math_worker

Prints ``ready`` once it can answer, then a line ``true`` or ``false`` for each line with the right and the
given answer. Answers are read as LaTeX only: math-verify's reader of plain expressions would go
through Python's ``eval``, and a model wrote them. It has a process of its own because its time limits are
signals, which only a main thread gets, and because an answer such as ``9^{9^{9}}`` takes all the memory that it can.
"""

import json
import logging
import resource
import sys
from typing import Any

DIGITS, EXACT = 12, 100
"""Digits to which two numbers that are not rational agree, where one has decimals and where none has."""
SECONDS = 3
"""For reading an answer, and for a comparison."""
MEMORY = 4 * 2**30
"""Bytes of address space."""
CONSTANTS = "eiEI"
_OF_MATRICES: Any = None


def same_value(one: Any, other: Any, *rounding: int) -> bool:
    """Compare two values by their digits: rational ones exactly, others by the size of their difference.

    math-verify's own comparison drops everything below 1e-15, so that 2^-98 would be 2^-99.
    """
    from sympy import Float, I, MatrixBase, MatrixExpr, Rational

    if isinstance(one, MatrixBase | MatrixExpr) or isinstance(other, MatrixBase | MatrixExpr):
        return bool(_OF_MATRICES(one, other, *rounding))
    try:
        decimals = {one: Rational(str(one)) for one in (one.atoms(Float) | other.atoms(Float))}
        one, other = (value.xreplace(decimals).doit() for value in (one, other))
        one, other = (
            value.subs({name: I for name in value.free_symbols if str(name) == "i"})
            for value in (one, other)
        )
        if one.is_Rational and other.is_Rational:
            return bool(one == other)
        if not one.is_number or not other.is_number:
            return False
        size = max(abs(value.evalf(20)) for value in (one, other))
        difference = abs((one - other).evalf(2 * EXACT))
        return bool(difference < size * Rational(10) ** -(DIGITS if decimals else EXACT))
    except Exception:  # of sets, relations and text; math-verify compares them by symbols next
        return False


def has_letters(parsed: list[Any], letters: str) -> bool:
    """Return True if these letters are variables of what was read, and none was dropped as a unit."""
    symbols = "".join(map(str, getattr(parsed[0], "free_symbols", ()))) if parsed else ""
    return set(letters.casefold()) <= set((symbols + CONSTANTS).casefold())


def main() -> None:
    """Answer until there are no more lines."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, grader, parse, verify

    global _OF_MATRICES
    _OF_MATRICES, grader.sympy_numeric_eq = grader.sympy_numeric_eq, same_value
    reading = [LatexExtractionConfig()]
    print("ready", flush=True)
    for line in sys.stdin:
        gold, given, *letters = json.loads(line)
        values = [
            parse(f"${text.strip().strip('$')}$", reading, parsing_timeout=SECONDS)
            for text in (gold, given)
        ]
        same = all(map(has_letters, values, letters)) and verify(*values, timeout_seconds=SECONDS)
        print(json.dumps(same), flush=True)


if __name__ == "__main__":
    main()
