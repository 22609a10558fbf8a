"""Results of an answer's calls: comparison by value, grades, and display as text.

Values that a model chose never enter a Python set or dictionary, since a model can choose colliding hashes. Keys and
members of sets are compared by digests, in linear time.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

from coterie.tools.sandbox.inside.job import BY_SUPERVISOR, JobRecord
from coterie.tools.sandbox.inside.plain import CONTAINERS, NotPlain, Wire, check, decode
from coterie.tools.sandbox.worker import SandboxFailed

_MAX_INTEGER = 1000
"""Hexadecimal digits; Python prints integers of at most 4,300 decimal digits."""
_BRACKETS = {
    "list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "frozenset": ("frozenset({", "})"),
    "deque": ("deque([", "])"), "iterator": ("iterator([", "])"), "keys": ("dict_keys([", "])"),
    "values": ("dict_values([", "])"), "items": ("dict_items([", "])"),
}  # fmt: skip


def format_value(wire: Wire, max_length: int) -> str:
    """Format a value much like ``repr``, cut to ``max_length`` characters."""
    text = _text(wire)
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def _text(wire: Wire) -> str:
    tag, content = wire
    if tag == "dict":
        return f"{{{', '.join(f'{_text(name)}: {_text(item)}' for name, item in content)}}}"
    if tag in CONTAINERS:
        opening, closing = _BRACKETS[tag] if content or tag != "set" else ("set(", ")")
        comma = "," * (tag == "tuple" and len(content) == 1)
        return f"{opening}{', '.join(map(_text, content))}{comma}{closing}"
    if tag == "named":
        return f"<{repr(content[0])[1:-1]}: {_text(content[1])}>"
    if tag == "int" and len(content) > _MAX_INTEGER:
        return f"an integer of {int(content, 16).bit_length():,} bits"
    if tag in ("fraction", "range") and max(map(len, content)) > _MAX_INTEGER:
        return f"a {tag} of large integers"
    return repr(decode(wire))


_NUMBER, _SET, _BYTES, _LIST = "number", "set", "bytes", "list"
_KINDS = {
    **dict.fromkeys(("int", "bool", "float", "complex", "decimal", "fraction"), _NUMBER),
    **dict.fromkeys(("set", "frozenset", "keys", "items"), _SET),
    **dict.fromkeys(("bytes", "bytearray"), _BYTES),
    **dict.fromkeys(("list", "iterator", "values"), _LIST),
}
"""Types whose values can be equal across types, by group."""
_WHOLE = ("int", "bool")
_IN_ORDER = (_LIST, "tuple", "deque")
_MICROSECOND = timedelta(microseconds=1)
_EXACT = 2000
"""Upper bound of the digits without trailing zeros, and of the exponent, of a decimal that is compared exactly."""
_MAX_RANGE = 1000
"""Hexadecimal digits of a bound; ranges with longer bounds are compared as text."""


def same(expected: Wire, actual: Wire, tolerance: float = 0.0, *, strict: bool = False) -> bool:
    """Return True if the values are recursively equal; two NaNs are equal.

    As for Python's ``==``, ``1 == 1.0 == True``, and a set equals a frozenset. An iterator or a view equals the list of
    its items. ``strict`` also compares types. ``tolerance``, absolute or relative, is for floats that are not keys or
    members of sets. Integers are compared exactly: an expected integer, and an integer where a whole float is
    expected.
    """
    if expected[0] != actual[0] and (strict or _kind(expected) != _kind(actual)):
        return False
    wire_kind, content, actual_content = _kind(expected), expected[1], actual[1]
    if wire_kind == _NUMBER:
        return _close(expected, actual, tolerance) or _number(expected) == _number(actual)
    if wire_kind in _IN_ORDER:
        return len(content) == len(actual_content) and all(
            same(part, two, tolerance, strict=strict)
            for part, two in zip(content, actual_content, strict=True)
        )
    if wire_kind == "dict":
        ours, theirs = _by_key(content, strict), _by_key(actual_content, strict)
        return len(content) == len(actual_content) and ours.keys() == theirs.keys() and all(
            same(value, theirs[key], tolerance, strict=strict) for key, value in ours.items()
        )  # fmt: skip
    return _digest(expected, strict) == _digest(actual, strict)


def equal(expected: Wire, actual: Wire) -> bool:
    """Compare like Python's ``==``: NaN does not equal itself, nor an iterator another one."""
    for wire in (expected, actual):
        if has_nan(wire) or any(part[0] in ("iterator", "values") for part in _parts(wire)):
            return False
    return same(expected, actual)


def has_nan(wire: Wire) -> bool:
    return any(_is_nan(*part) for part in _parts(wire))


def _is_nan(tag: str, content: Any) -> bool:
    if tag == "decimal":
        return Decimal(content).is_nan()
    parts = {"float": [content], "complex": content}.get(tag, [])
    return any(math.isnan(float.fromhex(part)) for part in parts)


def _parts(wire: Wire) -> list[Wire]:
    parts = [wire]
    for tag, content in parts:
        if tag == "dict":
            parts.extend(part for pair in content for part in pair)
        elif tag == "named":
            parts.append(content[1])
        elif tag in CONTAINERS:
            parts.extend(content)
    return parts


def _kind(wire: Wire) -> str:
    tag: str = wire[0]
    return _KINDS.get(tag, tag)


def _close(expected: Wire, actual: Wire, tolerance: float) -> bool:
    tags = expected[0], actual[0]
    if not tolerance or "float" not in tags or "complex" in tags or expected[0] in _WHOLE:
        return False
    try:
        expected_number, two = _as_float(expected), _as_float(actual)
    except (OverflowError, ValueError):  # too large for a float, or a signalling NaN
        return False
    if not math.isfinite(expected_number) or (actual[0] in _WHOLE and expected_number.is_integer()):
        return False
    return math.isclose(expected_number, two, rel_tol=tolerance, abs_tol=tolerance)


def _as_float(wire: Wire) -> float:
    if wire[0] == "fraction":  # a ``Fraction`` of long integers takes seconds
        over, under = (int(part, 16) for part in wire[1])
        return over / under
    return float(decode(wire))


def _by_key(pairs: list[Any], strict: bool) -> dict[bytes, Wire]:
    return {_digest(key, strict): value for key, value in pairs}


def _digest(wire: Wire, strict: bool) -> bytes:
    wire_kind, content = _kind(wire), wire[1]
    if wire_kind == _NUMBER:
        parts = [_number(wire).encode()]
    elif wire_kind == _SET:
        parts = sorted({_digest(item, strict) for item in content})
    elif wire_kind in _IN_ORDER:
        parts = [_digest(item, strict) for item in content]
    elif wire_kind == "dict":
        parts = sorted(_digest(key, strict) + _digest(item, strict) for key, item in content)
    elif wire_kind == "named":
        parts = [content[0].encode("utf-8", "surrogatepass"), _digest(content[1], strict)]
    else:
        parts = [_scalar(wire, strict).encode("utf-8", "surrogatepass")]
    digest = hashlib.sha256(f"{wire[0] if strict else wire_kind} {len(parts)}".encode())
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _scalar(wire: Wire, strict: bool) -> str:
    """Return a canonical text of a value that is neither a number nor a container."""
    tag, content = wire
    if tag == "range" and max(map(len, content)) <= _MAX_RANGE:
        values = decode(wire)
        if not values:
            return "empty"
        start, end = values[0], values[-1]
        return f"{start:x} {end:x} {values.step if end != start else 0:x}"
    if tag in ("datetime", "time") and content[1] is not None and not strict:
        return f"zoned {_instant(tag, *content)}"
    return str(content)


def _instant(tag: str, bare: str, offset: str) -> int:
    """Return the microseconds in UTC; values with time zones are equal if these are."""
    if tag == "datetime":  # noqa: SIM108 - a line of one hundred
        value = datetime.fromisoformat(bare)
    else:
        value = datetime.combine(date.min, time.fromisoformat(bare))
    return (value - datetime.min) // _MICROSECOND - int(offset, 16)


def _number(wire: Wire) -> str:
    tag, content = wire
    if tag == "int":
        return f"{int(content, 16):x}/1"
    if tag == "bool":
        return f"{content:d}/1"
    if tag == "fraction":
        over, under = (int(part, 16) for part in content)  # already in lowest terms
        return f"{over:x}/{under:x}"
    if tag == "complex":
        real, imaginary = (_number(["float", part]) for part in content)
        return real if imaginary == "0/1" else f"{real} {imaginary}"
    return _decimal(Decimal(content)) if tag == "decimal" else _float(float.fromhex(content))


def _float(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    over, under = value.as_integer_ratio()
    return f"{over:x}/{under:x}"


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        return "nan" if value.is_nan() else str(float(value))
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    text = "".join(map(str, digits))
    short = text.rstrip("0")
    if not short:
        return "0/1"
    exponent += len(text) - len(short)
    text = f"{'-' * sign}{short}e{exponent}"
    if max(abs(exponent), len(short)) > _EXACT:
        return text
    over, under = Decimal(text).as_integer_ratio()
    return f"{over:x}/{under:x}"


Mode = Literal["module", "legacy"]
"""How an answer's source and calls run: in a module's namespace; or, as in SWEET-RL's grader, with separate globals and
locals, so that an answer with helpers, top-level imports, constants or recursion fails."""
FAILURES = {
    "error": "it raised an exception",
    "not plain": "what it returned is not plain data",
    "timeout": "it took too long",
    "memory": "it used too much memory",
    "output": "its result is too large",
    "ended": "its process ended",
    "garbled": "what its process told is not a result",
}
_REPORTS = ("error", "not plain", "output")
"""Failures that an answer's process may report; the supervisor reports all others."""
MAX_WHY = 600


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one call: a plain value or a failure."""

    call: str
    wire: Wire | None = None
    """Value in the form of ``inside.plain``; ``None`` if the call failed."""
    failed: str = ""
    """One of ``FAILURES``; empty if the call returned a value."""
    why: str = ""
    """Details of the failure, partly written by the answer."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds in the jail of all calls that ran with this one."""

    @property
    def ok(self) -> bool:
        return self.wire is not None

    @property
    def value(self) -> Any:
        if self.wire is None:
            raise ValueError(f"`{self.call}` returned no value: {self.reason}")
        return decode(self.wire)

    @property
    def reason(self) -> str:
        if not self.failed:
            return ""
        return FAILURES[self.failed] + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test: a call's result and its expected value."""

    __test__ = False  # not for pytest to collect
    result: CallResult
    expected: Wire
    passed: bool

    @property
    def reason(self) -> str:
        if self.passed:
            return ""
        return self.result.reason or "the value is another"


@dataclass(frozen=True, slots=True)
class Graded:
    """Tests of an answer, in the order of its calls."""

    tests: tuple[TestResult, ...]

    @property
    def fraction(self) -> float:
        return sum(test.passed for test in self.tests) / len(self.tests)

    @property
    def success(self) -> bool:
        return all(test.passed for test in self.tests)


def judge(
    result: CallResult, expected: Wire, mode: Mode, tolerance: float, strict: bool
) -> TestResult:
    """Compare values. ``legacy`` is ``==``, and an expected ``None`` never passes, as in SWEET-RL's grader."""
    if result.wire is None:
        passed = False
    elif mode == "legacy":
        passed = expected[0] != "none" and equal(expected, result.wire)
    else:
        passed = same(expected, result.wire, tolerance, strict=strict)
    return TestResult(result, expected, passed)


def read_record(call: str, record: JobRecord) -> CallResult:
    """Parse an untrusted record. Raises ``SandboxFailed`` if the supervisor could not run the answer."""
    by, text = record
    try:
        content = json.loads(text)
        if set(content) == {"value"}:
            check(content["value"])
            return CallResult(call, content["value"])
        failed, message = content["failed"], content["why"]
        if by == BY_SUPERVISOR and failed not in FAILURES:
            raise SandboxFailed(f"the sandbox could not confine an answer: {message}")
        if failed in (FAILURES if by == BY_SUPERVISOR else _REPORTS) and isinstance(message, str):
            message = message[:MAX_WHY].encode(errors="replace").decode()  # no lone surrogates
            return CallResult(call, None, failed, message)
    except (ValueError, TypeError, KeyError, RecursionError, NotPlain):
        pass
    return CallResult(call, None, "garbled")
