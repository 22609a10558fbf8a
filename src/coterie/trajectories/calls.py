"""Tools, calls of them and what the calls returned.

The calls of a turn are named by their place (``c0``, ``c1``, ...), never by an engine's own ids. The
results of a turn's calls are one group, in the order of the calls: their order of arrival changes nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_PLACE = re.compile(r"c(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Tool:
    """What an agent may call: data only. Who runs it is the environment's affair."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments, which is a schema of an object."""
    alone: bool = False
    """Whether it changes the environment: such a call runs in its place in the order, beside no other."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A structured call: the tool's name and its arguments as JSON text."""

    id: str
    """``c`` and the call's place among those of its turn, from 0."""
    name: str
    arguments: str
    error: str = ""
    """Why the call can't be run (not JSON, no such tool, cut off): it is answered, and never run."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call returned."""

    call_id: str
    text: str
    error: bool = False
    began: float = field(default=0.0, compare=False)
    """Seconds from the first call of its turn to this one; when a call was made is not part of what it gave."""
    seconds: float = field(default=0.0, compare=False)
    """How long it took, all tries together; 0 of a call that was not run."""
    left_out: int = field(default=0, compare=False)
    """Characters that were cut out of its text."""


def call_id(place: int) -> str:
    """The id of the call at ``place``, from 0."""
    return f"c{place}"


def place(id_: str) -> int:
    """The place of a call, from its id; ``ValueError`` for an id that is not of this form."""
    found = _PLACE.fullmatch(id_)
    if found is None:
        raise ValueError(f"{id_!r} is not the id of a call: calls are c0, c1, ... by their place")
    return int(found[1])


def check_calls(calls: Sequence[ToolCall]) -> None:
    """Refuse, with ``ValueError``, calls that are not named by their place."""
    if [call.id for call in calls] != [call_id(number) for number in range(len(calls))]:
        raise ValueError(f"calls are named c0, c1, ... in their order, not {[c.id for c in calls]}")


def in_order(results: Iterable[ToolResult]) -> tuple[ToolResult, ...]:
    """Results by the place of their calls; ``ValueError`` for two of one call."""
    given = tuple(results)
    found = {place(result.call_id): result for result in given}
    if len(found) < len(given):
        raise ValueError(f"two results of one call: {[result.call_id for result in given]}")
    return tuple(found[at] for at in sorted(found))
