"""When two plain values are the same: by type and value, on their forms as JSON.

No Python set or dictionary is made of numbers that a model chose, since those can be made to collide.
"""

import json
import math
from typing import Any

from coterie.tools.sandbox.inside.plain import Wire, decode

_NUMBERS = ("int", "bool", "float", "complex")
_SETS = ("set", "frozenset")


def same(expected: Wire, given: Wire, tolerance: float = 0.0) -> bool:
    """Equal types and equal values, all the way down; two NaNs are the same.

    ``tolerance``, absolute or relative, is for floats that are not keys or members of sets.
    """
    tag, content = expected
    if given[0] != tag:
        return False
    other = given[1]
    if tag == "float":
        return _close(decode(expected), decode(given), tolerance)
    if tag in ("list", "tuple"):
        return len(content) == len(other) and all(
            same(one, two, tolerance) for one, two in zip(content, other, strict=True)
        )
    if tag == "dict":
        ours, theirs = _by_key(content, loose=False), _by_key(other, loose=False)
        return ours.keys() == theirs.keys() and all(
            same(value, theirs[key], tolerance) for key, value in ours.items()
        )
    return _canonical(expected, loose=False) == _canonical(given, loose=False)


def equal(expected: Wire, given: Wire) -> bool:
    """What Python's ``==`` says of the two values: ``1 == 1.0 == True``, a set equals a frozen one."""
    tag, content = expected
    other = given[1]
    if tag in _NUMBERS and given[0] in _NUMBERS:
        return bool(decode(expected) == decode(given))
    if tag in _SETS and given[0] in _SETS:
        return _canonical(expected, loose=True) == _canonical(given, loose=True)
    if tag != given[0]:
        return False
    if tag in ("list", "tuple"):
        return len(content) == len(other) and all(map(equal, content, other))
    if tag == "dict":
        ours, theirs = _by_key(content, loose=True), _by_key(other, loose=True)
        return ours.keys() == theirs.keys() and all(
            equal(value, theirs[key]) for key, value in ours.items()
        )
    return bool(content == other)


def _close(one: float, two: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    return math.isclose(one, two, rel_tol=tolerance, abs_tol=tolerance)


def _by_key(pairs: list[Any], *, loose: bool) -> dict[str, Wire]:
    return {_canonical(key, loose=loose): value for key, value in pairs}


def _canonical(wire: Wire, *, loose: bool) -> str:
    """One text for each value; ``loose``: for each class of values that ``==`` makes one."""
    tag, content = wire
    if tag in _NUMBERS:
        return _number(tag, decode(wire), loose)
    if tag in _SETS:
        members = sorted({_canonical(item, loose=loose) for item in content})
        return json.dumps(["set" if loose else tag, members])
    if tag in ("list", "tuple"):
        return json.dumps([tag, [_canonical(item, loose=loose) for item in content]])
    if tag == "dict":
        items = sorted(
            (_canonical(key, loose=loose), _canonical(value, loose=loose)) for key, value in content
        )
        return json.dumps([tag, items])
    return json.dumps([tag, content])


def _number(tag: str, value: Any, loose: bool) -> str:
    if loose and tag == "complex" and value.imag == 0:
        tag, value = "float", value.real
    if loose and tag == "float" and value.is_integer():
        tag, value = "int", int(value)
    if loose and tag == "bool":
        tag, value = "int", int(value)
    if tag == "int":
        return f"int {value:x}"
    if tag == "complex":
        return f"complex {(value.real + 0.0).hex()} {(value.imag + 0.0).hex()}"
    return f"float {(value + 0.0).hex()}" if tag == "float" else f"{tag} {value}"
