r"""Calculations, equations and inequalities in text of a model: Python's ``ast`` parses them, fractions compute them.

The text is first rewritten as Python: ``2(x + 1)`` becomes ``'2'*(x+'1')``. The syntax has numbers (``1,200``, ``.5``,
``3 1/4``, ``2e3``, currency signs), names, ``+ - * / // ^ **``, ``%`` (percent, or the remainder before a number),
``!``, the functions of :data:`FUNCTIONS`, implicit products, and common LaTeX. All else is refused.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from coterie.errors import did_you_mean

MAX_CHARACTERS = 1000
MAX_SOURCE = 4 * MAX_CHARACTERS
"""Characters of the Python text, which includes values of earlier results."""
Number = Fraction | float
CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e}
Lookup = Callable[[str], str | None]
"""Function from the name of a result to its value, or ``None``."""


class Failed(ValueError):
    """An action failed: a text can't be read or has no value. The message is for the model that wrote it."""


# Other spellings of signs. The order matters where patterns overlap.
_SPELLINGS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"[−–]", "-"), (r"[×·]|\\times(?![a-z])|\\cdot(?![a-z])", "*"), (r"÷|\\div(?![a-z])", "/"), (r"\*\*", "^"),
        (r"≤|\\leq?(?![a-z])|=<", "<="), (r"≥|\\geq?(?![a-z])|=>", ">="), (r"≠|\\neq?(?![a-z])", "!="), (r"==", "="),
        (r"²", "^2"), (r"³", "^3"), (r"√|\\sqrt(?=\s?\{)", "sqrt"), (r"π|\\pi(?![a-z])", " pi "),
        (r"\\left(?![a-z])|\\right(?![a-z])|\\[,!; ]", ""), (r"\\?[$€£]", ""), (r"\\%", "%"),
        (r"(?<=[\d)]) ?[xX] ?(?=[\d.])", "*"), (r"[{\[]", "("), (r"[}\]]", ")"),
    )
)  # fmt: skip
_FRACTION = re.compile(r"\\[dt]?frac ?\{([^{}]*)\} ?\{([^{}]*)\}")
_TOKEN = re.compile(
    r"""\s*(?:(?P<mixed>\d+\ \d+\ ?/\ ?\d+)(?![\d.])
    |(?P<grouped>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?)
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3}(?![\w.]))?|\.\d+)
    |(?P<call>[A-Za-z_]\w{0,63}(?=\s*\())
    |(?P<name>[A-Za-z_]\w{0,63})
    |(?P<sign><=|>=|!=|//|[-+*/^%!(),=<>]))""",
    re.VERBOSE | re.ASCII,
)
_WORDED = re.compile(
    r"(?:[A-Za-z]+ )*[$€£]?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?: [A-Za-z][A-Za-z ]*)?\.?"
)
_MODULO = re.compile(r"\s*(?!of\b)[\w.(]")
_RESULT = re.compile(r"R\d{1,4}|Output")
_SIGNS = {"^": "**", "=": "==", "of": "*", "mod": "%"}
_NUMBERS = ("mixed", "grouped", "number")


def to_python(text: str, lookup: Lookup = lambda name: None) -> str:
    """Rewrite a text as a Python expression with numbers as strings. Raises :class:`Failed`.

    A name that ``lookup`` knows is replaced by its value, a number or an expression. If the name is the whole text, its
    value may also be an equation.
    """
    if _RESULT.fullmatch(text.strip()) and (value := lookup(text.strip())) is not None:
        return to_python(value)
    if len(text) > MAX_CHARACTERS:
        raise Failed(f"it has more than {MAX_CHARACTERS:,} characters")
    # Three passes, from the inside out, for fractions within fractions.
    for _ in range(3):
        text = _FRACTION.sub(r"((\1)/(\2))", text)
    for pattern, instead in _SPELLINGS:
        text = pattern.sub(instead, text)
    text = text.rstrip()
    # kind of the last piece: a number, another value, a function; empty where a value is expected
    source, previous_kind, position = "", "", 0
    calls = [False]  # for each open bracket, whether it holds the arguments of a function
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise Failed(f"{text[position:].strip()[:20]!r} can't be read")
        kind = str(token.lastgroup)
        word, position = token[kind], token.end()
        if kind == "grouped" and calls[-1]:  # max(1,200) has two arguments
            position -= len(word) - word.index(",")
            word = word.partition(",")[0]
        # ``%`` is the remainder if a value follows, otherwise percent.
        if word == "!" or (word == "%" and not _MODULO.match(text, position)):
            source += ".factorial" if word == "!" else ".percent"
        elif (kind == "sign" and word != "(") or (previous_kind and word in ("of", "mod")):
            if word == ")" and len(calls) > 1:
                calls.pop()
            source, previous_kind = source + _SIGNS.get(word, word), "value" if word == ")" else ""
        else:
            if previous_kind == "number" and kind in _NUMBERS:
                raise Failed(f"no sign stands before {word!r}")
            # Two values without a sign between them are multiplied, as in ``2(x + 1)``.
            source += "*" if previous_kind in ("number", "value") else ""
            if word == "(":
                calls.append(previous_kind == "function")
                source, previous_kind = source + "(", ""
            elif kind in _NUMBERS:
                source, previous_kind = source + _number(word), "number"
            elif kind == "call" and word.lower() in FUNCTIONS:
                source, previous_kind = source + word.lower(), "function"
            else:
                source, previous_kind = source + _name(word, lookup, kind == "call"), "value"
        if len(source) > MAX_SOURCE:
            raise Failed(f"it has more than {MAX_SOURCE:,} characters with its results")
    return source


def parse(source: str) -> ast.expr:
    """Parse an expression of :func:`to_python`. Raises :class:`Failed`."""
    try:
        node = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Failed("it can't be read: a sign, value or bracket is missing") from error
    if isinstance(node, ast.Tuple):
        raise Failed("a comma stands where one value is expected")
    return node


def _number(token: str) -> str:
    if token.count(" ") and "/" in token:
        integer, _, part = token.partition(" ")
        above, _, below = part.partition("/")
        return f"('{integer}'+'{above.strip()}'/'{below.strip()}')"
    return f"'{token.replace(',', '').rstrip('.')}'"


def _name(name: str, lookup: Lookup, is_call: bool) -> str:
    """Return a variable, or the value of a result in brackets: of ``x = 5`` and ``about 1,040 metres`` the number."""
    value = lookup(name)
    if value is None:
        if _RESULT.fullmatch(name):
            raise Failed(f"{name} has no value")
        if is_call and len(name) > 1:
            hint = did_you_mean(name, FUNCTIONS).strip()
            raise Failed(f"there is no function {name}" + f": {hint}" * bool(hint))
        return name
    if number := _WORDED.fullmatch(value.strip()):
        return _number(number[1])
    # Parsed and written again, so a value can't change the expression around it.
    try:
        match parse(to_python(value)):
            case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[right]):
                return f"({ast.unparse(right)})"
            case node if not isinstance(node, ast.Compare):
                return f"({ast.unparse(node)})"
    except (Failed, RecursionError):
        pass
    raise Failed(f"{name} is not a number: {value[:40]!r}")


def compute(
    node: ast.expr,
    number: Callable[[str], Any],
    name: Callable[[str], Any],
    apply: Callable[[str, Sequence[Any]], Any],
) -> Any:
    """Compute an expression of :func:`parse`, where ``apply`` gets the name of an operation. Raises :class:`Failed`."""
    match node:
        case ast.Constant(value=str(text)):
            return number(text)
        case ast.Name(id=text):
            return name(text)
        case ast.BinOp(left=left, op=op, right=right):
            what, values = type(op).__name__, [left, right]
        case ast.UnaryOp(op=op, operand=value):
            what, values = type(op).__name__, [value]
        case ast.Attribute(value=value, attr=what):
            values = [value]
        case ast.Call(func=ast.Name(id=what), args=values, keywords=[]):
            pass
        case _:
            raise Failed("it is not one calculation")
    return apply(what, [compute(value, number, name, apply) for value in values])


# -- arithmetic ---------------------------------------------------------------------------------

MAX_BITS = 4096
"""Bits of a numerator or denominator."""
MAX_FACTORIAL = 300
DIGITS = 12
"""Significant digits of numbers without a short exact form."""


def calculate(
    text: str, lookup: Lookup = lambda name: None, names: Mapping[str, Number] = CONSTANTS
) -> Number:
    """Evaluate a text such as ``(R1 + 48) / 2``; ``lookup`` has the results, ``names`` other values.

    The value is exact if possible, else a float. The value of ``x = 2 + 3`` is its right side. Raises :class:`Failed`.
    """

    def value(name: str) -> Number:
        if name not in names:
            raise Failed(f"{name} has no value")
        return names[name]

    match parse(to_python(text, lookup)):
        case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[node]):
            pass
        case ast.Compare():
            raise Failed("it compares, and so is not a calculation")
        case node:
            pass
    try:
        # Numbers are strings in the source, so fractions get all of their digits.
        return compute(node, lambda digits: _within(Fraction(digits)), value, _apply)
    except RecursionError as error:
        raise Failed("it nests too deep") from error


def format_number(value: Number) -> str:
    """Format decimals in full, fractions as ``1/3``, floats with 12 digits. Raises :class:`Failed` if too large."""
    _within(value)
    if isinstance(value, Fraction):
        below = value.denominator
        # A decimal has few places if its denominator divides a small power of ten.
        decimals = next((n for n in range(DIGITS + 1) if 10**n % below == 0), None)
        if decimals is not None:
            return f"{Decimal(f'{value * 10**decimals}e-{decimals}'):f}"
        # Short fractions without a finite decimal form stay fractions.
        if 10**40 % below and max(abs(value.numerator), below) < 10**DIGITS:
            return str(value)
    try:
        # Adding 0.0 turns -0.0 into 0.0.
        return f"{float(value) + 0.0:.{DIGITS}g}"
    except OverflowError as error:
        raise Failed("a number is too large") from error


def _within(value: Number) -> Number:
    if isinstance(value, Fraction):
        is_large = max(map(int.bit_length, value.as_integer_ratio())) > MAX_BITS
    else:
        is_large = not math.isfinite(value)
    if is_large:
        raise Failed("a number is too large")
    return value


def _apply(name: str, values: Sequence[Number]) -> Number:
    try:
        value = OPERATIONS[name](*values)
        if isinstance(value, complex):
            raise Failed("it has no real value")
        return _within(Fraction(value) if isinstance(value, int) else value)
    except Failed:
        raise
    except ZeroDivisionError as error:
        raise Failed("a number is divided by 0") from error
    except OverflowError as error:
        raise Failed("a number is too large") from error
    except (TypeError, ValueError) as error:
        raise Failed(f"{name} has no value there") from error


def _power(base: Number, exponent: Number) -> Any:
    if not isinstance(base, Fraction) or not isinstance(exponent, Fraction):
        return float(base) ** float(exponent)
    degree = exponent.denominator
    if degree == 1:
        # The size is estimated first, because computing a huge power would take all memory.
        bits = max(map(int.bit_length, base.as_integer_ratio()))
        if bits > 1 and (bits - 1) * abs(exponent) > MAX_BITS:
            raise Failed("a number is too large")
        return base ** int(exponent)
    # Odd roots of negative numbers are real: the cube root of -8 is -2.
    if base < 0 and degree % 2:
        return _power(Fraction(-1), Fraction(exponent.numerator)) * _power(-base, exponent)
    # The root is exact if numerator and denominator have exact roots.
    root = Fraction(*(round(abs(part) ** (1 / degree)) for part in base.as_integer_ratio()))
    if base >= 0 and degree <= 16 and root**degree == base:
        return _power(root, Fraction(exponent.numerator))
    return float(base) ** float(exponent)


def _whole(value: Number) -> int:
    if value != int(value):
        raise Failed(f"{format_number(value)} is not a whole number")
    return int(value)


def _factorial(value: Number) -> int:
    if value < 0 or value > MAX_FACTORIAL:
        raise Failed(f"the factorial is taken of 0 to {MAX_FACTORIAL}")
    return math.factorial(_whole(value))


def _round(value: Number, decimals: Number = 0) -> Fraction:
    """Round half away from 0."""
    if not -30 <= float(decimals) <= 30:
        raise Failed("round takes at most 30 places")
    scale = Fraction(10) ** _whole(decimals)
    scaled = math.floor(abs(Fraction(value)) * scale + Fraction(1, 2)) / scale
    return scaled if value >= 0 else -scaled


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": lambda a, b: Fraction(a // b),
    "Mod": operator.mod,
    "Pow": _power,
    "USub": operator.neg,
    "UAdd": operator.pos,
    "percent": lambda a: a / 100,
    "sqrt": lambda a: _power(a, Fraction(1, 2)),
    "cbrt": lambda a: _power(a, Fraction(1, 3)),
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": _round,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": lambda *values: sum(values, Fraction(0)),
    "mean": lambda *values: sum(values, Fraction(0)) / len(values),
    "gcd": lambda *values: math.gcd(*map(_whole, values)),
    "lcm": lambda *values: math.lcm(*map(_whole, values)),
    "factorial": _factorial,
    "exp": math.exp,
    "ln": math.log,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "mod": operator.mod,
}
FUNCTIONS = tuple(name for name in OPERATIONS if name.islower() and name != "percent")
"""Names that are functions if ``(`` follows."""
