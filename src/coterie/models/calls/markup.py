"""What all ways to write calls have in common: where a call stands, what it says, and why it can't be run.

A message is read from its beginning to its end. What stands in a thought is not a call, and what stands in a string of
a call's JSON is neither a thought nor the call's end.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from coterie.config.text import shallow
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, call_id
from coterie.trajectories.turn import Finish

THOUGHT, END_OF_THOUGHT = "<think>", "</think>"
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


class NativeSyntax(Protocol):
    """How a model writes calls by its own chat template, which also shows tools and results.

    Usable as ``environments.protocol.Syntax``.
    """

    @property
    def name(self) -> str: ...

    @property
    def stop(self) -> tuple[str, ...]:
        """None: a message that calls ends with the template's end of turn, after its last call."""
        ...

    def parse(self, text: str, finish: Finish, tools: Sequence[Tool] = ()) -> tuple[ToolCall, ...]:
        """The calls of a message, in their order; ``tools`` say of which types the arguments are."""
        ...

    def show(self, results: Sequence[ToolResult]) -> str:
        """Empty: the chat template shows results."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """A call as it is written."""

    name: str
    arguments: str
    """JSON text; of a call that can't be read, what the model wrote."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A place with calls: a half-open range of the text."""

    start: int
    stop: int
    calls: tuple[Written, ...]


@dataclass(frozen=True)
class Markup(ABC):
    """A way to write calls that begins with a mark."""

    name: ClassVar[str]
    opening: ClassVar[tuple[str, ...]]
    stop: ClassVar[tuple[str, ...]] = ()
    thinks: bool = False
    """Whether the prompt has opened the thought with which a message begins."""

    def parse(self, text: str, finish: Finish, tools: Sequence[Tool] = ()) -> tuple[ToolCall, ...]:
        found = [one for span in self.spans(text, finish, tools) for one in span.calls]
        return tuple(
            ToolCall(call_id(number), whole_text(one.name), whole_text(one.arguments), one.error)
            for number, one in enumerate(found)
        )

    def show(self, results: Sequence[ToolResult]) -> str:
        """Empty: the chat template shows results."""
        return ""

    def spans(self, text: str, finish: Finish, tools: Sequence[Tool]) -> Iterator[Span]:
        at = past_thoughts(text, 0) if self.thinks else 0
        while (mark := next_mark(text, at, self.opening)) is not None:
            start, at = mark
            for span in self._read(text, start, at, finish, tools):
                yield span
                at = span.stop

    @abstractmethod
    def _read(
        self, text: str, start: int, at: int, finish: Finish, tools: Sequence[Tool]
    ) -> Iterator[Span]: ...


def next_mark(text: str, at: int, marks: Sequence[str]) -> tuple[int, int] | None:
    """Where the next mark outside of thoughts begins and ends."""
    while True:
        found = [(p, one) for one in (THOUGHT, *marks) if (p := text.find(one, at)) >= 0]
        if not found:
            return None
        place, mark = min(found)
        if mark != THOUGHT:
            return place, place + len(mark)
        at = past_thoughts(text, place)


def past_thoughts(text: str, at: int) -> int:
    """Where a thought that is open at ``at`` has ended; the end of the text if it is not closed."""
    end = text.find(END_OF_THOUGHT, at)
    return len(text) if end < 0 else end + len(END_OF_THOUGHT)


def past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def past_broken(text: str, at: int, opening: str, closing: str) -> tuple[int, bool]:
    """Where a call ends that can't be read, and whether its closing tag is there; else the next call ends it."""
    close, again = text.find(closing, at), text.find(opening, at)
    if close >= 0 and (again < 0 or close < again):
        return close + len(closing), True
    return (len(text) if again < 0 else again), False


def read_value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at ``at`` after white space, and where it ends. Raises ``ValueError``."""
    try:
        value, end = _DECODER.raw_decode(text, past_space(text, at))
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    return shallow(value), end


def call_of(value: object, key: Sequence[str] = ("arguments",)) -> Written:
    """A call that was read as JSON; its arguments are under the first of the keys that is there."""
    if not isinstance(value, Mapping):
        return Written(
            "", json_text(value), "not run: a call is an object with a name and arguments"
        )
    name = value.get("name")
    given: object = next((value[one] for one in key if one in value), {})
    if not isinstance(name, str) or not name:
        return Written("", json_text(given), "not run: the call has no name")
    if isinstance(given, str):
        return Written(
            name, json_text(given), "not run: the arguments are a text; write them as an object"
        )
    if not isinstance(given, Mapping):
        return Written(name, json_text(given), "not run: the arguments are not an object")
    return Written(name, json_text(given))


def broken(text: str, why: str) -> Written:
    """A call that can't be read."""
    return Written("", text.strip(), f"not run: the call can't be read: {why}")


def unclosed(opening: str, closing: str, finish: Finish) -> str:
    """Why a call without its end is not run."""
    if finish == "length":
        return f"not run: the message was cut off before {closing}"
    return f"not run: {opening} is not closed; write {closing} after the call"


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def whole_text(text: str) -> str:
    """A text in which halves of characters are spelled as in JSON, since no store takes them."""
    return text.encode(errors="backslashreplace").decode()
