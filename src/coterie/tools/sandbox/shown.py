"""Plain values as text of limited length."""

from collections.abc import Iterator
from typing import Any

from coterie.tools.sandbox.inside.plain import CONTAINERS, Wire, decode

_MAX_INTEGER = 1000
"""Hexadecimal digits; Python prints integers of at most 4,300 decimal digits."""
_BRACKETS = {
    "list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "frozenset": ("frozenset({", "})"),
    "deque": ("deque([", "])"), "iterator": ("iterator([", "])"), "keys": ("dict_keys([", "])"),
    "values": ("dict_values([", "])"), "items": ("dict_items([", "])"), "dict": ("{", "}"),
}  # fmt: skip


def format_value(wire: Wire, max_length: int) -> str:
    """Format a value much like ``repr``, cut to ``max_length`` characters."""
    text = ""
    for piece in _pieces(wire, max_length):
        text += piece
        if len(text) > max_length:
            return text[: max_length - 3] + "..."
    return text


def _pieces(wire: Wire, max_length: int) -> Iterator[str]:
    tag, content = wire
    if tag == "dict" or tag in CONTAINERS:
        before, after = _BRACKETS[tag]
        yield before if content or tag != "set" else "set("
        for number, item in enumerate(content):
            yield ", " if number else ""
            yield from _pair(item, max_length) if tag == "dict" else _pieces(item, max_length)
        if tag == "tuple" and len(content) == 1:
            yield ","
        yield after if content or tag != "set" else ")"
    elif tag == "enum":
        yield f"<{repr(content[0])[1:-1]}: "
        yield from _pieces(content[1], max_length)
        yield ">"
    else:
        yield _scalar(tag, content, max_length)


def _pair(pair: list[Wire], max_length: int) -> Iterator[str]:
    yield from _pieces(pair[0], max_length)
    yield ": "
    yield from _pieces(pair[1], max_length)


def _scalar(tag: str, content: Any, max_length: int) -> str:
    if tag == "str":
        return repr(content[: max_length + 1])
    if tag == "int" and len(content) > _MAX_INTEGER:
        return f"an integer of {int(content, 16).bit_length():,} bits"
    if tag in ("bytes", "bytearray"):
        return repr(decode([tag, content[: 2 * max_length + 2]]))
    if tag in ("fraction", "range") and max(map(len, content)) > _MAX_INTEGER:
        return f"a {tag} of large integers"
    return repr(decode([tag, content]))
