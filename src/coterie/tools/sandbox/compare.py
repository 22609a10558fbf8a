"""Compare two plain values in their JSON form.

Values that a model chose never enter a Python set or dictionary, since a model can choose colliding hashes. Keys and
members of sets are compared by digests, in linear time.
"""

import hashlib
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from coterie.tools.sandbox.inside.plain import CONTAINERS, Wire, decode

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
    kind, content, other = _kind(expected), expected[1], actual[1]
    if kind == _NUMBER:
        return _close(expected, actual, tolerance) or _number(expected) == _number(actual)
    if kind in _IN_ORDER:
        return len(content) == len(other) and all(
            same(one, two, tolerance, strict=strict)
            for one, two in zip(content, other, strict=True)
        )
    if kind == "dict":
        ours, theirs = _by_key(content, strict), _by_key(other, strict)
        return len(content) == len(other) and ours.keys() == theirs.keys() and all(
            same(value, theirs[key], tolerance, strict=strict) for key, value in ours.items()
        )  # fmt: skip
    return _digest(expected, strict) == _digest(actual, strict)


def equal(expected: Wire, actual: Wire) -> bool:
    """Compare like Python's ``==``: NaN does not equal itself, nor an iterator another one."""
    return not _unequal(expected) and not _unequal(actual) and same(expected, actual)


def has_nan(wire: Wire) -> bool:
    return any(_is_nan(*one) for one in _parts(wire))


def _is_nan(tag: str, content: Any) -> bool:
    if tag == "decimal":
        return Decimal(content).is_nan()
    parts = {"float": [content], "complex": content}.get(tag, [])
    return any(math.isnan(float.fromhex(part)) for part in parts)


def _unequal(wire: Wire) -> bool:
    return has_nan(wire) or any(one[0] in ("iterator", "values") for one in _parts(wire))


def _parts(wire: Wire) -> list[Wire]:
    parts = [wire]
    for tag, content in parts:
        if tag == "dict":
            parts.extend(part for pair in content for part in pair)
        elif tag == "enum":
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
        one, two = _as_float(expected), _as_float(actual)
    except (OverflowError, ValueError):  # too large for a float, or a signalling NaN
        return False
    if not math.isfinite(one) or (actual[0] in _WHOLE and one.is_integer()):
        return False
    return math.isclose(one, two, rel_tol=tolerance, abs_tol=tolerance)


def _as_float(wire: Wire) -> float:
    if wire[0] == "fraction":  # a ``Fraction`` of long integers takes seconds
        over, under = (int(part, 16) for part in wire[1])
        return over / under
    return float(decode(wire))


def _by_key(pairs: list[Any], strict: bool) -> dict[bytes, Wire]:
    return {_digest(key, strict): value for key, value in pairs}


def _digest(wire: Wire, strict: bool) -> bytes:
    kind, content = _kind(wire), wire[1]
    if kind == _NUMBER:
        parts = [_number(wire).encode()]
    elif kind == _SET:
        parts = sorted({_digest(item, strict) for item in content})
    elif kind in _IN_ORDER:
        parts = [_digest(item, strict) for item in content]
    elif kind == "dict":
        parts = sorted(_digest(key, strict) + _digest(item, strict) for key, item in content)
    elif kind == "enum":
        parts = [content[0].encode("utf-8", "surrogatepass"), _digest(content[1], strict)]
    else:
        parts = [_scalar(wire, strict).encode("utf-8", "surrogatepass")]
    digest = hashlib.sha256(f"{wire[0] if strict else kind} {len(parts)}".encode())
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
        first, last = values[0], values[-1]
        return f"{first:x} {last:x} {values.step if last != first else 0:x}"
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
