r"""Graders of answers: numbers, mathematics in LaTeX, and values of Python.

**Numbers.** An answer states a number, which may have a sign, a currency, a percent sign, a unit or a counted noun
(``units``), a name (``x = ``, ``the answer is``), LaTeX and markdown. With any other text (another number, a power, a
hedge such as ``or 99`` or ``about``) it is not a number, so an answer can't state several. The rules follow Lewkowycz
et al. 2022, appendix D, as far as they concern numbers, but no text is ignored.

**Mathematics.** Answers are compared by their structure. Two lists are equal if they have the same members in any
order, as in ``\{1,2\}``. Two tuples or intervals are equal if they have the same brackets and the same members in the
same order. A tuple also equals a vector, and ``x = 2, y = 3``. ``x = 5`` equals ``5``, ``-2 \le x \le 3`` equals
``[-2, 3]``, ``60^\circ`` equals ``\pi/3``, and ``50\%`` equals ``50`` and ``0.5``. One answer may omit a unit or a
base; if both have one, they must agree. An option with its content, ``(B) 12``, equals both. ``4:6`` equals ``2:3``
only as a ratio.

Two numbers are compared by value, and all other text by math-verify (``math_worker``), but only if it can read the
whole text: it skips prose, and reads ``5 6`` as a sum.
"""

import ast
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.datasets.problems import boxed_answer
from coterie.datasets.problems import value as value_of
from coterie.environments.units import LETTERS, MONEY, SYMBOLS, changes_value, is_unit, units_of

if TYPE_CHECKING:
    from coterie.tools.line_process import LineProcess

_END = r"(?![a-zA-Z])"

MAX_NUMBER = 200
"""Maximum characters of an answer that states a number."""
DECIMALS = 40
"""Maximum decimals of a normalized number; numbers with more are written as fractions."""

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


def number(text: str) -> str | None:
    """Return the normalized number that a text states (``1200.5`` for ``$1,200.50``), or ``None``."""
    value = _value(text)
    return None if value is None else _format(value)


def boxed_number(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}``; a number is normalized."""
    box = boxed_answer(text)
    return None if box is None else (number(box) or box)


def same_number(gold: str, answer: str) -> bool:
    """Return True if two answers state the same number, or are the same text without a number."""
    return (number(gold) or gold) == (number(answer) or answer)


def is_name(text: str) -> bool:
    words = LETTERS.findall(text)
    return (
        bool(_CALLED.fullmatch(text)) and r"\pm" not in text and not any(map(changes_value, words))
    )


def _value(text: str) -> Fraction | None:
    if len(text) > MAX_NUMBER:
        return None
    for pattern, instead in _SPELLINGS:
        text = pattern.sub(instead, text)
    # The last side of ``16 - 3 = 13`` states the value. The other sides must agree with it.
    *left_sides, right_side = (_bare(part) for part in text.split("="))
    # ``The answer is 13`` or ``Total: 13``.
    call = _CALL.fullmatch(right_side)
    if call and is_name(call["name"]):
        right_side = _bare(call["rest"])
    value = _parse(right_side)
    if value is None or not all(is_name(side) or _sum(side) == value for side in left_sides):
        return None
    return value


def _bare(text: str) -> str:
    text = text.strip(" $\"'").removesuffix(".").strip(" $\"'")
    # Remove brackets around the whole text.
    while text[:1] + text[-1:] in ("()", "{}") and not set(text[1:-1]) & set("(){},"):
        text = text[1:-1].strip(" $")
    return text


def _parse(text: str) -> Fraction | None:
    match = _STATED.fullmatch(text)
    # Two signs, as in ``-$-5``, state no number.
    if match is None or (match["minus"] and match["inner"]):
        return None
    try:
        if match["whole"]:
            value = int(match["whole"]) + Fraction(int(match["part"]), int(match["parts"]))
        elif match["above"]:
            value = _plain(match["above"]) / _plain(match["below"])
        else:
            value = _plain(match["plain"]) * Fraction(10) ** int(match["power"] or 0)
    except ZeroDivisionError:
        return None
    if not is_unit(match["rest"], singular=0 < value <= 1):
        return None
    return -value if "-" in (match["minus"], match["inner"]) else value


def _plain(text: str) -> Fraction:
    return Fraction(re.sub("[ ,]", "", text))


def _sum(text: str) -> Fraction | None:
    """Return the value of a calculation such as ``16 - 3 apples``; ``None`` for anything else."""
    value = _parse(text)
    if value is not None:
        return value
    # Separators, currencies and units are no part of the calculation.
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(rf"{MONEY}|[^\W\d_]+", " ", text)
    try:
        return value_of(text.replace("×", "*").replace("÷", "/"))
    except ValueError:
        return None


def _format(value: Fraction) -> str:
    # The smallest number of decimals that represents the value exactly.
    for digits in range(DECIMALS + 1):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            return f"{Decimal(f'{scaled}e-{digits}'):f}"
    return str(value)


# -- mathematics ---------------------------------------------------------------------------------

MAX_LENGTH = 1000
"""Maximum characters of an answer. A longer answer equals only its own spelling."""
LIMIT = 12.0
"""Maximum seconds of a comparison. The limits of ``math_worker`` are shorter, but their signals wait for C code."""
DEEPEST = 40
"""Maximum depth of brackets. A deeper answer equals only its own spelling."""

_TEXT = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf)|mbox)\s*"
_LISTED = re.compile(r"\s*(?:,(?!\d)(?:\s*(?:and|or)\b)?|\b(?:and|or)\b)\s*")


def _as_list(text: re.Match[str]) -> str:
    r"""Return ``\text{A and B}`` as ``\text{A} and \text{B}``."""
    members = _LISTED.split(text[2])
    is_list = len(members) > 1 and all(members)
    return " and ".join(f"{text[1]}{{{member}}}" for member in members) if is_list else text[0]


# The order matters: later patterns expect the forms that earlier ones write.
_CLEANUP: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # Separators of thousands.
    (re.compile(r"(?<=\d)(?:\{,\}|,\s*\\!|\\,)\s*(?=\d{3}(?!\d))"), ""),
    # A box around the whole answer.
    (re.compile(r"\A[\s$]*\\boxed\{(.*)\}[\s$]*\Z", re.DOTALL), r"\1"),
    (re.compile(r"\\[dt]frac" + _END), r"\\frac"),
    # Sizes of brackets and other marks of layout.
    (re.compile(r"\\(?:left|right|displaystyle)" + _END + r"|(?<!\\)\\[!()\[\]]|\*\*"), ""),
    (re.compile(r"(?<!\\)\\[,;: ]|\\q?quad" + _END), " "),
    (re.compile(r"\\frac(\d)(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"√\s*(\d+|\w)"), r"\\sqrt{\1}"),
    (re.compile("[²³]"), lambda sign: "^2" if sign[0] == "²" else "^3"),
    # The base of a number: ``101_{2}`` becomes ``101_2``.
    (re.compile(r"(?<=[0-9A-F])_\{(\w+)\}|_\{(\w)\}"), r"_\1\2"),
    (re.compile(r"\{[bB]matrix\}"), "{pmatrix}"),
    (re.compile(r"\\mathbb\s*(?:\{\s*R\s*\}|R)"), r"(-\\infty,\\infty)"),
    (re.compile(rf"({_TEXT})\{{([^{{}}]*)\}}"), _as_list),
    (re.compile(r"\\lg" + _END), r"\\log_{10}"),
    (re.compile(r"\\log_\{?e\}?" + _END), r"\\ln "),
    (re.compile(r"\\\{\s*\\\}|\\varnothing" + _END), r"\\emptyset "),
    (
        # Degrees in a trigonometric function become radians.
        re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc)[({ ]*)(\d+)\s*\^\s*\{?\\circ\}?"),
        r"\1\\frac{\2\\pi}{180}",
    ),
    # Repeating decimals become fractions.
    (
        re.compile(r"(?<!\d)(\d*)\.(\d*)\\overline\{(\d{1,20})\}"),
        lambda match: _fraction(*match.groups()),
    ),
    (re.compile(r"<=|≤|\\leq(?:slant)?" + _END), r"\\le "),
    (re.compile(r">=|≥|\\geq(?:slant)?" + _END), r"\\ge "),
)
_TEXTS = re.compile(_TEXT + r"\{([^{}]*)\}")
_SPACES = re.compile(r"\\?%|(?<!\d)\s|\s(?!\s*\d)|\$|\\\$")
_THOUSANDS = re.compile(r"(?<=\d),\d{3}(?!\d)")
_AND = re.compile(rf"{_TEXT}\{{\s*(?:or|and)\s*\}}|\b(?:or|and)\b|\\(?:lor|vee){_END}")
_UNIT = re.compile(rf"(?<=[\w}})])\s*{_TEXT}\{{([^{{}}]*)\}}(?:\^\{{?[23]\}}?)?\Z")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_WORD = re.compile(r"(?<![\\a-zA-Z])(?<!begin\{)(?<!end\{)[a-zA-Z]{2,}")
_KNOWN = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "pi", "sqrt"})
_NO_VARIABLE = re.compile(
    rf"{_TEXT}\{{[^{{}}]*\}}|\\[a-zA-Z]+|(?<=\d)[eE](?=[+-]?\d)|\^\s*\{{?\\circ\}}?\s*[CF]"
)
_PRODUCT = re.compile(r"(?<=[\d}])(?!pi|ln|lg)([a-z])([a-z])(?![a-z])")
_VARIABLE = re.compile(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|(?<=\d)[a-zA-Z]+")
"""A single letter, or letters directly after a number, such as a product of variables."""
_MISREAD = re.compile(
    r"(?<![_\d])\d+\s+\d|\d\s*\(\s*\d+\s*\)|(?:\d[0-9A-F]*|\})_|[?%≈]|\\(?:approx|sim|simeq|cong|boxed|pm|mp)"
    + _END
)
"""Text that math-verify misreads: adjacent numbers, another base, a percent sign, an approximation."""
_BASE = re.compile(r"(?<=[0-9A-F])_\d+\Z")
_PERCENT = re.compile(r"%|\bpercent\b")
_VECTOR = re.compile(r"\\begin\{pmatrix\}((?:(?!\\begin).)*)\\end\{pmatrix\}", re.DOTALL)
_OPTION = re.compile(
    rf"\(?([A-J])[).][\s~]+((?:[\w.(\[]|-[\w.\\]|\\(?!c[au]p{_END}|in{_END}|l[eo]|g[et]|times|cdot)).*)"
)
"""Letter of an option with its content, such as ``(B) 12``."""
_DEGREES = re.compile(
    rf"(\d+(?:\.\d+)?)\s*(?:\^\s*\{{?\s*\\circ\s*\}}?|°|\\degree{_END}|{_TEXT}\{{\s*degrees\s*\}})(?!\s*[CF])"
)
_MATRIX = re.compile(r"matri|[A-Z]\s*\^\s*\{?(?:-1|T|\\top)")
"""Sign of matrices, whose products do not commute, in a question or an answer."""
_FACTOR = re.compile(r"[A-Z](?![a-z])(?:_\w)?|\\begin")
_RATIO = re.compile(r"\bratio|proportion|\bodds\b|\bscale\b")
_ORDER = re.compile(rf"(<|\\lt{_END}|\\le{_END}|>|\\gt{_END}|\\ge{_END})")


def spelling(latex: str) -> str:
    """Normalize an answer: spaces, sizes of brackets, and forms of commands."""
    return _SPACES.sub("", _clean(_TEXTS.sub(r"\1", _clean(latex)))).rstrip(".,")


def same_mathematics(gold: str, answer: str, question: str = "") -> bool:
    r"""Return True if two answers in LaTeX are equal, such as ``\frac{1}{2}`` and ``0.5``.

    It usually takes milliseconds, and seconds at worst. An answer that can't be parsed, nests too deep or takes
    too long equals only its own spelling. Thread-safe. The question tells whether a pair is a ratio and letters are
    matrices. Without a question, a reference in lowest terms is a ratio.
    """
    texts = [gold, answer]
    if max(map(len, texts)) > MAX_LENGTH or any(
        max(_depths(text), default=0) > DEEPEST for text in texts
    ):
        return spelling(gold) == spelling(answer)
    texts = [_clean(text) for text in texts]
    # Only one of the answers has pi, so degrees become radians.
    if len({r"\pi" in text for text in texts}) == 2:
        texts = [_DEGREES.sub(r"\\frac{\1\\pi}{180}", text) for text in texts]
    first_option, second = options = [_OPTION.fullmatch(_TEXTS.sub(r"\1", text)) for text in texts]
    # Both are options with their content: letters and contents must agree.
    if first_option and second:
        both = zip(first_option.groups(), second.groups(), strict=True)
        return all(_same_in_order(*pair, question) for pair in both)
    # Only one names an option, so the other may match the letter, the content, or the whole text.
    golds, answers = (
        [text, *(option.groups() if option else ())]
        for text, option in zip(texts, options, strict=True)
    )
    return any(_same_in_order(*pair, question) for pair in product(golds, answers))


def _same_in_order(gold: str, answer: str, question: str) -> bool:
    """Compare answers where math-verify would cancel ``4:6`` or exchange the factors of a product of matrices."""
    pairs = [text.split(":") for text in (gold, answer)]
    # A colon within brackets separates nothing.
    if 1 < len(pairs[0]) == len(pairs[1]) and all(
        part and not _depths(part)[-1] for pair in pairs for part in pair
    ):
        # Without the question, a reference in lowest terms is taken for a ratio.
        in_lowest_terms = math.gcd(*map(int, re.findall(r"\d+", gold))) < 2
        if _RATIO.search(question) if question else in_lowest_terms:
            # Longer ratios are equal if the ratios of all neighbors are.
            pairs = [[":".join(two) for two in pairwise(pair)] for pair in pairs]
        return all(map(_same, *pairs))
    if _MATRIX.search(f"{question} {gold} {answer}"):
        # The order of factors matters within each term; the terms of a sum have no order.
        terms = [re.split(r"(?<!\{)[-+]", re.sub(r"\w+\s*=", "", text)) for text in (gold, answer)]
        orders = [sorted("".join(_FACTOR.findall(term)) for term in sums) for sums in terms]
        if orders[0] != orders[1] and all(re.search("[A-Z]", "".join(order)) for order in orders):
            return False
    return _same(gold, answer)


def _same(answer: str, expected: str) -> bool:
    (name, value), (called, expected_value) = _name_and_value(answer), _name_and_value(expected)
    # Two different names, as in ``x = 5`` and ``y = 5``, are different statements.
    if name and called and spelling(name) != spelling(called):
        return _equal(answer, expected)
    values = [
        Fraction(stated) for text in (answer, expected) if (stated := _number(text)) is not None
    ]
    if len(values) == 2:
        return _same_number(values, answer, expected)
    if spelling(answer) == spelling(expected):
        return True
    if name or called:
        return _same(value, expected_value) or (
            "=" in answer and "=" in expected and _equal(answer, expected)
        )
    # One of the answers omits the base.
    if len({_BASE.search(spelling(text)) is None for text in (answer, expected)}) == 2:
        return _BASE.sub("", spelling(answer)) == _BASE.sub("", spelling(expected))
    # A tuple may be written as a vector. Two vectors are compared as they are.
    vectors = [
        _VECTOR.sub(_as_tuple, text) if _VECTOR.fullmatch(text) else text
        for text in (answer, expected)
    ]
    if sum(map(str.__ne__, vectors, (answer, expected))) == 1:
        return _same(*vectors)
    # A union of intervals is one set, not a list of answers.
    if r"\cup" in answer + expected and not _AND.search(answer + expected):
        return _equal(answer, expected)
    (brackets, members), (others_brackets, expected_members) = _members(answer), _members(expected)
    if not members or len(members) != len(expected_members):
        return False
    if brackets != others_brackets:  # (2, 3) is x = 2, y = 3
        named = sorted(
            map(_name_and_value, members if others_brackets == "()" else expected_members)
        )
        names = {name for name, _ in named if name}
        points = expected_members if others_brackets == "()" else members
        return (
            {brackets, others_brackets} == {"()", ""}
            and len(names) == len(points)
            and all(map(_same, points, (value for _, value in named)))
        )
    if (members, expected_members) != ([answer], [expected]):
        return _match_members(members, expected_members, in_place=bool(brackets))
    if ("=" in answer) != ("=" in expected):  # 2 + 3 = 5 is 5, and 6 = 5 is not
        return all(_same(*sides) for sides in product(answer.split("="), expected.split("=")))
    return _equal(answer, expected)


def _same_number(values: Sequence[Fraction], answer: str, expected: str) -> bool:
    """Return True if two texts state the same number, in compatible units."""
    percents = [100 if _PERCENT.search(text) else 1 for text in (answer, expected)]
    exact = values[0] / percents[0] == values[1] / percents[1]
    plain = values[0] == values[1] and abs(values[0]) >= 1  # 50% is 50, but 0.5% is not 0.5
    return _same_units(answer, expected) and (exact or plain)


def _same_units(answer: str, expected: str) -> bool:
    units, expected_units = (units_of(text.rpartition("=")[2]) for text in (answer, expected))
    return units <= expected_units or expected_units <= units


def _as_tuple(vector: re.Match[str]) -> str:
    rows = [row.strip() for row in vector[1].split(r"\\")]
    if len(rows) > 1 and "&" in vector[1]:
        return vector[0]
    return f"({','.join(rows if len(rows) > 1 else rows[0].split('&'))})"


def _number(text: str) -> str | None:
    """Return the number that a text states. Letters outside of text commands are variables, not units."""
    letters = _variables(text.rpartition("=")[2])
    return number(text) if all(letter.casefold() in SYMBOLS for letter in letters) else None


def _variables(text: str) -> list[str]:
    names: list[str] = _VARIABLE.findall(_NO_VARIABLE.sub(" ", text))
    return names


def _match_members(members: Sequence[str], expected: Sequence[str], *, in_place: bool) -> bool:
    names, called = ({_name_and_value(item)[0] for item in side} for side in (members, expected))
    # If the lists name their members differently, the members correspond by position.
    in_place = in_place or (max(len(names), len(called)) > 1 and names != called)
    unmatched = list(expected)
    for member in members:
        matches = (index for index, candidate in enumerate(unmatched) if _same(member, candidate))
        match = next(matches, None)
        if match is None or (in_place and match):
            return False
        del unmatched[match]
    return True


def _equal(answer: str, expected: str) -> bool:
    units = [_UNIT.search(text) for text in (answer, expected)]
    # A unit may be missing on one side, but two units must agree.
    if any(units):
        if not all(unit is None or is_unit(unit[1]) for unit in units):
            return False
        if not _same_units(*(unit[0] if unit else "" for unit in units)):
            return False
        return _same(_UNIT.sub("", answer), _UNIT.sub("", expected))
    if (
        spelling(answer).casefold() == spelling(expected).casefold()
    ):  # a word in any case, but no symbol
        return any(len(word) > 2 for word in _WORD.findall(spelling(answer)))
    known_letters = set(_LETTER.findall(f"{answer} {expected}"))
    words = [  # math-verify reads a word as the product of its letters; xy is yx
        {
            "".join(sorted(w)) if len(w) == 2 else w.casefold()
            for w in _WORD.findall(text)
            if not set(w) <= known_letters
        }
        for text in (answer, expected)
    ]
    if words[0] - _KNOWN != words[1] - _KNOWN or any(map(_MISREAD.search, (answer, expected))):
        return False
    letters = ("".join(_variables(_TEXTS.sub(r"\1", text))) for text in (answer, expected))
    answer, expected = (
        _PRODUCT.sub(r"{\1}{\2}", text) for text in (answer, expected)
    )  # no unit "ab"
    return compared(answer, expected, *letters)


def _fraction(integer: str, digits: str, repeating: str) -> str:
    # For example, 0.1 with repeating 6 is (16 - 1) / 90.
    above = int(integer + digits + repeating) - int(f"0{integer}{digits}")
    return rf"\frac{{{above}}}{{{'9' * len(repeating)}{'0' * len(digits)}}}"


def _clean(text: str) -> str:
    for pattern, instead in _CLEANUP:
        text = pattern.sub(instead, text)
    return text.lstrip(" \n$*").rstrip(" \n$.,;*")


def _name_and_value(text: str) -> tuple[str, str]:
    r"""Return name and value of ``x = 5`` or ``x \in [0, 1]``. Without a name it is empty."""
    if (ranged := _range(text)) is not None:
        return ranged
    parts = re.split(r"=|\\in" + _END, text)
    if len(parts) != 2 or not is_name(parts[0]) or len(_split(text)) > 1:
        return "", text
    return parts[0].strip(), parts[1].strip()


def _range(text: str) -> tuple[str, str] | None:
    r"""Return the variable and the interval of an inequality: ``x`` and ``[-2,3)`` for ``-2 \le x < 3``."""
    parts = [part.strip() for part in _ORDER.split(text)]
    ends, signs = parts[::2], parts[1::2]
    up = [sign in ("<", r"\lt", r"\le") for sign in signs]
    variables = [position for position, end in enumerate(ends) if re.fullmatch("[a-zA-Z]", end)]
    # Two or three sides, one of them the variable, and all signs in one direction.
    if not 2 <= len(ends) <= 3 or len(set(up)) > 1 or len(variables) != 1:
        return None
    # Write the inequality in ascending order.
    if not up[0]:
        ends, signs, variables = ends[::-1], signs[::-1], [len(ends) - 1 - variables[0]]
    (position,) = variables
    closed = [sign in (r"\le", r"\ge") for sign in signs]
    low = ("(["[closed[0]] + ends[0]) if position else r"(-\infty"
    high = (ends[-1] + ")]"[closed[-1]]) if position < len(ends) - 1 else r"\infty)"
    return ends[position], f"{low},{high}"


def _members(text: str) -> tuple[str, list[str]]:
    if _number(text) is not None:  # with a comma between thousands
        return "", [text]
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return "", _split(text[2:-2].strip())
    has_brackets = text[:1] in ("(", "[") and text[-1:] in (")", "]")
    if has_brackets and min(_depths(text)[:-1]) > 0:  # the last one closes the first one
        inside = _split(text[1:-1].strip())
        if len(inside) > 1:
            return text[0] + text[-1], inside
        # Round brackets around a single member have no meaning.
        return "", inside if text[0] + text[-1] == "()" else [text]
    if text.count(r"\pm") == 1:
        return "", [text.replace(r"\pm", sign) for sign in "+-"]
    return "", _split(text)


def _split(text: str) -> list[str]:
    """Return the members of a list. If some commas have spaces, ``1,234`` is one number."""
    text = _AND.sub(";", text).replace(r"\cup", ";")
    spaced = re.search(r"[,;]\s", text) is not None
    parts, depth = [""], 0
    for index, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        # In a list with spaces after commas, a comma before three digits belongs to a number.
        thousands = spaced and _THOUSANDS.match(text, index)
        if sign in ",;" and not depth and not thousands:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def _depths(text: str) -> list[int]:
    return list(accumulate((sign in "([{") - (sign in ")]}") for sign in text))


# A vote compares the same pairs of answers many times.
@lru_cache(maxsize=65536)
def compared(gold: str, answer: str, gold_letters: str = "", answer_letters: str = "") -> bool:
    """Return True if math-verify finds two answers in LaTeX equal, within the time limit and without dropped letters.

    Thread-safe.
    """
    return _worker().ask([gold, answer, gold_letters, answer_letters], LIMIT) is True


@cache
def _worker() -> "LineProcess":
    # Only formulas need the process.
    from coterie.tools.line_process import LineProcess

    return LineProcess(Path(__file__).with_name("math_worker.py"), "math-verify")


# -- values of Python ----------------------------------------------------------------------------


def same_value(gold: Any, answer: Any) -> bool:
    """Compare Python literals: numbers with a relative tolerance of 1e-6, lists item by item; other text as it is."""
    expected, value = (_literal(side) if isinstance(side, str) else side for side in (gold, answer))
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(expected) == len(value) and all(map(same_value, expected, value))
    if isinstance(expected, int | float) and isinstance(value, int | float):
        try:
            return math.isclose(expected, value, rel_tol=1e-6)
        except OverflowError:  # an integer that no float holds
            return expected == value
    return bool(expected == value)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text.strip()
