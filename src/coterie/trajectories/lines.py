"""The lines of a JSONL record: one type for each kind of line, and how a line is read.

A line is a JSON object with its ``kind`` and the fields of that kind's class below; a field at its
default may be left out, an unknown one is an error. A line may refer only to lines before it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from coterie.config.plain import wrong
from coterie.trajectories.codec import plain
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import Item, ItemKey
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import Outcome
from coterie.trajectories.turn import Request, Turn


@dataclass(frozen=True, slots=True)
class HeaderLine:
    """The first line of an export; a file written by hand may leave it out."""

    format: Literal["coterie-2"] = "coterie-2"
    kind: Literal["header"] = "header"


@dataclass(frozen=True, slots=True)
class SecretText:
    """A secret that is let out of the house on purpose."""

    text: str
    readers: frozenset[str] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task; ``secrets`` are there only if the export was asked for them."""

    id: str
    public: dict[str, object]
    secrets: Mapping[str, SecretText] = field(default_factory=dict)
    kind: Literal["task"] = "task"


@dataclass(frozen=True, slots=True)
class BlobLine:
    """Bytes that parts name by their SHA-256, such as an image's."""

    base64: str
    kind: Literal["blob"] = "blob"


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request of the tree that ``item`` belongs to."""

    item: ItemKey
    request: Request
    kind: Literal["request"] = "request"


@dataclass(frozen=True, slots=True)
class TurnLine:
    """A turn, with the item that it is filed under."""

    item: ItemKey
    turn: Turn
    kind: Literal["turn"] = "turn"


@dataclass(frozen=True, slots=True)
class OutcomeLine:
    """How a path of the tree that ``item`` belongs to ended."""

    item: ItemKey
    outcome: Outcome
    kind: Literal["outcome"] = "outcome"


@dataclass(frozen=True, slots=True)
class CreditLine:
    """A number on a node."""

    credit: Credit
    kind: Literal["credit"] = "credit"


@dataclass(frozen=True, slots=True)
class ItemLine:
    """An item that is finished."""

    item: Item
    kind: Literal["item"] = "item"


@dataclass(frozen=True, slots=True)
class SelectionLine:
    """The next thing that an item selected."""

    item: ItemKey
    selection: Selection
    kind: Literal["selection"] = "selection"


Line = (
    HeaderLine
    | TaskLine
    | BlobLine
    | RequestLine
    | TurnLine
    | OutcomeLine
    | CreditLine
    | ItemLine
    | SelectionLine
)
_ADAPTER: TypeAdapter[Line] = TypeAdapter(
    Annotated[Line, Field(discriminator="kind")], config=ConfigDict(extra="forbid")
)
_SPACE = re.compile(r"[ \t\r\n]*")


class BrokenLine(ValueError):
    """A line that cannot be read; says the column and the reason."""

    def __init__(self, column: int, reason: str) -> None:
        super().__init__(f"column {column}: {reason}")


def dumps(line: Line) -> str:
    """A line as text, without its newline."""
    fields = plain(line)
    assert isinstance(fields, dict), "a line is a dataclass"
    return json.dumps({"kind": line.kind, **fields}, ensure_ascii=False, separators=(",", ":"))


def loads(data: bytes) -> Line:
    """The line in ``data``, every value checked by type; raises :class:`BrokenLine`."""
    try:
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BrokenLine(error.start + 1, f"not UTF-8: {error.reason}") from error
    try:
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        reason = str(first.get("ctx", {}).get("error", ""))
        syntax = re.fullmatch(r"(.*) at line 1 column (\d+)", reason)
        if first["type"] == "json_invalid" and syntax:
            raise BrokenLine(int(syntax[2]), f"not JSON: {syntax[1]}") from error
        path = first["loc"][1:]  # the first step is the kind
        place = ".".join(map(str, path)) or "the line"
        raise BrokenLine(_column(text, path), f"{place}: {wrong(first)}") from error


def _column(text: str, path: Sequence[str | int]) -> int:
    """Column, from 1, of the value at ``path``, or of the innermost value on the way to it."""
    position = _skip(text, 0)
    for step in path:
        inner = _member(text, position, step)
        if inner is None:
            break
        position = inner
    return position + 1


def _member(text: str, start: int, step: str | int) -> int | None:
    """Where member ``step`` of the object or array at ``start`` begins, in valid JSON."""
    if text[start] not in "{[":
        return None
    decoder, index = json.JSONDecoder(), 0
    position = _skip(text, start + 1)
    while text[position] not in "}]":
        key: str | int = index
        if text[start] == "{":
            key, position = decoder.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)  # over the colon
        if key == step:
            return position
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        index += 1
    return None


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None, "white space may be empty"
    return found.end()
