"""Process that solves equations and inequalities with sympy. ``tools.actions.executors`` starts it.

Reads one line of JSON per question: ``{"ask": "equations", "statements": [[sides, relations], ...], "unknown": "x"}``.
Each side is a list of steps (``tools.actions.expressions``), from which sympy objects are built. Its parsers are never
used, since they call ``eval``. It is a separate process because a question may take unbounded time and memory. The
sandbox's jails have only numpy, so they can't import sympy.
"""

import json
import resource
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
from sympy import Integer, Max, Min, Rational, S, Symbol

MEMORY = 2 * 2**30
"""Bytes of address space."""
MAX_EXPONENT = 64
"""Absolute limit of exponents."""
MAX_SOLUTIONS = 64


class NoAnswer(Exception):
    """A question has no answer. The message says why."""


def main() -> None:
    """Answer each input line."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        pairs = question["statements"]
        steps = [step for sides, _ in pairs for side in sides for step in side]
        if not any(kind == "name" and name != "pi" for kind, name, _ in steps):
            raise NoAnswer("there is no unknown in it")
        statements = [(list(map(_build, sides)), relations) for sides, relations in pairs]
        if question["ask"] == "equations":
            return {"solutions": _solve(statements, question["unknown"])}
        return {"pieces": _range(statements)}
    except NoAnswer as error:
        return {"error": str(error)}
    except ZeroDivisionError:
        return {"error": "a number is divided by 0"}
    except RecursionError:
        return {"error": "it nests too deep"}
    except (NotImplementedError, ValueError, TypeError, AttributeError) as error:
        return {"error": f"sympy can't solve it ({type(error).__name__})"}


def _power(base: Any, exponent: Any) -> Any:
    if exponent.is_number and not abs(exponent) <= MAX_EXPONENT:
        raise NoAnswer(f"a power is higher than {MAX_EXPONENT}")
    if base.is_number and not exponent.is_number and abs(base) > 10**6:
        raise NoAnswer("the base of a power is too large")
    return base**exponent


def _factorial(value: Any) -> Any:
    if not (value.is_Integer and 0 <= value <= MAX_EXPONENT):
        raise NoAnswer(f"a factorial is taken of whole numbers up to {MAX_EXPONENT}")
    return sympy.factorial(value)


def _divide(a: Any, b: Any) -> Any:
    if b.is_zero:
        raise ZeroDivisionError
    return a / b


_BUILD: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "//": lambda a, b: sympy.floor(_divide(a, b)),
    "^": _power,
    "remainder": sympy.Mod,
    "mod": sympy.Mod,
    "negative": lambda a: -a,
    "!": _factorial,
    "factorial": _factorial,
    "%": lambda a: a / 100,
    "sqrt": sympy.sqrt,
    "cbrt": sympy.cbrt,
    "abs": sympy.Abs,
    "floor": sympy.floor,
    "ceil": sympy.ceiling,
    "min": Min,
    "max": Max,
    "sum": lambda *values: sum(values, S.Zero),
    "mean": lambda *values: sum(values, S.Zero) / len(values),
    "exp": sympy.exp,
    "ln": sympy.log,
    "log": sympy.log,
    "log2": lambda a: sympy.log(a, 2),
    "log10": lambda a: sympy.log(a, 10),
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
}
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": sympy.Eq,
    "!=": sympy.Ne,
    "<": sympy.Lt,
    "<=": sympy.Le,
    ">": sympy.Gt,
    ">=": sympy.Ge,
}


def _build(steps: list[Any]) -> Any:
    stack: list[Any] = []
    for kind, name, count in steps:
        if kind == "number":
            stack.append(Rational(name))
        elif kind == "name":
            stack.append(sympy.pi if name == "pi" else Symbol(name, real=True))
        elif name not in _BUILD:
            raise NoAnswer(f"{name} can't stand in an equation")
        else:
            values = stack[-count:]
            del stack[-count:]
            stack.append(_BUILD[name](*values))
    return stack[0]


def _solve(statements: list[Any], unknown: str | None) -> list[dict[str, str]]:
    equations = []
    for sides, relations in statements:
        if set(relations) - {"="}:
            raise NoAnswer("an inequality stands among the equations")
        equations += [a - b for a, b in zip(sides, sides[1:] or [S.Zero], strict=False)]
    if all(sympy.simplify(one) == 0 for one in equations):
        raise NoAnswer("every value solves it")
    symbols = sorted(set().union(*(one.free_symbols for one in equations)), key=str)
    unknowns = [one for one in symbols if one.name == unknown] or symbols
    candidates = sympy.solve(equations, unknowns if len(equations) == 1 else symbols, dict=True)
    solutions = [{one: values[one] for one in unknowns if one in values} for values in candidates]
    if not any(solutions):
        raise NoAnswer("it has no real solution")
    return [
        {symbol.name: _text(value) for symbol, value in one.items()}
        for one in solutions[:MAX_SOLUTIONS]
        if one
    ]


def _range(statements: list[Any]) -> list[dict[str, Any]]:
    relations = [
        _RELATIONS[name](a, b)
        for sides, names in statements
        for name, a, b in zip(names, sides, sides[1:], strict=False)
    ]
    if not relations:
        raise NoAnswer("there is no inequality in it")
    symbols = set().union(*(one.free_symbols for one in relations))
    if len(symbols) > 1:
        raise NoAnswer(f"it has {len(symbols)} unknowns, and 1 can be solved for")
    symbol = next(iter(symbols), None)
    sets = [
        S.Reals if one is S.true else S.EmptySet if one is S.false
        else sympy.solve_univariate_inequality(one, symbol, relational=False)
        for one in relations
    ]  # fmt: skip
    whole = reduce(lambda a, b: a.intersect(b), sets)
    return [piece for one in _parts(whole) for piece in _pieces(one)]


def _parts(whole: Any) -> tuple[Any, ...]:
    if whole is S.EmptySet:
        return ()
    return whole.args if isinstance(whole, sympy.Union) else (whole,)


def _pieces(part: Any) -> list[dict[str, Any]]:
    if part is S.Reals:
        part = sympy.Interval(-sympy.oo, sympy.oo)
    if isinstance(part, sympy.FiniteSet):
        return [{"only": _text(one)} for one in sorted(part.args, key=lambda one: one.evalf())]
    if not isinstance(part, sympy.Interval):
        raise NoAnswer("its solution is not made of intervals")
    return [
        {
            "from": _text(part.start),
            "to": _text(part.end),
            "open": [bool(part.left_open), bool(part.right_open)],
        }
    ]


def _text(value: Any) -> str:
    """Format fractions exactly, other numbers as decimals, and terms with unknowns as sympy does."""
    if value in (sympy.oo, -sympy.oo):
        return "inf" if value == sympy.oo else "-inf"
    if isinstance(value, Integer | Rational):
        return str(value)
    if value.is_number:
        return repr(float(value.evalf(17)))
    return str(value)


if __name__ == "__main__":
    main()
