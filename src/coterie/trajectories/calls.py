"""Tools, tool calls and their results.

Calls have ids by their index in the turn (``c0``, ``c1``, ...), not the engine's ids. Results are sorted by call, so
their order of arrival changes nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_PLACE = re.compile(r"c(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Tool:
    """Description of a tool; the environment runs it."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments, an object."""
    alone: bool = False
    """True if it changes the environment: its calls run in order, never concurrently with others."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    id: str
    """``c`` and the call's index in its turn, from 0."""
    name: str
    arguments: str
    error: str = ""
    """Reason why the call is answered without running it (invalid JSON, unknown tool, cut off)."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call."""

    call_id: str
    text: str
    error: bool = False
    began: float = field(default=0.0, compare=False)
    """Seconds from the first call of its turn to this one."""
    seconds: float = field(default=0.0, compare=False)
    """Duration of all tries; 0 if the call was not run."""
    left_out: int = field(default=0, compare=False)
    """Number of characters removed from its text."""


def call_id(place: int) -> str:
    return f"c{place}"


def place(id_: str) -> int:
    """Return the index of a call from its id. Raises ``ValueError`` for other ids."""
    match = _PLACE.fullmatch(id_)
    if match is None:
        raise ValueError(f"{id_!r} is not the id of a call; ids are c0, c1, ...")
    return int(match[1])


def check_calls(calls: Sequence[ToolCall]) -> None:
    """Raise ``ValueError`` for calls whose ids are not their indices."""
    if [call.id for call in calls] != [call_id(number) for number in range(len(calls))]:
        raise ValueError(f"call ids must be c0, c1, ... in order, got {[c.id for c in calls]}")


def in_order(results: Iterable[ToolResult]) -> tuple[ToolResult, ...]:
    """Sort results by call. Raises ``ValueError`` for two results of one call."""
    ordered = sorted(results, key=lambda result: place(result.call_id))
    if len({result.call_id for result in ordered}) < len(ordered):
        raise ValueError(f"two results of one call: {[result.call_id for result in ordered]}")
    return tuple(ordered)
