"""Parsers of tool calls, for the syntaxes of model families.

Text in a thought is no call. Text in a string of a call neither begins a thought nor ends the call. Text that begins
like a call but cannot be read is a call with an error.
"""

import ast
import json
import keyword
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

from coterie.config.folders import shallow
from coterie.record.turn import Finish, Tool, ToolCall, ToolResult, call_id

THOUGHT, END_OF_THOUGHT = "<think>", "</think>"
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_NOTHING = re.compile("")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,), "array": (list,),
    "null": (type(None),), "string": (str,),
}  # fmt: skip
_TOO_MANY = 64
"""Limit of closing tags that may end a Python list of calls."""

Body = tuple[list[ToolCall], int, bool]
"""Calls after an opening, the index of their end, and True if they need no closing."""


class NativeSyntax(ABC):
    """Call syntax of a model. Implements ``environments.protocol.Syntax``."""

    name: str
    stop: ClassVar[tuple[str, ...]] = ()
    """Empty, since a message with calls ends with the template's end of turn."""

    @abstractmethod
    def read(self, text: str, finish: Finish, tools: Sequence[Tool]) -> Iterator[ToolCall]:
        """Yield the calls of a message in order, without ids; ``tools`` give the types of arguments."""

    def parse(self, text: str, finish: Finish, tools: Sequence[Tool] = ()) -> tuple[ToolCall, ...]:
        """Return the calls of a message, with ids by position; calls that cannot run have an error."""
        return tuple(
            replace(
                one,
                id=call_id(place),
                name=whole_text(one.name),
                arguments=whole_text(one.arguments),
            )
            for place, one in enumerate(self.read(text, finish, tools))
        )

    def show(self, results: Sequence[ToolResult]) -> str:
        """Return nothing: the chat template shows results."""
        return ""


@dataclass(frozen=True)
class Markup(NativeSyntax):
    """Syntax with marks around calls."""

    opening: ClassVar[re.Pattern[str]]
    """Beginning of a call, or of text that looks like one."""
    head: ClassVar[re.Pattern[str]] = _NOTHING
    """Text from the opening to the arguments; its group is the tool's name."""
    closing: ClassVar[str] = ""
    """Text that closes a call; if empty, the next call or the end of the message closes it."""
    ends_message: ClassVar[bool] = False
    """True if the closing token also ends the message."""
    thought: ClassVar[re.Pattern[str]] = re.compile(THOUGHT)
    end_of_thought: ClassVar[re.Pattern[str]] = re.compile(END_OF_THOUGHT)
    thinks: bool = False
    """True if the prompt opens the thought of a message."""

    @abstractmethod
    def _body(self, text: str, start: int, tools: Sequence[Tool]) -> Body:
        """Read the call whose opening is at ``start``; ``ValueError`` with the reason if it is broken."""

    def read(self, text: str, finish: Finish, tools: Sequence[Tool]) -> Iterator[ToolCall]:
        at = self._past_thought(text, 0) if self.thinks else 0
        while mark := self._next(text, at, tools):
            try:
                calls, stop, whole = self._body(text, mark.start(), tools)
            except ValueError as error:
                head = self.head.match(text, mark.start())
                at, closed = self._past_broken(text, max(mark.end(), head.end() if head else 0))
                arguments = text[mark.end() : at - len(self.closing) * closed].strip()
                why = f"not run: the call can't be read: {error}"
                if not closed and (self.closing or (finish == "length" and at == len(text))):
                    why = self._unclosed(mark[0], finish)
                name = head[1] if head and head.re.groups else None
                yield ToolCall("", (name or "").strip(), arguments, why)
                continue
            at, why = past_space(text, stop), ""
            if self.closing and text.startswith(self.closing, at):
                at += len(self.closing)
            elif not whole:
                at, why = self._open(text, at, mark, finish)
            for one in calls:
                yield replace(one, error=one.error or why)
        if finish == "end" and (mark := self._in_open_thought(text, at)):
            why = "not run: the thought before the call is not closed"
            yield ToolCall("", "", text[mark.end() :].strip(), why)

    def _in_open_thought(self, text: str, at: int) -> re.Match[str] | None:
        """Find a call after ``at`` in a thought that the message does not close."""
        begins = [one.end() for one in self.thought.finditer(text, at)]
        if self.thinks and not self.end_of_thought.search(text):
            begins = [0]
        if not begins or self.end_of_thought.search(text, begins[-1]):
            return None
        return self.opening.search(text, begins[-1])

    def _open(self, text: str, at: int, mark: re.Match[str], finish: Finish) -> tuple[int, str]:
        """Return the end of a call without its closing, and the reason not to run it."""
        at_end = at == len(text)
        if at_end and finish == "end" and (self.ends_message or not self.closing):
            return at, ""
        if not self.closing:
            return at, self._unclosed(mark[0], finish) if at_end else ""
        after, closed = self._past_broken(text, at)
        if closed and not at_end:
            return after, "not run: something follows the call's arguments"
        return at, self._unclosed(mark[0], finish)

    def _next(self, text: str, at: int, tools: Sequence[Tool]) -> re.Match[str] | None:
        """Find the next opening outside of thoughts."""
        while opening := self.opening.search(text, at):
            thought = self.thought.search(text, at)
            if thought is None or thought.start() > opening.start():
                return opening
            at = self._past_thought(text, thought.end())
        return None

    def _past_thought(self, text: str, at: int) -> int:
        end = self.end_of_thought.search(text, at)
        return end.end() if end else len(text)

    def _past_broken(self, text: str, at: int) -> tuple[int, bool]:
        """Return the end of a broken call, and True if it is the closing (False for the next call)."""
        again = self.opening.search(text, at)
        stop = again.start() if again else len(text)
        close = text.find(self.closing, at, stop) if self.closing else -1
        return (stop, False) if close < 0 else (close + len(self.closing), True)

    def _unclosed(self, opening: str, finish: Finish) -> str:
        closing = self.closing or "its end"
        if finish == "length":
            return f"not run: the message was cut off before {closing}"
        return f"not run: {opening.strip()} is not closed; write {closing} after the call"

    def _head(self, text: str, start: int) -> re.Match[str]:
        head = self.head.match(text, start)
        if head is None:
            raise ValueError(f"calls are {self.name}")
        return head


class JsonMarkup(Markup):
    """Calls with JSON arguments, after a head with the tool's name or in an object (or list) with it."""

    tail: ClassVar[re.Pattern[str]] = _NOTHING
    """Text between the arguments and the closing."""

    def _body(self, text: str, start: int, tools: Sequence[Tool]) -> Body:
        head = self._head(text, start)
        value, stop = read_value(text, head.end())
        tail = self.tail.match(text, stop)
        stop = tail.end() if tail else stop
        if head.re.groups and head[1] is not None:
            return [call_of({"name": head[1].strip(), "arguments": value})], stop, False
        values = value if isinstance(value, list) and not self.closing else [value]
        return [call_of(one) for one in values], stop, values is value


class HermesJson(JsonMarkup):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen2.5, Qwen3)."""

    name = "JSON between <tool_call> and </tool_call>"
    opening = re.compile("<tool_call>")
    head = opening
    closing = "</tool_call>"


class MistralJson(JsonMarkup):
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, or ``[TOOL_CALLS]name[ARGS]{...}`` for each call."""

    name = "JSON after [TOOL_CALLS]"
    opening = re.compile(r"\[TOOL_CALLS\]")
    head = re.compile(r"\[TOOL_CALLS\](?:([^\[\]{}]*)(?:\[CALL_ID\][^\[\]{}]*)?\[ARGS\])?")
    thought = re.compile(rf"{THOUGHT}|\[THINK\]")
    end_of_thought = re.compile(rf"{END_OF_THOUGHT}|\[/THINK\]")


class HarmonyJson(JsonMarkup):
    """``to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>`` (gpt-oss).

    The model also writes the channel before the recipient. A thought is a message on the channel ``analysis``.
    """

    name = "messages to functions.NAME that end with <|call|>"
    opening = re.compile(r"(?:\A|<\|start\|>|<\|channel\|>)[^<]*?\bto=")
    head = re.compile(
        r"(?:\A|<\|start\|>|<\|channel\|>)[^<]*?\bto=(?:functions\.)?([^\s<]*)"
        r"(?:[^<]|<\|channel\|>|<\|constrain\|>)*<\|message\|>"
    )
    closing = "<|call|>"
    ends_message = True
    thought = re.compile(r"<\|channel\|>analysis<\|message\|>")
    end_of_thought = re.compile(r"<\|end\|>")


class DeepSeekJson(JsonMarkup):
    """DeepSeek's calls: in V3 with ``function`` before the name and a code block, in V3.1 without."""

    name = "JSON between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>"
    opening = re.compile(
        "(?:<｜tool▁calls▁begin｜>\\s*)?<｜tool▁call▁begin｜>|<｜tool▁calls▁begin｜>"
    )
    head = re.compile(
        "(?:<｜tool▁calls▁begin｜>\\s*)?<｜tool▁call▁begin｜>(?:\\s*function<｜tool▁sep｜>)?"
        "([^\\n<`]*)(?:<｜tool▁sep｜>|\\n```json\\n)"
    )
    tail = re.compile(r"\s*```")
    closing = "<｜tool▁call▁end｜>"


class KimiJson(JsonMarkup):
    """``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`` (Kimi K2)."""

    name = "JSON between <|tool_call_begin|> and <|tool_call_end|>"
    opening = re.compile(
        r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>|<\|tool_calls_section_begin\|>"
    )
    head = re.compile(
        r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*(?:functions\.)?"
        r"([^\n<:]*)(?::\d+\s*)?<\|tool_call_argument_begin\|>"
    )
    closing = "<|tool_call_end|>"


class LlamaJson(JsonMarkup):
    """``{"name": ..., "parameters": {...}}`` as the message or after ``<|python_tag|>``, separated by ``;``.

    The end of the message closes the last call.
    """

    name = "JSON as the whole message, or after <|python_tag|>"
    opening = re.compile(r"<\|python_tag\|>")
    head = re.compile(r"\s*;?\s*(?:<\|python_tag\|>)?")
    begins = re.compile(r'\{\s*"(name|parameters|function|type)"\s*:')

    def _next(self, text: str, at: int, tools: Sequence[Tool]) -> re.Match[str] | None:
        """Find an object at the beginning of the message or after a call, or else the next mark."""
        while self.thought.match(text, past_space(text, at)):
            at = self._past_thought(text, at)
        head = self.head.match(text, at)
        names = [tool.name for tool in tools]
        is_call = head is not None and self._is_call(text, head.end(), names)
        return head if is_call else super()._next(text, at, tools)

    def _is_call(self, text: str, at: int, names: Sequence[str]) -> bool:
        try:
            value, _ = read_value(text, at)
        except ValueError:
            return self.begins.match(text, at) is not None
        return isinstance(value, Mapping) and (
            value.get("name") in names or any(key in value for key in ARGUMENTS)
        )


class Tagged(Markup):
    """Calls with arguments between tags, typed by the tool's schema."""

    parameter: ClassVar[re.Pattern[str]]
    """Text before an argument; its group is the argument's name."""
    end: ClassVar[re.Pattern[str]]
    """Text after an argument."""
    inner: ClassVar[str] = ""
    """Text between the last argument and the closing."""
    padded: ClassVar[bool] = False
    """True if line breaks surround each argument."""

    def _body(self, text: str, start: int, tools: Sequence[Tool]) -> Body:
        head = self._head(text, start)
        at, name = past_space(text, head.end()), head[1].strip()
        schema = next((one.parameters for one in tools if one.name == name), {})
        arguments: dict[str, object] = {}
        while parameter := self.parameter.match(text, at):
            key, end = parameter[1].strip(), self.end.search(text, parameter.end())
            if end is None or key in arguments:
                raise ValueError(f"{parameter[0]} {'is there twice' if end else 'is not closed'}")
            value = text[parameter.end() : end.start()]
            value = value.removeprefix("\n").removesuffix("\n") if self.padded else value
            arguments[key] = _typed(value, schema, key)
            at = past_space(text, end.end())
        if not text.startswith(self.inner, at):
            raise ValueError(f"there is no {self.inner} after the arguments")
        at = past_space(text, at + len(self.inner))
        call = call_of({"name": name, "arguments": arguments})
        wrapper = self.opening.pattern.partition("|")[0]
        continues = self.head.match(text, at) and not text.startswith(wrapper, at)
        return [call], at, bool(continues) or not text.startswith(wrapper, start)


class QwenXml(Tagged):
    """``<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`` (Qwen3-Coder, Qwen3.5).

    Models may omit the first tag, and then also the last one.
    """

    name = "<function=...> and <parameter=...> between <tool_call> and </tool_call>"
    opening = re.compile("<tool_call>|<function=")
    head = re.compile(r"(?:<tool_call>\s*)?<function=([^<>\n]*)>")
    parameter = re.compile(r"<parameter=([^<>\n]*)>")
    end = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
    inner = "</function>"
    closing = "</tool_call>"
    padded = True


class GlmXml(Tagged):
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`` (GLM)."""

    name = "<arg_key> and <arg_value> between <tool_call> and </tool_call>"
    opening = re.compile("<tool_call>")
    head = re.compile(r"<tool_call>\s*([^\s<>{}]+)(?=\s*(?:<|\Z))")
    parameter = re.compile(r"<arg_key>([^<>\n]*)</arg_key>\s*<arg_value>")
    end = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")
    closing = "</tool_call>"


class MuseXml(Tagged):
    """``<atem:invoke name="NAME"><atem:parameter name="KEY">value</atem:parameter></atem:invoke>`` (Muse).

    Thoughts are messages to ``self``.
    """

    name = "<atem:invoke> between <atem:function_calls> and </atem:function_calls>"
    opening = re.compile("<atem:function_calls>|<atem:invoke ")
    head = re.compile(r'(?:<atem:function_calls>\s*)?<atem:invoke name="([^"<>]*)">')
    parameter = re.compile(r'<atem:parameter name="([^"<>]*)">')
    end = re.compile(r"</atem:parameter>(?=\s*(?:<atem:parameter |</atem:invoke>))")
    inner = "</atem:invoke>"
    closing = "</atem:function_calls>"
    thought = re.compile(r" to=self<\|message\|>")
    end_of_thought = re.compile(r"<\|eom\|>")


class MiniMaxXml(Tagged):
    """``<minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter></invoke>`` (MiniMax M2)."""

    name = "<invoke> between <minimax:tool_call> and </minimax:tool_call>"
    opening = re.compile("<minimax:tool_call>|<invoke ")
    head = re.compile(r'(?:<minimax:tool_call>\s*)?<invoke name="([^"<>]*)">')
    parameter = re.compile(r'<parameter name="([^"<>]*)">')
    end = re.compile(r"</parameter>(?=\s*(?:<parameter |</invoke>))")
    inner = "</invoke>"
    closing = "</minimax:tool_call>"


class GemmaJson(Markup):
    """``<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`` (Gemma 4): JSON except for keys and strings.

    Thoughts are in the channel ``thought``.
    """

    name = "call:NAME{...} between <|tool_call> and <tool_call|>"
    opening = re.compile(r"<\|tool_call>")
    head = re.compile(r"<\|tool_call>\s*call:([^\s{}<>]+)\s*(?=\{)")
    closing = "<tool_call|>"
    thought = re.compile(r"<\|channel>thought")
    end_of_thought = re.compile(r"<channel\|>")
    token = re.compile(
        r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<key>(?<=[{,])\s*[^\s"{}\[\],:<>]+\s*)(?=:)'
        r"|(?P<none>\bNone\b)|(?P<end><tool_call\|>)",
        re.DOTALL,
    )

    def _body(self, text: str, start: int, tools: Sequence[Tool]) -> Body:
        name, source = self._head(text, start), ""
        at = name.end()
        for token in self.token.finditer(text, at):
            source, at = source + text[at : token.start()], token.end()
            if token["end"]:
                value, stop = read_value(source, 0)
                if source[stop:].strip():
                    raise ValueError("something follows the arguments")
                return [call_of({"name": name[1], "arguments": value})], token.start(), False
            value = token["text"] if token["key"] is None else token["key"].strip()
            source += json_text(None if token["none"] else value)
        raise ValueError(f"there is no {self.closing}")


class PythonCalls(Markup):
    """``<|tool_call_start|>[NAME(KEY='text', ...), ...]<|tool_call_end|>`` (LFM2): Python calls.

    Some templates do not escape quotes and line breaks in texts; these are read in a second try.
    """

    name = "Python calls between <|tool_call_start|> and <|tool_call_end|>"
    opening = re.compile(r"<\|tool_call_start\|>")
    closing = "<|tool_call_end|>"
    words = re.compile(
        rf"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|\b({"|".join(keyword.kwlist)})(?=\s*=[^=])""",
        re.DOTALL,
    )
    raw = re.compile(
        r"=\s*'(?:(.*?)'(?=\s*(?:,\s*\w+\s*=|\)\s*(?:,\s*[\w.-]+\(|\]?\s*\Z)))|.*)", re.DOTALL
    )

    def _body(self, text: str, start: int, tools: Sequence[Tool]) -> Body:
        at, why = start + len("<|tool_call_start|>"), f"there is no {self.closing}"
        for closing in islice(re.finditer(re.escape(self.closing), text[at:]), _TOO_MANY):
            inside = text[at : at + closing.start()]
            quoted = self.raw.sub(lambda one: f"={one[1]!r}" if one[1] else one[0], inside)
            for source in (inside, quoted):
                try:
                    return list(self._calls(source)), at + closing.start(), False
                except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                    why = str(error) or "it nests too deep"
        raise ValueError(why)

    def _calls(self, source: str) -> Iterator[ToolCall]:
        named = self.words.sub(lambda one: one[0] + _WORD * bool(one[1]), source.strip())
        with warnings.catch_warnings():  # unknown backslash escapes
            warnings.simplefilter("ignore")
            tree = ast.parse(named, mode="eval").body
        for node in tree.elts if isinstance(tree, ast.List) else [tree]:
            call = node
            while isinstance(call, ast.BinOp):  # a name with hyphens
                call = call.right
            if not isinstance(call, ast.Call):
                raise ValueError("a call is NAME(KEY=value)")
            name = ast.unparse(node).partition("(")[0].replace(" ", "")
            arguments = {
                (one.arg or "").removesuffix(_WORD): _value(one.value) for one in call.keywords
            }
            is_named = not call.args and "" not in arguments
            error = "" if is_named else "not run: the arguments are not all named"
            result = call_of({"name": name, "arguments": arguments})
            yield replace(result, error=result.error or error)


_WORD = "_word"
"""Suffix of a parameter that has the name of a Python keyword."""
SYNTAXES: tuple[type[Markup], ...] = (
    HermesJson, QwenXml, GlmXml, LlamaJson, MistralJson, HarmonyJson, GemmaJson, DeepSeekJson, KimiJson, PythonCalls,
    MuseXml, MiniMaxXml,
)  # fmt: skip
ARGUMENTS = ("arguments", "parameters")


def _value(node: ast.expr) -> object:
    """Return the value of a Python or JSON literal; ``ValueError`` for other code."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(one): _value(value) for one, value in zip(node.keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{ast.unparse(node)} is not a value of JSON")
    return value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a key of an object is a text")
    return node.value


def _typed(value: str, schema: Mapping[str, object], key: str) -> object:
    """Return the value of a text by the tool's schema; the text itself if no other type fits."""
    properties = schema.get("properties")
    kinds = _kinds(properties.get(key), schema) if isinstance(properties, Mapping) else ()
    if kinds == ("string",):
        return value
    try:
        read: Any = shallow(json.loads(value))
    except (ValueError, RecursionError):
        read = _WORDS.get(value.strip().lower(), value)
    if not kinds:
        return read
    if isinstance(read, bool):
        return read if "boolean" in kinds else value
    return read if any(isinstance(read, _KINDS.get(kind, ())) for kind in kinds) else value


def _kinds(schema: object, root: Mapping[str, object]) -> tuple[str, ...]:
    """Return the types in a schema, including references and choices."""
    kinds: dict[str, None] = {}
    waiting, seen = [schema], set()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(reference := one.get("$ref"), str) and reference.startswith("#/"):
            target: object = root
            for step in reference[2:].split("/"):
                target = target.get(step) if isinstance(target, Mapping) else None
            waiting.append(target)
        kind, values = one.get("type"), one.get("enum")
        if kind is None and isinstance(values, list | tuple):
            kind = "string" if all(isinstance(value, str) for value in values) else ()
        kinds |= dict.fromkeys([kind] if isinstance(kind, str) else map(str, kind or ()))
        waiting += [*(one.get("anyOf") or ()), *(one.get("oneOf") or ())]
    return tuple(kinds)


def past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def read_value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at ``at``, after white space, and its end; ``ValueError`` if it is broken."""
    try:
        value, end = _DECODER.raw_decode(text, past_space(text, at))
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    return shallow(value), end


def call_of(value: object) -> ToolCall:
    """Return the call of an object with a name and arguments, without an id."""
    inner = value.get("function") if isinstance(value, Mapping) else None
    value = inner if isinstance(inner, Mapping) else value
    if not isinstance(value, Mapping):
        why = "a call is an object with a name and arguments"
        return ToolCall("", "", json_text(value), f"not run: {why}")
    arguments: object = next((value[one] for one in ARGUMENTS if one in value), {})
    name, why = value.get("name"), ""
    if not isinstance(name, str) or not name:
        name, why = "", "the call has no name"
    elif not value.keys() & {*ARGUMENTS} and value.keys() - {"name", "id", "type"}:
        why = 'the call has no "arguments"'
    elif isinstance(arguments, str):
        why = "the arguments are a text; write them as an object"
    elif not isinstance(arguments, Mapping):
        why = "the arguments are not an object"
    return ToolCall("", name, json_text(arguments), f"not run: {why}" if why else "")


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def whole_text(text: str) -> str:
    """Escape unpaired surrogates as JSON does, since stores refuse them."""
    return text.encode(errors="backslashreplace").decode()
