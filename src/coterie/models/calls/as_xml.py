"""Calls as Qwen3-Coder writes them: a function and its parameters as tags, whose values are plain text."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.config.text import shallow
from coterie.models.calls.markup import (
    Markup,
    Span,
    Written,
    json_text,
    past_broken,
    past_space,
    unclosed,
)
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import Finish

_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,), "array": (list,),
    "null": (type(None),), "string": (str,),
}  # fmt: skip


@dataclass(frozen=True)
class QwenXml(Markup):
    """``<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>``.

    A value is text; the tool's schema says what it stands for.
    """

    name: ClassVar[str] = "<function=...> and <parameter=...> between <tool_call> and </tool_call>"
    opening: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closing: ClassVar[str] = "</tool_call>"

    def _read(
        self, text: str, start: int, at: int, finish: Finish, tools: Sequence[Tool]
    ) -> Iterator[Span]:
        function = _FUNCTION.match(text, at)
        if function is None:
            yield self._broken(text, start, at, finish, "", "there is no <function=NAME>")
            return
        name, at = function[1].strip(), function.end()
        schema = next((one.parameters for one in tools if one.name == name), {})
        given: dict[str, object] = {}
        while parameter := _PARAMETER.match(text, at):
            key, end = parameter[1].strip(), _END.search(text, parameter.end())
            if end is None or key in given:
                why = f"<parameter={key}> " + ("is there twice" if end else "is not closed")
                yield self._broken(text, start, at, finish, name, why)
                return
            given[key] = _typed(_unpadded(text[parameter.end() : end.start()]), schema, key)
            at = past_space(text, end.end())
        if not text.startswith("</function>", at):
            yield self._broken(text, start, at, finish, name, "<function> is not closed")
            return
        at = past_space(text, at + len("</function>"))
        closed = text.startswith(self.closing, at)
        error = "" if closed else unclosed(self.opening[0], self.closing, finish)
        error = error if name else "not run: the call has no name"
        yield Span(
            start, at + len(self.closing) * closed, (Written(name, json_text(given), error),)
        )

    def _broken(self, text: str, start: int, at: int, finish: Finish, name: str, why: str) -> Span:
        """A call that can't be read goes on to its closing tag, or to the next call."""
        opening = self.opening[0]
        end, closed = past_broken(text, at, opening, self.closing)
        error = f"not run: the call can't be read: {why}"
        error = error if closed else unclosed(opening, self.closing, finish)
        body = text[start + len(opening) : end].removesuffix(self.closing)
        return Span(start, end, (Written(name, body.strip(), error),))


def _unpadded(value: str) -> str:
    """A value without the line breaks that the markup has around it."""
    return value.removeprefix("\n").removesuffix("\n")


def _typed(value: str, schema: Mapping[str, object], key: str) -> object:
    """What a value stands for by the tool's schema; text where it says nothing, or something else."""
    properties = schema.get("properties")
    kinds = _kinds(properties.get(key), schema) if isinstance(properties, Mapping) else ()
    if kinds == ("string",):
        return value
    try:
        found: Any = shallow(json.loads(value))
    except (ValueError, RecursionError):
        found = _WORDS.get(value.strip().lower(), value)
    if not kinds:
        return found
    if isinstance(found, bool):
        return found if "boolean" in kinds else value
    return found if any(isinstance(found, _KINDS.get(kind, ())) for kind in kinds) else value


def _kinds(schema: object, root: Mapping[str, object], depth: int = 0) -> tuple[str, ...]:
    if not isinstance(schema, Mapping) or depth > 8:
        return ()
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        found: object = root
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        return _kinds(found, root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    if isinstance(kind, list | tuple):
        return tuple(map(str, kind))
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list | tuple):
        return tuple(dict.fromkeys(one for c in choices for one in _kinds(c, root, depth + 1)))
    values = schema.get("enum")
    if isinstance(values, list | tuple) and all(isinstance(one, str) for one in values):
        return ("string",)
    return ()
