"""Plain data as JSON that keeps types: how results leave the jail, and how expected values are compared.

A value is ``[tag, content]``. Integers are hexadecimal and floats as ``float.hex`` writes them, so both are
exact and cheap to read. A value of a subclass (``Counter``, a named tuple, ...) is the plain value that it holds,
read by the base class's own methods; what its class says of equality or length is never asked.
"""

from collections.abc import Iterable
from typing import Any

DEPTH = 60
"""Levels of containers in containers."""


class NotPlain(Exception):
    """A value that isn't plain data, or holds itself, or is nested too deeply."""


Wire = list[Any]
"""``[tag, content]``, as JSON holds it."""


def encode(value: object, depth: int = DEPTH) -> Wire:
    """The plain form of ``value``; raises ``NotPlain``."""
    if value is None:
        return ["none", None]
    if value is True or value is False:
        return ["bool", value]
    kind = type(value)
    base = next((base for base in _WRITERS if base in kind.__mro__), None)
    if base is None:
        raise NotPlain(f"a value of type {kind.__name__} is not plain data")
    if depth == 0:
        raise NotPlain("a value nested more deeply than can be compared")
    tag, write = _WRITERS[base]
    return [tag, write(value, depth - 1)]


def _items(values: Iterable[object], depth: int) -> list[Wire]:
    return [encode(value, depth) for value in values]


def _pairs(value: dict[object, object], depth: int) -> list[list[Wire]]:
    return [[encode(key, depth), encode(item, depth)] for key, item in dict.items(value)]


def _complex(value: complex, depth: int) -> list[str]:
    real, imaginary = (
        complex.__getattribute__(value, "real"),
        complex.__getattribute__(value, "imag"),
    )
    return [float.hex(real), float.hex(imaginary)]


_WRITERS: dict[type, tuple[str, Any]] = {
    int: ("int", lambda value, depth: int.__format__(value, "x")),
    float: ("float", lambda value, depth: float.hex(value)),
    complex: ("complex", _complex),
    str: ("str", lambda value, depth: str.__str__(value)),
    bytes: ("bytes", lambda value, depth: bytes.hex(value)),
    list: ("list", lambda value, depth: _items(list.__iter__(value), depth)),
    tuple: ("tuple", lambda value, depth: _items(tuple.__iter__(value), depth)),
    dict: ("dict", _pairs),
    set: ("set", lambda value, depth: _items(set.__iter__(value), depth)),
    frozenset: ("frozenset", lambda value, depth: _items(frozenset.__iter__(value), depth)),
}


def decode(wire: Wire) -> Any:
    """The value itself; the form must have been checked (``check``). Raises ``TypeError`` for a list as a key."""
    tag, content = wire
    if tag in ("none", "bool", "str"):
        return content
    if tag == "dict":
        return {decode(key): decode(item) for key, item in content}
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](decode(item) for item in content)
    return _READERS[tag](content)


_CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_READERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "bytes": bytes.fromhex,
}


def check(wire: Any, depth: int = DEPTH) -> None:
    """Raise ``NotPlain`` unless ``wire`` is a form that ``encode`` writes; it may come from anybody."""
    if depth < 0 or type(wire) is not list or len(wire) != 2 or type(wire[0]) is not str:
        raise NotPlain("not the form of a plain value")
    tag, content = wire
    if tag in _CONTAINERS and type(content) is list:
        for item in content:
            check(item, depth - 1)
    elif tag == "dict" and type(content) is list:
        for pair in content:
            if type(pair) is not list or len(pair) != 2:
                raise NotPlain("not the form of a dictionary")
            check(pair[0], depth - 1)
            check(pair[1], depth - 1)
    elif not _scalar(tag, content):
        raise NotPlain("not the form of a plain value")


def _scalar(tag: str, content: Any) -> bool:
    if tag == "none":
        return content is None
    if tag == "bool":
        return type(content) is bool
    if tag == "str":
        return type(content) is str
    if tag == "complex":
        return (
            type(content) is list
            and len(content) == 2
            and all(_scalar("float", x) for x in content)
        )
    if tag not in _READERS or type(content) is not str:
        return False
    try:
        _READERS[tag](content)
    except (ValueError, OverflowError):
        return False
    return True
