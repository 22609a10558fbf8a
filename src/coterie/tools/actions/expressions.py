r"""Parse calculations, equations and inequalities into steps for a stack machine, and evaluate calculations.

``2(x + 1)`` becomes ``2 x 1 + *``. The syntax has numbers (``1,200``, ``.5``, ``3 1/4``, ``2e3``, currency signs),
names, ``+ - * / // ^ **``, ``%`` (percent, or the remainder before a number), ``!``, the functions of
:data:`FUNCTIONS`, implicit products, and common LaTeX. The parser does not recurse and refuses everything else, so text
of a model never reaches an interpreter. Calculations are exact if possible, else in floats (roots, logarithms). Numbers
have a limit of bits, so evaluation is fast: ``9^9^9^9`` is refused.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from coterie.errors import did_you_mean

MAX_CHARACTERS = 1000
MAX_STEPS = 300

FUNCTIONS = (
    "sqrt", "cbrt", "abs", "floor", "ceil", "round", "min", "max", "sum", "mean", "gcd", "lcm", "factorial",
    "exp", "ln", "log", "log2", "log10", "sin", "cos", "tan", "mod",
)  # fmt: skip
"""Names that are functions if ``(`` follows."""
Step = tuple[Literal["number", "name", "operator", "function"], str, int]
"""Kind of step, its number or name, and the number of values it takes from the stack."""
Expression = tuple[Step, ...]
Lookup = Callable[[str], str | None]
"""Function from the name of a result to its value, or ``None``."""


class Unreadable(ValueError):
    """A text does not follow the syntax. The message says why."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Expressions with relations between them: ``1 < x <= 5`` has three sides."""

    sides: tuple[Expression, ...]
    relations: tuple[str, ...] = ()
    """Relations between the sides: ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``."""


_SPELLINGS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"[−–]", "-"), (r"[×·]|\\times(?![a-z])|\\cdot(?![a-z])", "*"), (r"÷|\\div(?![a-z])", "/"), (r"\*\*", "^"),
        (r"≤|\\leq?(?![a-z])|=<", "<="), (r"≥|\\geq?(?![a-z])|=>", ">="), (r"≠|\\neq?(?![a-z])", "!="), (r"==", "="),
        (r"²", "^2"), (r"³", "^3"), (r"√|\\sqrt(?=\s?\{)", "sqrt"), (r"π|\\pi(?![a-z])", " pi "),
        (r"\\left(?![a-z])|\\right(?![a-z])|\\[,!; ]", ""), (r"\\?[$€£]", ""), (r"\\%", "%"),
        (r"(?<=[\d)]) ?[xX] ?(?=[\d.])", "*"),
    )
)  # fmt: skip
_FRACTION = re.compile(r"\\[dt]?frac ?\{([^{}]*)\} ?\{([^{}]*)\}")
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3}(?![\w.]))?|\.\d+"
_TOKEN = re.compile(
    rf"""\s*(?:(?P<mixed>\d+\ \d+\ ?/\ ?\d+)(?![\d.])
    |(?P<grouped>\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?)
    |(?P<number>{_NUMBER})
    |(?P<name>[A-Za-z_]\w{{0,63}})
    |(?P<relation><=|>=|!=|[=<>])
    |(?P<sign>//|[-+*/^%!(),{{}}\[\]]))""",
    re.VERBOSE,
)
_WORDED = re.compile(
    r"(?:[A-Za-z]+ )*[$€£]?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?: [A-Za-z][A-Za-z ]*)?\.?"
)
_MODULO = re.compile(r"\s*(?!of\b)[\w.(]")
_CALL = re.compile(r"\s*\(")
_RESULT = re.compile(r"R\d{1,4}|Output")
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "remainder": 2, "negative": 3, "^": 4}
_RIGHT = ("negative", "^")


def read(text: str, lookup: Lookup = lambda name: None) -> Statement:
    """Parse a text. Raises :class:`Unreadable`.

    A name that ``lookup`` knows is replaced by its value, a number or an expression. If the name is the whole text, its
    value may also be an equation.
    """
    value = lookup(text.strip()) if _RESULT.fullmatch(text.strip()) else None
    return _Reader(text if value is None else value, lookup if value is None else None).read()


class _Reader:
    """Shunting-yard parser: values go to ``done``; operators wait for operators of higher precedence."""

    def __init__(self, text: str, lookup: Lookup | None) -> None:
        if len(text) > MAX_CHARACTERS:
            raise Unreadable(f"it has more than {MAX_CHARACTERS:,} characters")
        for _ in range(3):
            text = _FRACTION.sub(r"((\1)/(\2))", text)
        for pattern, instead in _SPELLINGS:
            text = pattern.sub(instead, text)
        self.text = text.replace("sqrt{", "sqrt(").translate(str.maketrans("{}[]", "()()"))
        self.lookup = lookup
        self.sides: list[Expression] = []
        self.relations: list[str] = []
        self.done: list[Step] = []
        self.waiting: list[tuple[str, int]] = []
        """Operators, and open brackets as ``(`` or the function's name, each with its number of arguments."""
        self.wants_value = True
        self.after_number = False

    def read(self) -> Statement:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise Unreadable(f"{self.text[at:].strip()[:20]!r} can't be read")
            at = self._token(match)
        self._side()
        return Statement(tuple(self.sides), tuple(self.relations))

    def _token(self, match: re.Match[str]) -> int:
        """Process one token; return where the next begins."""
        kind, at = match.lastgroup, match.end()
        token = match[kind or 0]
        if kind == "grouped" and self._in_call():
            token = token.partition(",")[0]  # max(1,200) has two arguments
            at = match.start(kind) + len(token)
        if kind in ("mixed", "grouped", "number"):
            if not self.wants_value and self.after_number:
                raise Unreadable(f"no sign stands before {token!r}")
            self._value(("number", _plain(token), 0))
            self.after_number = True
        elif kind == "name":
            return self._name(token, at)
        elif kind == "relation":
            self._side()
            self.relations.append(token)
            self.wants_value = True
        else:
            self._sign(token, at)
        return at

    def _in_call(self) -> bool:
        brackets = [name for name, _ in self.waiting if name not in _PRECEDENCE]
        return bool(brackets) and brackets[-1] != "("

    def _name(self, name: str, at: int) -> int:
        if name == "of" and not self.wants_value:
            self._operator("*")
        elif name == "mod" and not self.wants_value:
            self._operator("remainder")
        elif name.lower() in FUNCTIONS and (call := _CALL.match(self.text, at)):
            self._product()
            self.waiting.append((name.lower(), 1))
            self.wants_value = True
            return call.end()
        elif _CALL.match(self.text, at) and len(name) > 1 and not _RESULT.fullmatch(name):
            hint = did_you_mean(name, FUNCTIONS)
            raise Unreadable(f"there is no function {name}" + (f": {hint.strip()}" if hint else ""))
        elif (value := self.lookup(name) if self.lookup else None) is not None:
            self._product()
            self._put(*_alone(name, value))
            self.wants_value = self.after_number = False
        elif _RESULT.fullmatch(name):
            raise Unreadable(f"{name} has no value")
        else:
            self._value(("name", name, 0))
        return at

    def _sign(self, sign: str, at: int) -> None:
        if sign == "(":
            self._product()
            self.waiting.append(("(", 1))
            self.wants_value = True
        elif sign == ")":
            self._close()
        elif sign == ",":
            self._comma()
        elif sign in "+-" and self.wants_value:
            if sign == "-":
                self.waiting.append(("negative", 1))
        elif sign == "!" or (sign == "%" and not _MODULO.match(self.text, at)):
            self._needs_value_before(sign)
            self._put(("operator", sign, 1))
        else:
            self._operator("remainder" if sign == "%" else sign)

    def _needs_value_before(self, what: str) -> None:
        if self.wants_value:
            raise Unreadable(f"nothing stands before {what!r}")

    def _value(self, step: Step) -> None:
        self._product()
        self._put(step)
        self.wants_value = self.after_number = False

    def _product(self) -> None:
        if not self.wants_value:
            self._operator("*")

    def _put(self, *steps: Step) -> None:
        self.done += steps
        if len(self.done) > MAX_STEPS:
            raise Unreadable(f"it has more than {MAX_STEPS} steps")

    def _operator(self, name: str) -> None:
        self._needs_value_before(name)
        rank = _PRECEDENCE[name]
        while self.waiting and (top := _PRECEDENCE.get(self.waiting[-1][0])) is not None:
            if top < rank or (top == rank and name in _RIGHT):
                break
            self._pop()
        self.waiting.append((name, 2))
        self.wants_value = True
        if len(self.waiting) > MAX_STEPS:
            raise Unreadable(f"it has more than {MAX_STEPS} steps")

    def _pop(self) -> None:
        name, count = self.waiting.pop()
        self._put(("operator", name, count))

    def _pop_to_bracket(self, what: str) -> None:
        self._needs_value_before(what)
        while self.waiting and self.waiting[-1][0] in _PRECEDENCE:
            self._pop()
        if not self.waiting:
            raise Unreadable(f"{what!r} stands outside of brackets")

    def _close(self) -> None:
        self._pop_to_bracket(")")
        name, count = self.waiting.pop()
        if name != "(":
            self._put(("function", name, count))
        self.wants_value = self.after_number = False

    def _comma(self) -> None:
        self._pop_to_bracket(",")
        name, count = self.waiting.pop()
        if name == "(":
            raise Unreadable("a comma stands where one value is expected")
        self.waiting.append((name, count + 1))
        self.wants_value = True

    def _side(self) -> None:
        """Finish one side of the statement."""
        if self.wants_value:
            raise Unreadable("a value is missing at its end" if self.done else "a value is missing")
        while self.waiting:
            if self.waiting[-1][0] not in _PRECEDENCE:
                raise Unreadable("`(` is not closed")
            self._pop()
        self.sides.append(tuple(self.done))
        self.done = []


def _plain(token: str) -> str:
    """Rewrite a number for ``Fraction``; a mixed number becomes an improper fraction."""
    if " " in token.strip() and "/" in token:
        whole, _, part = token.strip().partition(" ")
        above, below = (int(one) for one in part.split("/"))
        if not below:
            raise Unreadable("a number is divided by 0")
        return f"{int(whole) * below + above}/{below}"
    return token.replace(",", "").rstrip(".")


def _alone(name: str, value: str) -> Expression:
    """Parse an earlier value; of ``x = 5`` and ``about 1,040 metres`` take the number."""
    if number := _WORDED.fullmatch(value.strip()):
        return (("number", _plain(number[1]), 0),)
    try:
        statement = _Reader(value, None).read()
    except Unreadable as error:
        raise Unreadable(f"{name} is not a number: {value[:40]!r}") from error
    if len(statement.sides) == 1:
        return statement.sides[0]
    if (
        statement.relations == ("=",)
        and statement.sides[0][0][0] == "name" == statement.sides[0][-1][0]
    ):
        return statement.sides[1]
    raise Unreadable(f"{name} is not a number: {value[:40]!r}")


# -- arithmetic ---------------------------------------------------------------------------------

MAX_BITS = 4096
"""Bits of a numerator or denominator."""
MAX_FACTORIAL = 300
DIGITS = 12
"""Significant digits of numbers without a short exact form."""

Number = Fraction | float
CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e}


class NoValue(ValueError):
    """A calculation has no value. The message says why."""


def calculate(
    text: str, lookup: Lookup = lambda name: None, names: Mapping[str, Number] = CONSTANTS
) -> Number:
    """Evaluate a text such as ``(R1 + 48) / 2``; ``lookup`` has the results, ``names`` other values.

    The value of ``x = 2 + 3`` is its right side. Raises ``Unreadable`` or :class:`NoValue`.
    """
    statement = read(text, lookup)
    has_name = statement.sides[0][0][0] == "name" and len(statement.sides[0]) == 1
    if statement.relations and not (statement.relations == ("=",) and has_name):
        raise Unreadable("it compares, and so is not a calculation")
    stack: list[Number] = []
    for kind, name, count in statement.sides[-1]:
        if kind == "number":
            stack.append(_within(Fraction(name)))
        elif kind == "name":
            if name not in names:
                raise NoValue(f"{name} has no value")
            stack.append(names[name])
        else:
            values = stack[-count:]
            del stack[-count:]
            stack.append(_within(_apply(name, values)))
    (value,) = stack
    return value


def format_number(value: Number) -> str:
    """Format a number: integers and finite decimals in full, other fractions as ``1/3``, floats with 12 digits.

    Raises :class:`NoValue` if it is too large.
    """
    _within(value)
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        below = value.denominator
        for prime in (2, 5):
            while below % prime == 0:
                below //= prime
        if below > 1 and max(abs(value.numerator), value.denominator) < 10**DIGITS:
            return str(value)
        places = next((n for n in range(1, DIGITS + 1) if 10**n % value.denominator == 0), None)
        if places is not None:
            digits = str(int(abs(value) * 10**places)).rjust(places + 1, "0")
            return _trim(f"{'-' * (value < 0)}{digits[:-places]}.{digits[-places:]}")
        try:
            value = float(value)
        except OverflowError as error:
            raise NoValue("a number is too large") from error
    if value == int(value) and abs(value) < 10**DIGITS:
        return str(int(value))
    return _trim(f"{value:.{DIGITS}g}")


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def _within(value: Number) -> Number:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise NoValue("a number is too large")
    elif not math.isfinite(value):
        raise NoValue("a number is too large")
    return value


def _apply(name: str, values: Sequence[Number]) -> Number:
    """Apply an operator or function."""
    fewest, most, do = _OPERATIONS[name]
    if not fewest <= len(values) <= most:
        raise NoValue(f"{name} does not take {len(values)} values")
    try:
        return do(*values)
    except NoValue:
        raise
    except ZeroDivisionError as error:
        raise NoValue("a number is divided by 0") from error
    except OverflowError as error:
        raise NoValue("a number is too large") from error
    except ValueError as error:
        raise NoValue(f"{name} has no value there") from error


def _exact_or_float(do: Callable[[Number, Number], Number]) -> Callable[[Number, Number], Number]:
    """Compute exactly on two fractions, else in floats."""

    def work(a: Number, b: Number) -> Number:
        exact = isinstance(a, Fraction) and isinstance(b, Fraction)
        return do(a, b) if exact else do(float(a), float(b))

    return work


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            return _whole_power(base, int(exponent))
        if base >= 0 and exponent.denominator <= 16:
            degree = exponent.denominator
            above, below = (_whole_root(one, degree) for one in base.as_integer_ratio())
            if above and below:  # 0 is left to floats: 0.0, or a division by 0
                return _whole_power(Fraction(above, below), exponent.numerator)
        if base < 0 and exponent.denominator % 2:
            sign = -1 if exponent.numerator % 2 else 1
            return sign * _power(-base, exponent)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise NoValue("it has no real value")
    return float(result)


def _whole_power(base: Fraction, exponent: int) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and (bits - 1) * abs(exponent) > MAX_BITS:
        raise NoValue("a number is too large")
    if abs(base) == 1:  # the exponent may be huge
        exponent %= 2
    return base**exponent


def _whole_root(value: int, degree: int) -> int | None:
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < value else (low, middle)
    return low if low**degree == value else None


def _whole(value: Number) -> int:
    if value != int(value):
        raise NoValue(f"{format_number(value)} is not a whole number")
    return int(value)


def _factorial(value: Number) -> Fraction:
    if value < 0 or value > MAX_FACTORIAL:
        raise NoValue(f"the factorial is taken of 0 to {MAX_FACTORIAL}")
    return Fraction(math.factorial(_whole(value)))


def _round(value: Number, places: Number = Fraction(0)) -> Fraction:
    """Round half away from 0."""
    if places < -30 or places > 30:
        raise NoValue("round takes at most 30 places")
    scale = Fraction(10) ** _whole(places)
    scaled = math.floor(abs(Fraction(value)) * scale + Fraction(1, 2)) / scale
    return scaled if value >= 0 else -scaled


def _sum(*values: Number) -> Number:
    total: Number = Fraction(0)
    for value in values:
        total = _OPERATIONS["+"][2](total, value)
    return total


_ANY = 1000
_OPERATIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "+": (2, 2, _exact_or_float(lambda a, b: a + b)),
    "-": (2, 2, _exact_or_float(lambda a, b: a - b)),
    "*": (2, 2, _exact_or_float(lambda a, b: a * b)),
    "/": (2, 2, _exact_or_float(lambda a, b: a / b)),
    "//": (2, 2, _exact_or_float(lambda a, b: Fraction(a // b))),
    "remainder": (2, 2, _exact_or_float(lambda a, b: a % b)),
    "mod": (2, 2, _exact_or_float(lambda a, b: a % b)),
    "^": (2, 2, _power),
    "negative": (1, 1, lambda a: -a),
    "!": (1, 1, _factorial),
    "factorial": (1, 1, _factorial),
    "%": (1, 1, lambda a: a / 100),
    "sqrt": (1, 1, lambda a: _power(a, Fraction(1, 2))),
    "cbrt": (1, 1, lambda a: _power(a, Fraction(1, 3))),
    "abs": (1, 1, abs),
    "floor": (1, 1, lambda a: Fraction(math.floor(a))),
    "ceil": (1, 1, lambda a: Fraction(math.ceil(a))),
    "round": (1, 2, _round),
    "min": (1, _ANY, lambda *all_of: min(all_of)),
    "max": (1, _ANY, lambda *all_of: max(all_of)),
    "sum": (1, _ANY, _sum),
    "mean": (1, _ANY, lambda *all_of: _sum(*all_of) / len(all_of)),
    "gcd": (1, _ANY, lambda *all_of: Fraction(math.gcd(*map(_whole, all_of)))),
    "lcm": (1, 16, lambda *all_of: Fraction(math.lcm(*map(_whole, all_of)))),
    "exp": (1, 1, math.exp),
    "ln": (1, 1, math.log),
    "log": (1, 2, math.log),
    "log2": (1, 1, math.log2),
    "log10": (1, 1, math.log10),
    "sin": (1, 1, math.sin),
    "cos": (1, 1, math.cos),
    "tan": (1, 1, math.tan),
}
