r"""The number that an answer states, if it states one number and nothing else.

Around the number there may be its sign, currency, a percent sign, a unit or what is counted
(``environments.units``), what is called so (``x = ``, ``the answer is``), LaTeX and markdown.
Whatever else is left over (another number, a power, a hedge such as ``or 99`` or ``about``) makes it
no number, so that an answer can't be several at once. The rules are those of Lewkowycz et al. 2022,
appendix D, as far as numbers need them, but nothing is thrown away unread.
"""

import re
from fractions import Fraction

from coterie.datasets.problems import value as value_of
from coterie.environments.units import MONEY, is_unit, tells

MAX_LENGTH = 200
"""Characters of an answer that can be a number."""
DECIMALS = 40
"""Most digits after the point of a spelling; what has more is spelled as a fraction."""

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
    """The number that a text states, in one spelling (``$1,200.50`` is ``1200.5``); else ``None``."""
    value = _value(text)
    return None if value is None else _spelled(value)


def same_number(first: str, second: str) -> bool:
    """Whether two answers state the same number; what states none equals its own text only."""
    return (number(first) or first) == (number(second) or second)


def is_name(text: str) -> bool:
    said = _LETTERS.findall(text)
    return bool(_CALLED.fullmatch(text)) and r"\pm" not in text and not any(map(tells, said))


def _value(text: str) -> Fraction | None:
    if len(text) > MAX_LENGTH:
        return None
    for pattern, instead in _SPELLINGS:
        text = pattern.sub(instead, text)
    *called, stated = (_bare(part) for part in text.split("="))
    named = _CALL.fullmatch(stated)
    if named and is_name(named["name"]):
        stated = _bare(named["rest"])
    value = _stated(stated)
    if value is None or not all(is_name(one) or _sum(one) == value for one in called):
        return None
    return value


def _bare(text: str) -> str:
    text = text.strip(" $\"'").removesuffix(".").strip(" $\"'")
    while text[:1] + text[-1:] in ("()", "{}") and not set(text[1:-1]) & set("(){},"):
        text = text[1:-1].strip(" $")
    return text


def _stated(text: str) -> Fraction | None:
    found = _STATED.fullmatch(text)
    if found is None or (found["minus"] and found["inner"]):
        return None
    try:
        value = _core(found)
    except ZeroDivisionError:
        return None
    if not is_unit(found["rest"], singular=0 < value <= 1):
        return None
    return -value if "-" in (found["minus"], found["inner"]) else value


def _core(found: re.Match[str]) -> Fraction:
    if found["whole"]:
        return int(found["whole"]) + Fraction(int(found["part"]), int(found["parts"]))
    if found["above"]:
        return _plain(found["above"]) / _plain(found["below"])
    return _plain(found["plain"]) * Fraction(10) ** int(found["power"] or 0)


def _plain(text: str) -> Fraction:
    return Fraction(re.sub("[ ,]", "", text))


def _sum(text: str) -> Fraction | None:
    """The value of a calculation such as ``16 - 3 apples``; ``None`` for anything else."""
    value = _stated(text)
    if value is not None:
        return value
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(rf"{MONEY}|[^\W\d_]+", " ", text)
    try:
        return value_of(text.replace("×", "*").replace("÷", "/"))
    except ValueError:
        return None


def _spelled(value: Fraction) -> str:
    for digits in range(DECIMALS + 1):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            sign, text = "-" * (value < 0), str(abs(scaled.numerator)).rjust(digits + 1, "0")
            return sign + (f"{text[:-digits]}.{text[-digits:]}" if digits else text)
    return f"{value.numerator}/{value.denominator}"
