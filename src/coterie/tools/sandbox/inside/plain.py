"""Plain data as JSON that keeps types, for results that leave the jail and for expected values.

A value is ``[tag, content]``. Integers are hexadecimal and floats have the format of ``float.hex``, so both are exact
and cheap to read. A value of a subclass (``Counter``, a named tuple, ...) becomes the plain value it holds, read by
the base class's methods; methods of its own class are never called. Iterators (``map``, a generator, ...), views of
dictionaries and members of enumerations keep what they hold, with a tag of their own.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

DEPTH = 60
"""Levels of nested containers."""
SHORTEST = 11
"""Bytes of the shortest value in JSON: ``["str", ""]``."""
_MICROSECOND = timedelta(microseconds=1)


class NotPlain(Exception):
    """Value that is not plain data, contains itself, or is nested too deeply."""


class TooLarge(Exception):
    """Value that exceeds the size limit."""


Wire = list[Any]
"""``[tag, content]`` as JSON data."""


@dataclass(frozen=True, slots=True)
class Typed:
    """Value to encode so that Booleans and arrays of numpy differ from Booleans and lists of Python."""

    value: object


class StandIn:
    """Decoded form of a value that is not plain. It holds the same items, but equals only itself."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def __iter__(self) -> Iterator[Any]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __bool__(self) -> bool:
        return bool(self._content)


def encode(value: object, max_length: int | None = None) -> Wire:
    """Return the plain form. Raises ``NotPlain``, or ``TooLarge`` when its JSON reaches ``max_length`` bytes."""
    count = 0
    is_typed = type(value) is Typed

    def plain(value: Any, depth: int) -> Wire:
        nonlocal count
        count += 1
        if max_length is not None and count * SHORTEST > max_length:
            raise TooLarge(f"more than {count - 1:,} values, and {max_length:,} bytes are allowed")
        if value is None or value is True or value is False:
            return ["none" if value is None else "bool", value]
        if depth == 0:
            raise NotPlain("a value nested more deeply than can be compared")
        value_type = type(value)
        for base in value_type.__mro__:
            if base in _SCALARS:
                tag, write = _SCALARS[base]
                return [tag, write(value)]
            if base in _SERIES:
                tag, items = _SERIES[base]
                return [tag, [plain(item, depth - 1) for item in items(value)]]
            if base is dict:
                pairs = dict.items(value)
                return ["dict", [[plain(part, depth - 1) for part in pair] for pair in pairs]]
            if base is Enum:
                name, member = (object.__getattribute__(value, n) for n in ("_name_", "_value_"))
                return ["named", [str(name), plain(member, depth - 1)]]
        if value_type.__module__ == "numpy" and hasattr(
            value_type, "tolist"
        ):  # a number, or an array
            wire = plain(value.tolist(), depth - 1)
            return (
                ["named", [value_type.__name__, wire]] if is_typed and wire[0] in _NUMPY else wire
            )
        if hasattr(value_type, "__next__"):
            return ["iterator", [plain(item, depth - 1) for item in iter(value)]]
        raise NotPlain(f"a value of type {value_type.__name__} is not plain data")

    return plain(value.value if isinstance(value, Typed) else value, DEPTH)


def _zoned(moment: Any) -> Any:
    """Return a function that writes a date and time, or a time, with its offset in microseconds."""

    def write(value: Any) -> list[str | None]:
        offset = moment.utcoffset(value)
        bare = moment.isoformat(moment.replace(value, tzinfo=None))
        return [bare, None if offset is None else f"{offset // _MICROSECOND:x}"]

    return write


def _complex(value: complex) -> list[str]:
    parts = (complex.__getattribute__(value, name) for name in ("real", "imag"))
    return [float.hex(part) for part in parts]


_SCALARS: dict[type, tuple[str, Any]] = {
    int: ("int", lambda value: int.__format__(value, "x")),
    float: ("float", float.hex),
    complex: ("complex", _complex),
    str: ("str", str.__str__),
    bytes: ("bytes", bytes.hex),
    bytearray: ("bytearray", bytearray.hex),
    range: ("range", lambda value: [f"{part:x}" for part in (value.start, value.stop, value.step)]),
    Decimal: ("decimal", Decimal.__str__),
    Fraction: ("fraction", lambda value: [f"{value._numerator:x}", f"{value._denominator:x}"]),
    datetime: ("datetime", _zoned(datetime)),
    date: ("date", date.isoformat),
    time: ("time", _zoned(time)),
    timedelta: ("timedelta", lambda value: f"{timedelta.__floordiv__(value, _MICROSECOND):x}"),
}
_SERIES: dict[type, tuple[str, Any]] = {
    **{type_: (type_.__name__, type_.__iter__) for type_ in (list, tuple, set, frozenset, deque)},
    type({}.keys()): ("keys", iter),
    type({}.values()): ("values", iter),
    type({}.items()): ("items", iter),
}
_NUMPY = ("bool", "list")
"""Tags of numpy's values that behave unlike Python's; numbers of both are equal."""


def decode(wire: Wire, *, key: bool = False) -> Any:
    """Return the value of a checked form (``check``).

    Iterators become new iterators; a view, a member of an enumeration or an array becomes a :class:`StandIn`. ``key``
    makes the value hashable, such as a tuple for a list.
    """
    tag, content = wire
    if tag in ("none", "bool", "str"):
        return content
    if tag == "dict":
        pairs = {decode(name, key=True): decode(item, key=key) for name, item in content}
        return tuple(pairs.items()) if key else pairs
    if tag in CONTAINERS:
        within = key or tag in ("set", "frozenset")
        items = (decode(item, key=within) for item in content)
        return (_HASHABLE if key else CONTAINERS)[tag](items)
    if tag == "named":
        return StandIn(decode(content[1], key=key))
    value = _READERS["bytes" if key and tag == "bytearray" else tag](content)
    return content if key and tag == "decimal" and value.is_snan() else value


def _read_zoned(moment_type: Any, content: list[str | None]) -> Any:
    bare, offset = content
    value = moment_type.fromisoformat(bare)
    if value.tzinfo is not None:
        raise ValueError("an offset in the wrong place")
    if offset is None:
        return value
    return value.replace(tzinfo=timezone(timedelta(microseconds=int(offset, 16))))


def _read_hex(make: Any) -> Any:
    return lambda content: make(*(int(part, 16) for part in content))


def _view(items: Iterator[Any]) -> StandIn:
    return StandIn(list(items))


CONTAINERS: dict[str, Callable[[Iterator[Any]], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque,
    "iterator": iter, "keys": _view, "values": _view, "items": _view,
}  # fmt: skip
"""Tags whose content is a list of values."""
_HASHABLE = {**CONTAINERS, "list": tuple, "set": frozenset, "deque": tuple}
_READERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": _read_hex(range),
    "decimal": Decimal,
    "fraction": _read_hex(Fraction),
    "datetime": lambda content: _read_zoned(datetime, content),
    "date": date.fromisoformat,
    "time": lambda content: _read_zoned(time, content),
    "timedelta": lambda text: timedelta(microseconds=int(text, 16)),
}
_PARTS = {"complex": 2, "range": 3, "fraction": 2, "datetime": 2, "time": 2}
"""Number of strings in the content, by tag; the content of all other readers is one string."""


def check(wire: Any, depth: int = DEPTH) -> None:
    """Raise ``NotPlain`` unless ``wire`` is a form that ``encode`` writes. The input is untrusted."""
    if depth < 0 or type(wire) is not list or len(wire) != 2 or type(wire[0]) is not str:
        raise NotPlain("not the form of a plain value")
    tag, content = wire
    if tag in CONTAINERS and type(content) is list:
        for item in content:
            check(item, depth - 1)
    elif tag == "dict" and type(content) is list:
        for pair in content:
            if type(pair) is not list or len(pair) != 2:
                raise NotPlain("not the form of a dictionary")
            check(pair[0], depth - 1)
            check(pair[1], depth - 1)
    elif tag == "named" and type(content) is list and [type(c) for c in content] == [str, list]:
        check(content[1], depth - 1)
    elif not _scalar(tag, content):
        raise NotPlain("not the form of a plain value")


def _scalar(tag: str, content: Any) -> bool:
    if tag == "none":
        return content is None
    if tag == "bool":
        return type(content) is bool
    if tag == "str":
        return type(content) is str
    if tag not in _READERS or type(content) is not (list if tag in _PARTS else str):
        return False
    if tag in _PARTS and (
        len(content) != _PARTS[tag] or type(content[0]) is not str
        or any(type(part) is not str and part is not None for part in content)
    ):  # fmt: skip
        return False
    try:
        if tag in ("fraction", "range"):  # making one of long integers takes seconds
            return bool([int(part, 16) for part in content][-1])
        _READERS[tag](content)
    except (ValueError, TypeError, ArithmeticError):
        return False
    return True
