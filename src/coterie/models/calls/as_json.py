"""Calls as JSON: between tags (Hermes, Qwen2.5, Qwen3), as the whole message (Llama), after a mark (Mistral)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from coterie.models.calls.markup import (
    THOUGHT,
    Markup,
    Span,
    Written,
    broken,
    call_of,
    next_mark,
    past_broken,
    past_space,
    past_thoughts,
    read_value,
    unclosed,
)
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import Finish

END = "its end"


@dataclass(frozen=True)
class HermesJson(Markup):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, as often as there are calls."""

    name: ClassVar[str] = "JSON between <tool_call> and </tool_call>"
    opening: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closing: ClassVar[str] = "</tool_call>"

    def _read(
        self, text: str, start: int, at: int, finish: Finish, tools: Sequence[Tool]
    ) -> Iterator[Span]:
        opening = self.opening[0]
        try:
            value, end = read_value(text, at)
        except ValueError as error:
            yield self._broken(text, start, at, finish, str(error))
            return
        found, end = call_of(value), past_space(text, end)
        if text.startswith(self.closing, end):
            yield Span(start, end + len(self.closing), (found,))
            return
        why = unclosed(opening, self.closing, finish)
        if end < len(text) and not text.startswith(opening, end):
            after, closed = past_broken(text, end, opening, self.closing)
            if closed:
                end, why = after, "not run: something follows the call's JSON"
        yield Span(start, end, (replace(found, error=found.error or why),))

    def _broken(self, text: str, start: int, at: int, finish: Finish, why: str) -> Span:
        """A call whose JSON is broken goes on to its closing tag, or to the next call."""
        end, closed = past_broken(text, at, self.opening[0], self.closing)
        if closed:
            return Span(start, end, (broken(text[at : end - len(self.closing)], why),))
        why = unclosed(self.opening[0], self.closing, finish)
        return Span(start, end, (Written("", text[at:end].strip(), why),))


@dataclass(frozen=True)
class LlamaJson(Markup):
    """``{"name": ..., "parameters": {...}}`` as the message, or after ``<|python_tag|>``; several with ``;`` between.

    Nothing but the end of the message closes the last call.
    """

    name: ClassVar[str] = "JSON as the whole message, or after <|python_tag|>"
    opening: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    keys: ClassVar[tuple[str, ...]] = ("parameters", "arguments")
    begins: ClassVar[re.Pattern[str]] = re.compile(r'\{\s*"(name|parameters|function|type)"\s*:')

    def _begin(self, text: str) -> int:
        at = past_space(text, past_thoughts(text, 0) if self.thinks else 0)
        while text.startswith(THOUGHT, at):
            at = past_space(text, past_thoughts(text, at))
        return at

    def spans(self, text: str, finish: Finish, tools: Sequence[Tool]) -> Iterator[Span]:
        at = self._begin(text)
        if text.startswith("{", at):
            if self._is_call(text, at):
                yield from self._read(text, at, at, finish, tools)
        elif (mark := next_mark(text, at, self.opening)) is not None:
            yield from self._read(text, *mark, finish, tools)

    def _is_call(self, text: str, at: int) -> bool:
        try:
            value, _ = read_value(text, at)
        except ValueError:
            return self.begins.match(text, at) is not None
        return isinstance(value, Mapping) and any(key in value for key in self.keys)

    def _read(
        self, text: str, start: int, at: int, finish: Finish, tools: Sequence[Tool]
    ) -> Iterator[Span]:
        while True:
            try:
                value, end = read_value(text, at)
            except ValueError as error:
                why = unclosed("the call", END, finish) if finish == "length" else ""
                lost = broken(text[at:], str(error))
                yield Span(start, len(text), (replace(lost, error=why or lost.error),))
                return
            found, after = call_of(value, self.keys), past_space(text, end)
            cut = finish != "end" and after == len(text)
            error_ = found.error or (unclosed("the call", END, finish) if cut else "")
            yield Span(start, after, (replace(found, error=error_),))
            start = after
            at = past_space(text, after + 1) if text.startswith(";", after) else after
            if text.startswith(self.opening[0], at):
                at += len(self.opening[0])
            elif not text.startswith("{", at) and (at == after or at == len(text)):
                return


@dataclass(frozen=True)
class MistralJson(Markup):
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, or ``[TOOL_CALLS]name[ARGS]{...}`` for each call."""

    name: ClassVar[str] = "JSON after [TOOL_CALLS]"
    opening: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)
    named: ClassVar[re.Pattern[str]] = re.compile(r"([^\[\]{}]*)(?:\[CALL_ID\][^\[\]{}]*)?\[ARGS\]")

    def _read(
        self, text: str, start: int, at: int, finish: Finish, tools: Sequence[Tool]
    ) -> Iterator[Span]:
        named = self.named.match(text, at)
        try:
            value, end = read_value(text, named.end() if named else at)
        except ValueError as error:
            again = text.find(self.opening[0], at)
            end = len(text) if again < 0 else again
            lost = broken(text[at:end], str(error))
            if finish == "length" and again < 0:
                lost = replace(lost, error=unclosed("the call", END, finish))
            yield Span(start, end, (replace(lost, name=named[1].strip() if named else ""),))
            return
        end = past_space(text, end)
        if named is None:
            values = value if isinstance(value, list) else [value]
            yield Span(start, end, tuple(map(call_of, values)))
            return
        found = call_of({"name": named[1].strip(), "arguments": value})
        cut = unclosed("the call", END, finish) if finish != "end" and end == len(text) else ""
        yield Span(start, end, (replace(found, error=found.error or cut),))
