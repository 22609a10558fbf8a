r"""Process that compares mathematical answers, started by ``environments.grading``.

    echo '["\\frac12", "0.5"]' | python -m coterie.environments.math_worker

It prints ``ready`` once it is loaded, then ``true`` or ``false`` for each line with a reference and an answer. Answers
are read only as LaTeX, because math-verify parses plain expressions with Python's ``eval``, which is unsafe for model
output. A separate process is needed because its time limits are signals, which only a main thread receives, and because
an answer such as ``9^{9^{9}}`` uses all available memory.
"""

import logging
from typing import Any

from coterie.tools.line_process import serve

DIGITS, EXACT = 12, 100
"""Precision for comparing irrational numbers: with decimals in an answer, and without."""
SECONDS = 3
"""Time limit for parsing an answer, and for a comparison."""
MEMORY = 4 * 2**30
"""Limit of address space, in bytes."""
CONSTANTS = "eiEI"
_OF_MATRICES: Any = None


def same_value(left: Any, right: Any, *rounding: int) -> bool:
    """Compare rational values exactly, and others by their relative difference.

    math-verify's comparison ignores differences below 1e-15, so that 2^-98 would equal 2^-99.
    """
    from sympy import Float, I, MatrixBase, MatrixExpr, Rational

    if isinstance(left, MatrixBase | MatrixExpr) or isinstance(right, MatrixBase | MatrixExpr):
        return bool(_OF_MATRICES(left, right, *rounding))
    try:
        # A decimal stands for the number as written, not for its binary approximation.
        decimals = {
            number: Rational(str(number)) for number in (left.atoms(Float) | right.atoms(Float))
        }
        left, right = (value.xreplace(decimals).doit() for value in (left, right))
        # math-verify reads the imaginary unit as a variable.
        left, right = (
            value.subs({name: I for name in value.free_symbols if str(name) == "i"})
            for value in (left, right)
        )
        if left.is_Rational and right.is_Rational:
            return bool(left == right)
        # Values with variables: after False, math-verify compares them by symbols.
        if not left.is_number or not right.is_number:
            return False
        # Twice the digits, since the subtraction cancels leading ones.
        size = max(abs(value.evalf(20)) for value in (left, right))
        difference = abs((left - right).evalf(2 * EXACT))
        return bool(difference < size * Rational(10) ** -(DIGITS if decimals else EXACT))
    except Exception:  # sets, relations and text, which math-verify then compares by symbols
        return False


def has_letters(parsed: list[Any], letters: str) -> bool:
    """Return True if these letters are variables of the parsed value, and none was dropped as a unit."""
    symbols = "".join(map(str, getattr(parsed[0], "free_symbols", ()))) if parsed else ""
    return set(letters.casefold()) <= set((symbols + CONSTANTS).casefold())


def main() -> None:
    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, grader, parse, verify

    global _OF_MATRICES
    # Replaces the numeric comparison inside math-verify, except for matrices.
    _OF_MATRICES, grader.sympy_numeric_eq = grader.sympy_numeric_eq, same_value
    reading = [LatexExtractionConfig()]

    def compare(texts: list[str]) -> bool:
        gold, answer, *letters = texts
        values = [
            parse(f"${text.strip().strip('$')}$", reading, parsing_timeout=SECONDS)
            for text in (gold, answer)
        ]
        return all(map(has_letters, values, letters)) and verify(*values, timeout_seconds=SECONDS)

    serve(compare, MEMORY)


if __name__ == "__main__":
    main()
