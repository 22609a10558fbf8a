"""What a chat template can do for tools, found by trying it, and the syntax in which its model writes calls.

A syntax is chosen by a round trip: the template writes two calls, and the syntax that reads the same calls back is the
model's. So no model is read by the parser of another family.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from transformers import PreTrainedTokenizerBase

from coterie.config.text import shallow
from coterie.errors import UserError
from coterie.models.calls.as_json import HermesJson, LlamaJson, MistralJson
from coterie.models.calls.markup import (
    THOUGHT,
    Markup,
    NativeSyntax,
    Span,
    Written,
    broken,
    call_of,
    json_text,
    past_broken,
    past_space,
    unclosed,
    whole_text,
)
from coterie.models.control import ControlTokens
from coterie.models.layout import WORD, Layout, Shown, Slot, around_calls
from coterie.models.offering import called, offered
from coterie.models.template import ChatTemplate
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, call_id
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


class ResponseTemplate:
    """The tokenizer's ``response_template``. It does not say whether a call is closed: of a message that did not
    end by itself the last call is not run.
    """

    name: ClassVar[str] = "the tokenizer's response template"
    stop: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
        self.tokenizer = tokenizer
        self.prompt = prompt
        """With which a prompt ends; it may have begun the message."""

    def parse(self, text: str, finish: Finish, tools: Sequence[Tool] = ()) -> tuple[ToolCall, ...]:
        try:
            message = self.tokenizer.parse_response(
                text, prefix=self.prompt, tools=[offered(tool) for tool in tools]
            )
            calls = shallow(message.get("tool_calls") or [])
        except (
            Exception
        ) as error:  # whatever the template's own parsers raise on what a model wrote
            return _named([broken(text, str(error).partition("\n")[0])])
        found = [call_of(_function(one)) for one in calls]
        if found and finish != "end":
            last = found[-1]
            error_ = last.error or unclosed("the last call", "its end", finish)
            found[-1] = replace(last, error=error_)
        return _named(found)

    def show(self, results: Sequence[ToolResult]) -> str:
        return ""


def _function(call: object) -> object:
    return call.get("function", call) if isinstance(call, Mapping) else call


def _named(found: Sequence[Written]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(call_id(number), whole_text(one.name), whole_text(one.arguments), one.error)
        for number, one in enumerate(found)
    )


MARKUPS: tuple[type[Markup], ...] = (HermesJson, QwenXml, LlamaJson, MistralJson)
Results = Literal["tool", "calls", "user"]
"""How results are shown: in ``tool`` messages after what the model said; in ``tool`` messages after a message with
``tool_calls``, which what the model said replaces; as a user's message."""

_VALUES = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": f"{WORD}query"},
        "count": {"type": "integer"},
        "deep": {"type": "object"},
    },
}
TOOLS = (
    Tool(f"find{WORD}", f"Finds {WORD}found.", _VALUES),
    Tool(f"note{WORD}", f"Notes {WORD}noted.", _VALUES),
)
CALLS = (
    (TOOLS[0].name, {"query": "Zoë said \"no\" & 'yes'\n<b>", "deep": {"a": [1, {"b": "ü"}]}}),
    (TOOLS[1].name, {"query": "two\\words", "count": 2}),
)
"""What the template is to write, and a syntax to read back."""


@dataclass(frozen=True, slots=True)
class ToolTemplate:
    """What a chat template can do for tools."""

    syntax: NativeSyntax | None
    """How its model writes calls; ``None`` if the template shows no calls, or in a way that nothing here reads."""
    shows_tools: bool
    parallel: bool
    """Whether it writes two calls in one message. The syntax reads several in any case."""
    results: Results
    long_ids: bool
    """Whether it takes ids of calls only if they have nine characters."""
    users_after_results: bool = True
    """Whether a user may speak right after results; where not, such words are shown with the last one."""
    ends: frozenset[int] = frozenset()
    """Ids that end a message with calls."""
    markup: frozenset[int] = frozenset()
    """Control tokens with which calls are written; an agent's own messages may have them."""

    def call_id(self, place: int) -> str:
        """The id of a call in the template's form: by its place, so that prompts stay the same."""
        return _id(place, self.long_ids)

    def required(self) -> NativeSyntax:
        """The syntax; ``UserError`` if the model has none that can be used."""
        if self.syntax is None or not self.shows_tools:
            raise UserError(
                f"this model can't call tools in a syntax of its own: {' '.join(self.findings[:2])}",
                "use tags for calls (tools.calls=tags), or a model whose chat template has tools",
            )
        return self.syntax

    @property
    def findings(self) -> tuple[str, ...]:
        results = {
            "tool": "Results are shown as tool messages.",
            "calls": "Results are shown as tool messages, which the template takes only after calls.",
            "user": "The template takes no tool messages: results are shown as a user's.",
        }
        return (
            "The chat template shows tools."
            if self.shows_tools
            else "The chat template shows no tools.",
            "No way to write calls that coterie can read was found in it."
            if self.syntax is None
            else f"Calls are written as {self.syntax.name}.",
            "The template writes several calls of one message."
            if self.parallel
            else "The template writes one call of a message; several are read where the model writes them.",
            results[self.results],
        )


def tool_template(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, control: ControlTokens
) -> ToolTemplate:
    look = _Look(tokenizer, template, control)
    shows = look.shows_tools()
    found = next(((n, long) for n in (2, 1) for long in (False, True) if look.text(n, long)), None)
    syntax = look.syntax(*found) if shows and found else None
    results, long_ids = look.results(syntax is not None)
    ends, markup = look.tokens(long_ids) if syntax else (frozenset[int](), frozenset[int]())
    parallel = found is not None and found[0] == 2
    after = results == "user" or look.shows(_asked_after_results(results, long_ids))
    return ToolTemplate(syntax, shows, parallel, results, long_ids, after, ends, markup)


@dataclass(frozen=True, slots=True)
class _Look:
    """Tries a template."""

    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    control: ControlTokens

    def shows_tools(self) -> bool:
        text = self._written([_USER], True, TOOLS)
        return all(tool.name in text and tool.description in text for tool in TOOLS)

    def text(self, count: int, long_ids: bool) -> str:
        """What the template writes of so many calls, from the user's message on; empty if it refuses."""
        calls = [
            called(ToolCall(call_id(n), name, json.dumps(given)), _id(n, long_ids))
            for n, (name, given) in enumerate(CALLS[:count])
        ]
        said = {"role": "assistant", "content": "", "tool_calls": calls}
        text = self._written([_USER, said], False, TOOLS).rpartition(_USER["content"])[2]
        return text if all(name in text for name, _ in CALLS[:count]) else ""

    def syntax(self, count: int, long_ids: bool) -> NativeSyntax | None:
        """The syntax that reads what the template writes; our own ones first, which know cut calls best."""
        header = self.template.header()
        text = self.text(count, long_ids)
        begun = header.rstrip().removesuffix(THOUGHT)
        text = text.partition(begun)[2] if begun and begun in text else text
        for markup in MARKUPS:
            if _reads(markup(), text, count):
                return markup(thinks=header.rstrip().endswith(THOUGHT))
        if getattr(self.tokenizer, "response_template", None):
            own = ResponseTemplate(self.tokenizer, header)
            if _reads(own, text, count):
                return own
        return None

    def results(self, calls: bool) -> tuple[Results, bool]:
        ways: tuple[Results, ...] = ("tool", "calls") if calls else ("tool",)
        for way in ways:
            for long_ids in (False, True):
                if self.shows(_dialogue(way, long_ids)):
                    return way, long_ids
        return "user", False

    def tokens(self, long_ids: bool) -> tuple[frozenset[int], frozenset[int]]:
        id_ = (_id(0, long_ids),)
        before, after = around_calls(self.template, id_, ())
        marks = self._control(before + WORD + after)
        added = self.tokenizer.added_tokens_decoder
        if (last := self._control(after)[-1:]) and added[last[0]].special:
            return frozenset(last), frozenset(marks) - {*last}
        said = Slot(f"{WORD}said")
        chat = [
            Shown("user", (Slot("a"),)),
            Shown("assistant", (said,), call_ids=id_, stands_in=True),
            Shown("tool", (Slot("b"),), id_[0], Slot("find")),
        ]
        try:
            pieces = Layout(self.template, chat, False, self.control.hidden).pieces()
        except UserError:
            return frozenset(), frozenset(marks)
        then = pieces[pieces.index(said) + 1 :]
        follows = "".join(one for one in then if isinstance(one, str))
        return frozenset(self._control(follows)[:1]), frozenset(marks)

    def _control(self, text: str) -> list[int]:
        return self.control.written(text)

    def shows(self, dialogue: Iterable[Shown]) -> bool:
        chat = list(dialogue)
        try:
            pieces = Layout(self.template, chat, True, self.control.hidden).pieces()
        except UserError:
            return False
        words = [slot.text for shown in chat for slot in shown.slots]
        return [one.text for one in pieces if isinstance(one, Slot) and one.text in words] == words

    def _written(
        self, chat: Sequence[Mapping[str, Any]], generation: bool, tools: Sequence[Tool]
    ) -> str:
        try:
            return self.template.text(chat, generation, [offered(tool) for tool in tools])
        except UserError:
            return ""


_USER = {"role": "user", "content": f"{WORD}asked"}


def _id(place: int, long: bool) -> str:
    return f"call{place:05}" if long else call_id(place)


def _dialogue(way: Results, long_ids: bool) -> Iterator[Shown]:
    """Two messages with calls, of which the first has two, their results, an answer and what a user says then."""
    yield Shown("user", (Slot("word0"),))
    number = 1
    for count in (2, 1):
        ids = tuple(_id(place, long_ids) for place in range(count))
        said = (Slot(f"word{number}"),)
        calls = way == "calls"
        yield Shown("assistant", said, call_ids=ids if calls else (), stands_in=calls)
        for place, id_ in enumerate(ids, 1):
            yield Shown("tool", (Slot(f"word{number + place}"),), id_, Slot("name"))
        number += count + 1
    yield Shown("assistant", (Slot(f"word{number}"),))
    yield Shown("user", (Slot(f"word{number + 1}"),))


def _asked_after_results(way: Results, long_ids: bool) -> Iterator[Shown]:
    *begun, _, _ = _dialogue(way, long_ids)
    yield from begun
    yield Shown("user", (Slot("word8"),))


def _reads(syntax: NativeSyntax, text: str, count: int) -> bool:
    found = syntax.parse(text, "end", TOOLS)
    if any(call.error for call in found):
        return False
    return [(one.name, json.loads(one.arguments)) for one in found] == list(CALLS[:count])
