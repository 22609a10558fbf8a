r"""Parser for answers that state exactly one number.

The number may have a sign, a currency, a percent sign, a unit or a counted noun (``environments.units``), a name
(``x = ``, ``the answer is``), LaTeX and markdown. With any other text (another number, a power, a hedge such as
``or 99`` or ``about``) the answer is not a number, so an answer can't state several. The rules follow Lewkowycz et al.
2022, appendix D, as far as they concern numbers, but no text is ignored.
"""

import re
from fractions import Fraction

from coterie.datasets.problems import value as value_of
from coterie.environments.units import MONEY, is_unit, tells

MAX_LENGTH = 200
"""Maximum characters of an answer that states a number."""
DECIMALS = 40
"""Maximum decimals of a normalized number; numbers with more are written as fractions."""

_END = r"(?![a-zA-Z])"
_SPELLINGS = (
    (re.compile(r"[−–]"), "-"),
    (re.compile(r",\s*\\!\s*|\{,\}"), ","),
    (re.compile(r"\\(?:left|right|displaystyle)" + _END + r"|\\[!()\[\]]|(?<!\w)(?:\*\*|`)|(?:\*\*|`)(?!\w)"), ""),
    (re.compile(r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf)|mbox|boxed)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\([%$€£])"), r"\1"),
    (re.compile(r"\\[ ,;:]|(?<=\w)~|\\q?quad" + _END), " "),
    (re.compile(r"\\(?:times|cdot)" + _END + "|·"), "×"),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree" + _END + "|°"), " degrees "),
    (re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))"), r" \1\2/\3\4 "),
    (re.compile(r"\s+"), " "),
)  # fmt: skip
_PLAIN = (
    r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
)
_STATED = re.compile(
    rf"(?P<minus>[+-]?) ?(?:{MONEY} ?(?P<inner>[+-]?) ?)?"
    rf"(?:(?P<whole>[0-9]+) (?P<part>[0-9]+) ?/ ?(?P<parts>[0-9]+)"
    rf"|(?P<above>[+-]?(?:{_PLAIN})) ?/ ?(?P<below>{_PLAIN})"
    rf"|(?P<plain>{_PLAIN})(?:(?:[eE]| ?[×x*] ?10 ?\^ ?\{{?)(?P<power>[+-]?[0-9]{{1,2}})\}}?)?)"
    rf"(?P<rest>(?![0-9.]).*)"
)
_CALLED = re.compile(r"(?:[^\W\d_]|[\\ ',(){}]|_[0-9]*)+")
_CALL = re.compile(r"(?P<name>[^:]*?)(?::| is| are) (?P<rest>.*)")
_LETTERS = re.compile(r"[^\W\d_]+")


def number(text: str) -> str | None:
    """Return the normalized number that a text states (``1200.5`` for ``$1,200.50``), or ``None``."""
    value = _value(text)
    return None if value is None else _format(value)


def same_number(first: str, second: str) -> bool:
    """Return True if two answers state the same number, or are the same text without a number."""
    return (number(first) or first) == (number(second) or second)


def is_name(text: str) -> bool:
    words = _LETTERS.findall(text)
    return bool(_CALLED.fullmatch(text)) and r"\pm" not in text and not any(map(tells, words))


def _value(text: str) -> Fraction | None:
    if len(text) > MAX_LENGTH:
        return None
    for pattern, instead in _SPELLINGS:
        text = pattern.sub(instead, text)
    *left_sides, right_side = (_bare(part) for part in text.split("="))
    call = _CALL.fullmatch(right_side)
    if call and is_name(call["name"]):
        right_side = _bare(call["rest"])
    value = _parse(right_side)
    if value is None or not all(is_name(side) or _sum(side) == value for side in left_sides):
        return None
    return value


def _bare(text: str) -> str:
    text = text.strip(" $\"'").removesuffix(".").strip(" $\"'")
    while text[:1] + text[-1:] in ("()", "{}") and not set(text[1:-1]) & set("(){},"):
        text = text[1:-1].strip(" $")
    return text


def _parse(text: str) -> Fraction | None:
    match = _STATED.fullmatch(text)
    if match is None or (match["minus"] and match["inner"]):
        return None
    try:
        value = _core(match)
    except ZeroDivisionError:
        return None
    if not is_unit(match["rest"], singular=0 < value <= 1):
        return None
    return -value if "-" in (match["minus"], match["inner"]) else value


def _core(match: re.Match[str]) -> Fraction:
    if match["whole"]:
        return int(match["whole"]) + Fraction(int(match["part"]), int(match["parts"]))
    if match["above"]:
        return _plain(match["above"]) / _plain(match["below"])
    return _plain(match["plain"]) * Fraction(10) ** int(match["power"] or 0)


def _plain(text: str) -> Fraction:
    return Fraction(re.sub("[ ,]", "", text))


def _sum(text: str) -> Fraction | None:
    """Return the value of a calculation such as ``16 - 3 apples``; ``None`` for anything else."""
    value = _parse(text)
    if value is not None:
        return value
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(rf"{MONEY}|[^\W\d_]+", " ", text)
    try:
        return value_of(text.replace("×", "*").replace("÷", "/"))
    except ValueError:
        return None


def _format(value: Fraction) -> str:
    for digits in range(DECIMALS + 1):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            sign, text = "-" * (value < 0), str(abs(scaled.numerator)).rjust(digits + 1, "0")
            return sign + (f"{text[:-digits]}.{text[-digits:]}" if digits else text)
    return f"{value.numerator}/{value.denominator}"
