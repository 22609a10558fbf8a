"""Process that solves equations and inequalities with sympy. ``tools.actions.executors`` starts it.

A question is ``{"tool": "SolveEquation", "statements": ["x=='5'"], "unknown": "x"}``. Statements are parsed by ``ast``
(``tools.actions.expressions``), since sympy's parsers call ``eval``. It is a separate process because a question may
take unbounded time and memory. The sandbox's jails have only numpy.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy
from sympy import Max, Min, Rational, S, Symbol

from coterie.tools.actions.expressions import OPERATIONS, Failed, compute, format_number, parse
from coterie.tools.line_process import serve

MEMORY = 2 * 2**30
MAX_EXPONENT = 64
MAX_SOLUTIONS = 64


def _answer(question: dict[str, Any]) -> dict[str, str]:
    try:
        nodes = [parse(source) for source in question["statements"]]
        names = {
            child.id for node in nodes for child in ast.walk(node) if isinstance(child, ast.Name)
        }
        if not names - {"pi", *_OPERATIONS}:
            raise Failed("there is no unknown in it")
        statements = [_build(node) for node in nodes]
        if question["tool"] == "SolveEquation":
            return {"value": _solve(statements, question["unknown"])}
        return {"value": _range(statements)}
    except Failed as error:
        return {"error": str(error)}
    except ZeroDivisionError:
        return {"error": "a number is divided by 0"}
    except RecursionError:
        return {"error": "it nests too deep"}
    except (NotImplementedError, ValueError, TypeError, AttributeError) as error:
        return {"error": f"sympy can't solve it ({type(error).__name__})"}


def _power(base: Any, exponent: Any) -> Any:
    # A huge power would take all memory before it can be simplified.
    if exponent.is_number and not abs(exponent) <= MAX_EXPONENT:
        raise Failed(f"a power is higher than {MAX_EXPONENT}")
    if base.is_number and not exponent.is_number and abs(base) > 10**6:
        raise Failed("the base of a power is too large")
    return base**exponent


def _factorial(value: Any) -> Any:
    if not (value.is_Integer and 0 <= value <= MAX_EXPONENT):
        raise Failed(f"a factorial is taken of whole numbers up to {MAX_EXPONENT}")
    return sympy.factorial(value)


def _divide(a: Any, b: Any) -> Any:
    if b.is_zero:
        raise ZeroDivisionError
    return a / b


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **{name: OPERATIONS[name] for name in ("Add", "Sub", "Mult", "USub", "UAdd", "percent")},
    "Div": _divide,
    "FloorDiv": lambda a, b: sympy.floor(_divide(a, b)),
    "Pow": _power,
    "Mod": sympy.Mod,
    "mod": sympy.Mod,
    "factorial": _factorial,
    "abs": sympy.Abs,
    "ceil": sympy.ceiling,
    "min": Min,
    "max": Max,
    "sum": lambda *values: sum(values, S.Zero),
    "mean": lambda *values: sum(values, S.Zero) / len(values),
    "ln": sympy.log,
    "log2": lambda a: sympy.log(a, 2),
    "log10": lambda a: sympy.log(a, 10),
    **{
        name: getattr(sympy, name)
        for name in ("sqrt", "cbrt", "floor", "exp", "log", "sin", "cos", "tan")
    },
}
_RELATIONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}
Statement = tuple[list[Any], list[type[ast.cmpop]]]
"""Sides, and the relations between them."""


def _build(node: ast.expr) -> Statement:
    sides, relations = [node], list[type[ast.cmpop]]()
    if isinstance(node, ast.Compare):
        sides, relations = [node.left, *node.comparators], list(map(type, node.ops))
    return [compute(side, Rational, _symbol, _apply) for side in sides], relations


def _symbol(name: str) -> Any:
    # Declared as real, so that sympy leaves out complex solutions.
    return sympy.pi if name == "pi" else Symbol(name, real=True)


def _apply(name: str, values: Sequence[Any]) -> Any:
    if name not in _OPERATIONS:
        raise Failed(f"{name} can't stand in an equation")
    return _OPERATIONS[name](*values)


def _solve(statements: list[Statement], unknown: str | None) -> str:
    """Return ``7`` or ``-2, 2`` for one unknown, and ``x = 3, y = 4`` for several, with ``;`` between solutions."""
    if any(set(relations) - {ast.Eq} for _, relations in statements):
        raise Failed("an inequality stands among the equations")
    # ``a = b = c`` gives two equations, and an expression alone is set to 0.
    equations = [
        a - b for sides, _ in statements for a, b in zip(sides, sides[1:] or [S.Zero], strict=False)
    ]
    if all(sympy.simplify(equation) == 0 for equation in equations):
        raise Failed("every value solves it")
    symbols = sorted(set().union(*(equation.free_symbols for equation in equations)), key=str)
    unknowns = [symbol for symbol in symbols if symbol.name == unknown] or symbols
    # A system is solved for all of its unknowns, even if only one of them is requested.
    candidates = sympy.solve(equations, unknowns if len(equations) == 1 else symbols, dict=True)
    solutions = [
        {symbol.name: _text(values[symbol]) for symbol in unknowns if symbol in values}
        for values in candidates[:MAX_SOLUTIONS]
    ]
    solutions = [solution for solution in solutions if solution]
    if not solutions:
        raise Failed("it has no real solution")
    if all(len(solution) == 1 for solution in solutions):
        return ", ".join(
            dict.fromkeys(value for solution in solutions for value in solution.values())
        )
    return "; ".join(
        ", ".join(f"{name} = {value}" for name, value in solution.items()) for solution in solutions
    )


def _range(statements: list[Statement]) -> str:
    """Return intervals such as ``(-2, 2]`` with ``U`` between them, points as ``{3}``, or ``no solution``."""
    relations = [
        _RELATIONS[relation](a, b)
        for sides, names in statements
        for relation, a, b in zip(names, sides, sides[1:], strict=False)
    ]
    if not relations:
        raise Failed("there is no inequality in it")
    symbols = set().union(*(relation.free_symbols for relation in relations))
    if len(symbols) > 1:
        raise Failed(f"it has {len(symbols)} unknowns, and 1 can be solved for")
    symbol = next(iter(symbols), None)
    # Relations without an unknown are true or false already.
    sets = [
        S.Reals if relation is S.true else S.EmptySet if relation is S.false
        else sympy.solve_univariate_inequality(relation, symbol, relational=False)
        for relation in relations
    ]  # fmt: skip
    # All inequalities must hold, so the solution is the intersection of their sets.
    intersection = reduce(lambda a, b: a.intersect(b), sets)
    parts = intersection.args if isinstance(intersection, sympy.Union) else (intersection,)
    return " U ".join(text for part in parts for text in _pieces(part)) or "no solution"


def _pieces(part: Any) -> list[str]:
    if part is S.EmptySet:
        return []
    if part is S.Reals:
        part = sympy.Interval(-sympy.oo, sympy.oo)
    if isinstance(part, sympy.FiniteSet):
        return [
            f"{{{_text(element)}}}"
            for element in sorted(part.args, key=lambda element: element.evalf())
        ]
    if not isinstance(part, sympy.Interval):
        raise Failed("its solution is not made of intervals")
    left_bracket, right = "[("[bool(part.left_open)], "])"[bool(part.right_open)]
    return [f"{left_bracket}{_text(part.start)}, {_text(part.end)}{right}"]


def _text(value: Any) -> str:
    """Format numbers like a calculation, and infinity and terms with unknowns like sympy."""
    if not value.is_number or not value.is_finite:
        return str(value)
    exact = isinstance(value, Rational)
    return format_number(Fraction(value.p, value.q) if exact else float(value.evalf(17)))


if __name__ == "__main__":
    serve(_answer, MEMORY)
