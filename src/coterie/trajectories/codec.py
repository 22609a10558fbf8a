"""Encoding of the record in the store: ids and log-probs as blobs, parts as JSON."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from coterie.trajectories.calls import Tool, ToolCall, ToolResult
from coterie.trajectories.item import Metrics
from coterie.trajectories.turn import Message, Part

T = TypeVar("T")

PARTS = TypeAdapter(tuple[Part, ...])
MESSAGES = TypeAdapter(tuple[Message, ...])
CALLS = TypeAdapter(tuple[ToolCall, ...])
RESULTS = TypeAdapter(tuple[ToolResult, ...])
TOOLS = TypeAdapter(tuple[Tool, ...])
READERS = TypeAdapter(frozenset[str])
PUBLIC: TypeAdapter[Mapping[str, object]] = TypeAdapter(dict[str, object])
METRICS: TypeAdapter[Metrics] = TypeAdapter(dict[str, float | int | str])


class BrokenRecord(Exception):
    """An invalid value in the store: the file was damaged or edited."""


def digest_of(*values: object) -> bytes:
    """Return a digest of a row's values as SQLite returns them."""
    back = [value + 0.0 if isinstance(value, float) else value for value in values]  # -0.0 is 0.0
    return hashlib.blake2b(repr(back).encode(), digest_size=8).digest()


def ids_blob(ids: Sequence[int]) -> bytes:
    """Encode token ids as little-endian int32."""
    return np.array(ids, dtype="<i4").tobytes()


def logprobs_blob(logprobs: Sequence[float]) -> bytes:
    """Encode log-probs as little-endian float32."""
    return np.array(logprobs, dtype="<f4").tobytes()


def ids_of(blob: bytes) -> tuple[int, ...]:
    return tuple(_numbers(blob, "<i4"))


def logprobs_of(blob: bytes) -> tuple[float, ...]:
    return tuple(_numbers(blob, "<f4"))


def plain(value: object) -> object:
    """Convert a dataclass of the record to JSON-able values, without fields at their default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: plain(getattr(value, name))
            for name, default in _defaults(type(value))
            if getattr(value, name) != default
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def json_of(value: object) -> str:
    """Return :func:`plain` as compact JSON."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def value_of(adapter: TypeAdapter[T], text: str) -> T:
    """Parse and check a value of :func:`json_of`; raises :class:`BrokenRecord`."""
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        raise BrokenRecord(str(error)) from error


@cache
def _defaults(kind: type) -> list[tuple[str, object]]:
    """Return the fields of a dataclass with their defaults (``MISSING`` without one)."""
    return [
        (
            field.name,
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory(),
        )
        for field in dataclasses.fields(kind)
    ]


def _numbers(blob: bytes, dtype: str) -> list[Any]:
    try:
        numbers: list[Any] = np.frombuffer(blob, dtype=dtype).tolist()
        return numbers
    except ValueError as error:
        raise BrokenRecord(f"{len(blob)} bytes are not an array of {dtype}") from error
