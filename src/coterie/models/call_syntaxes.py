"""Call syntaxes of model families: one table of marks, and one parser.

Text in a thought is no call. Text that begins like a call but cannot be read is a call with an error.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

from coterie.config.folders import shallow
from coterie.record.turn import Finish, Tool, ToolCall, ToolResult, call_id

THOUGHT, END_OF_THOUGHT = "<think>", "</think>"
THOUGHTS = {
    THOUGHT: END_OF_THOUGHT,
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|>",
    " to=self<|message|>": "<|eom|>",
}
"""Marks around thoughts."""
ARGUMENTS = ("arguments", "parameters")
"""Keys of a call's arguments."""
Text = Callable[[str], str]
Body = tuple[list[ToolCall], int, bool]
"""Calls after an opening, the index of their end, and True if they need no closing."""
_THOUGHT = re.compile("|".join(map(re.escape, THOUGHTS)))
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,), "array": (list,),
    "null": (type(None),), "string": (str,),
}  # fmt: skip
_TOO_MANY = 64
"""Limit of closing tags that may end a Python list of calls."""
_MAX_CALLS = 128
"""Limit of calls in a message. Reading one may search the whole rest of the message."""


def _json_body(syntax: "CallSyntax", text: str, head: re.Match[str], _: Sequence[Tool]) -> Body:
    """Read JSON arguments after a head with the tool's name, or an object (or list) with it."""
    value, stop = read_value(text, head.end())
    stop = past_space(text, stop)
    # Some models write the arguments as a Markdown block (DeepSeek).
    stop += 3 * text.startswith("```", stop)
    if head.re.groups and head[1] is not None:
        return [call_of({"name": head[1].strip(), "arguments": value})], stop, False
    # Without a closing mark, a list has all calls of the message (Mistral), and closes itself.
    values = value if isinstance(value, list) and not syntax.closing else [value]
    return [call_of(item) for item in values], stop, values is value


@dataclass(frozen=True)
class CallSyntax:
    """Call syntax of a model. Implements ``environments.protocol.Syntax``."""

    name: str
    mark: str
    """Pattern of the beginning of a call."""
    rest: str = ""
    """Pattern from the mark to the arguments; its group is the tool's name."""
    closing: str = ""
    """Text that closes a call; if empty, the next call or the end of the message closes it."""
    body: Callable[["CallSyntax", str, re.Match[str], Sequence[Tool]], Body] = _json_body
    """Reader of the text after a head; raises ``ValueError`` with the reason if it is broken."""
    wrapper: str = ""
    """Text that may be before the first mark."""
    ends_message: bool = False
    """True if a message that ends needs no closing."""
    is_bare: bool = False
    """True if a JSON object is a call without a mark, at the start of a message or after a call."""
    tags: tuple[str, str, str, str] = ("", "", "", "")
    """Text before and after the name of an argument, after its value, and after all arguments."""
    thinks: str = ""
    """Mark of the thought that the prompt opens."""
    stop: ClassVar[tuple[str, ...]] = ()
    """No stop strings, since a message with calls ends with the template's end of turn."""

    @cached_property
    def opening(self) -> re.Pattern[str]:
        """Pattern of text that looks like a call."""
        outer = re.escape(self.wrapper)
        return re.compile(rf"(?:{outer}\s*)?{self.mark}|{outer}" if outer else self.mark)

    @cached_property
    def head(self) -> re.Pattern[str]:
        outer = rf"(?:{re.escape(self.wrapper)}\s*)?" if self.wrapper else ""
        return re.compile(
            rf"\s*;?\s*(?:{self.mark})?" if self.is_bare else f"{outer}(?>{self.mark}){self.rest}"
        )

    def parse(self, text: str, finish: Finish, tools: Sequence[Tool] = ()) -> tuple[ToolCall, ...]:
        """Return the calls of a message, with ids by position; calls that cannot run have an error."""
        calls = list(self.read(text, finish, tools))
        for index, call in enumerate(calls):
            name, arguments = whole_text(call.name), whole_text(call.arguments)
            calls[index] = ToolCall(call_id(index), name, arguments, call.error)
        return tuple(calls)

    def show(self, results: Sequence[ToolResult]) -> str:
        """Return nothing: the chat template shows results."""
        return ""

    def read(self, text: str, finish: Finish, tools: Sequence[Tool]) -> Iterator[ToolCall]:
        """Yield the calls of a message in order, without ids."""
        # The prompt has opened a thought, in which nothing is a call.
        position = _end_of_thought(text, self.thinks, 0) if self.thinks else 0
        count = 0
        while mark := self._next(text, position, tools):
            if (count := count + 1) > _MAX_CALLS:
                problem = f"not run: the message has more than {_MAX_CALLS} calls"
                yield ToolCall("", "", text[mark.end() :].strip(), problem)
                return
            # The mark shows that a call begins, but its head (with the tool's name) may be broken.
            head, is_complete, problem = self.head.match(text, mark.start()), False, ""
            try:
                if head is None:
                    raise ValueError(f"calls are {self.name}")
                calls, position, is_complete = self.body(self, text, head, tools)
                position = past_space(text, position)
            except ValueError as error:
                problem = f"the call can't be read: {error}"
                position = max(mark.end(), head.end() if head else 0)
            # A call ends at the next opening at the latest, so that a broken call does not hide others.
            next_opening = self.opening.search(text, position)
            stop = next_opening.start() if next_opening else len(text)
            close = text.find(self.closing, position, stop) if self.closing else -1
            is_open = close < 0 and bool(self.closing) and not is_complete
            if problem:
                # The agent sees the error with the name and the text of its broken call.
                name = head[1] if head and head.re.groups else None
                position = stop if close < 0 else close
                calls = [ToolCall("", (name or "").strip(), text[mark.end() : position].strip())]
                is_open |= close < 0 and finish == "length" and position == len(text)
            elif close > position and not is_complete:
                position, problem = close, "something follows the call's arguments"
            elif position == len(text):
                is_open = not is_complete and not (finish == "end" and self.ends_message)
            if position == close:
                position += len(self.closing)
            if is_open:
                closing = self.closing or "its end"
                begin = (mark[0].split() or ["the call"])[0]
                problem = f"{begin} is not closed; write {closing} after the call"
                if finish == "length":
                    problem = f"the message was cut off before {closing}"
            # One error for all calls of the opening, unless a call has its own.
            for call in calls:
                yield replace(call, error=call.error or (f"not run: {problem}" if problem else ""))
        # A model that forgets to close its thought gets an error for the call in it, instead of no answer at all.
        begins = [(match[0], match.end()) for match in _THOUGHT.finditer(text, position)]
        begin, start = begins[-1] if begins else (self.thinks, 0)
        is_open = finish == "end" and begin != "" and THOUGHTS[begin] not in text[start:]
        if is_open and (mark := self.opening.search(text, start)):
            problem = "not run: the thought before the call is not closed"
            yield ToolCall("", "", text[mark.end() :].strip(), problem)

    def _next(self, text: str, position: int, tools: Sequence[Tool]) -> re.Match[str] | None:
        """Find the next call outside of thoughts."""
        opening = self.opening.search(text, position)
        while True:
            # Skip the thoughts before the next opening, one after another.
            if opening and opening.start() < position:
                opening = self.opening.search(text, position)
            thought = _THOUGHT.search(text, position)
            begin = len(text) if thought is None else thought.start()
            # A bare object is a call only at the beginning, or right after a call.
            head = self.head.match(text, position) if self.is_bare else None
            if (
                head
                and begin != past_space(text, position)
                and _is_bare_call(text, head.end(), tools)
            ):
                return head
            if thought is None or (opening and opening.start() < begin):
                return opening
            position = _end_of_thought(text, thought[0], thought.end())


def _end_of_thought(text: str, mark: str, position: int) -> int:
    """Return the end of the thought that ``mark`` begins, which is the end of the text if nothing closes it."""
    stop = text.find(THOUGHTS[mark], position)
    return len(text) if stop < 0 else stop + len(THOUGHTS[mark])


def _is_bare_call(text: str, position: int, tools: Sequence[Tool]) -> bool:
    try:
        value, _ = read_value(text, position)
    except ValueError:
        # Broken JSON that begins like a call becomes a call with an error.
        return (
            re.compile(r'\{\s*"(name|parameters|function|type)"\s*:').match(text, position)
            is not None
        )
    # Other objects are answers, such as to a user who asks for JSON.
    is_named = isinstance(value, Mapping) and value.get("name") in [tool.name for tool in tools]
    return is_named or (isinstance(value, Mapping) and not value.keys().isdisjoint(ARGUMENTS))


def _tags_body(syntax: CallSyntax, text: str, head: re.Match[str], tools: Sequence[Tool]) -> Body:
    """Read arguments between tags, typed by the tool's schema."""
    begin, middle, end, closing = syntax.tags
    parameter_mark = re.compile(rf'{begin}([^"<>\n]*){middle}')
    # A value may contain its own closing tag (code, HTML), so it ends where another tag follows.
    end_mark = re.compile(rf"{end}(?=\s*(?:{begin}|{closing or syntax.closing}))")
    position, name = past_space(text, head.end()), head[1].strip()
    # Values are written as plain text; only the schema tells numbers from strings.
    schema = next((tool.parameters for tool in tools if tool.name == name), {})
    arguments: dict[str, object] = {}
    while parameter := parameter_mark.match(text, position):
        key, stop = parameter[1].strip(), end_mark.search(text, parameter.end())
        if stop is None or key in arguments:
            problem = "is there twice" if stop else "is not closed"
            raise ValueError(f"{parameter[0].strip()} {problem}")
        arguments[key] = _typed(text[parameter.end() : stop.start()], schema, key)
        position = past_space(text, stop.end())
    if not text.startswith(closing, position):
        raise ValueError(f"there is no {closing} after the arguments")
    position = past_space(text, position + len(closing))
    # Several calls may share a wrapper, and only the last one is followed by its end.
    continues = syntax.head.match(text, position) and not text.startswith(syntax.wrapper, position)
    is_whole = bool(continues) or not head[0].startswith(syntax.wrapper)
    return [call_of({"name": name, "arguments": arguments})], position, is_whole


_GEMMA_BODY = re.compile(r'(?:<\|"\|>.*?<\|"\|>|[^<]++|(?!<tool_call\|>)<)*+', re.DOTALL)
_GEMMA_WORD = re.compile(
    r'<\|"\|>(.*?)<\|"\|>|(?<=[{,])\s*([^\s"{}\[\],:<>]+)\s*(?=:)|\bNone\b', re.DOTALL
)


def _gemma_body(syntax: CallSyntax, text: str, head: re.Match[str], _: Sequence[Tool]) -> Body:
    """Read a text that is JSON except for keys and strings."""
    inside = _GEMMA_BODY.match(text, head.end())
    assert inside is not None
    if not text.startswith(syntax.closing, inside.end()):
        raise ValueError(f"there is no {syntax.closing}")
    # With keys and strings in double quotes, it is JSON.
    source = _GEMMA_WORD.sub(
        lambda match: json_text(match[1] if match[2] is None else match[2]), inside[0]
    )
    value, stop = read_value(source, 0)
    if source[stop:].strip():
        raise ValueError("something follows the arguments")
    return [call_of({"name": head[1], "arguments": value})], inside.end(), False


_KEY = "_key"
"""Suffix of a parameter, which may have the name of a Python keyword."""
_PYTHON_WORD = re.compile(
    r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|\b(\w+)(?=\s*=[^=])|\b(true|false|null)\b""",
    re.DOTALL,
)
_RAW = re.compile(
    r"=\s*'(?:(.*?)'(?=\s*(?:,\s*\w+\s*=|\)\s*(?:,\s*[\w.-]+\(|\]?\s*\Z)))|.*)", re.DOTALL
)


def _python_body(syntax: CallSyntax, text: str, head: re.Match[str], _: Sequence[Tool]) -> Body:
    """Read Python calls. Some templates do not escape quotes and line breaks, which a second try reads."""
    position, problem = head.end(), f"there is no {syntax.closing}"
    following = syntax.opening.search(text, position)
    text = text[: following.start()] if following else text  # each part is tried for one call only
    # The closing mark may occur in a string: try each of them, up to a limit that bounds the time.
    for closing in islice(re.finditer(re.escape(syntax.closing), text[position:]), _TOO_MANY):
        inside = text[position : position + closing.start()]
        quoted = _RAW.sub(lambda match: f"={match[1]!r}" if match[1] else match[0], inside)
        for source in (inside, quoted):
            try:
                return list(_python_calls(source)), position + closing.start(), False
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                problem = str(error) or "it nests too deep"
    raise ValueError(problem)


def _python_calls(source: str) -> Iterator[ToolCall]:
    def python(match: re.Match[str]) -> str:
        return f"{match[0]}{_KEY}" if match[1] else str(_WORDS[match[2]]) if match[2] else match[0]

    with warnings.catch_warnings():  # unknown backslash escapes
        warnings.simplefilter("ignore")
        tree = ast.parse(_PYTHON_WORD.sub(python, source.strip()), mode="eval").body
    for node in tree.elts if isinstance(tree, ast.List) else [tree]:
        call = node
        while isinstance(call, ast.BinOp):  # a name with hyphens
            call = call.right
        if not isinstance(call, ast.Call):
            raise ValueError("a call is NAME(KEY=value)")
        name = ast.unparse(node).partition("(")[0].replace(" ", "")
        arguments = {}
        for keyword in call.keywords:
            try:
                value = arguments[(keyword.arg or "").removesuffix(_KEY)] = ast.literal_eval(
                    keyword.value
                )
                if json.loads(json_text(value)) != _plain(value):  # a key that is not a text
                    raise ValueError
            except (ValueError, TypeError) as error:
                raise ValueError(f"{ast.unparse(keyword.value)} is not a value of JSON") from error
        result = call_of({"name": name, "arguments": arguments})
        is_named = not call.args and "" not in arguments
        problem = "" if is_named else "not run: the arguments are not all named"
        yield replace(result, error=result.error or problem)


def _plain(value: Any) -> Any:
    """Return a value with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


SYNTAXES = {
    "hermes": CallSyntax("JSON between <tool_call> and </tool_call>", "<tool_call>", "", "</tool_call>"),
    "qwen": CallSyntax(
        "<function=...> and <parameter=...> between <tool_call> and </tool_call>",
        "<function=", r"([^<>\n]*)>", "</tool_call>", _tags_body, "<tool_call>",
        tags=("<parameter=", r">\n?", r"\n?</parameter>", "</function>"),
    ),
    "glm": CallSyntax(
        "<arg_key> and <arg_value> between <tool_call> and </tool_call>",
        "<tool_call>", r"\s*([^\s<>{}]+)(?=\s*(?:<|\Z))", "</tool_call>", _tags_body,
        tags=("<arg_key>", r"</arg_key>\s*<arg_value>", "</arg_value>", ""),
    ),
    "llama": CallSyntax(
        "JSON as the whole message, or after <|python_tag|>",
        r"<\|python_tag\|>", ends_message=True, is_bare=True,
    ),
    "mistral": CallSyntax(
        "JSON after [TOOL_CALLS]",
        r"\[TOOL_CALLS\]", r"(?:([^\[\]{}]*)(?:\[CALL_ID\][^\[\]{}]*)?\[ARGS\])?", ends_message=True,
    ),
    "harmony": CallSyntax(
        "messages to functions.NAME that end with <|call|>",
        r"(?:\A|<\|start\|>|<\|channel\|>)[^<]*?\bto=",
        r"(?:functions\.)?([^\s<]*+)(?:[^<]|<\|channel\|>|<\|constrain\|>)*+<\|message\|>",
        "<|call|>", ends_message=True,
    ),
    "gemma": CallSyntax(
        "call:NAME{...} between <|tool_call> and <tool_call|>",
        r"<\|tool_call>", r"\s*call:([^\s{}<>]+)\s*(?=\{)", "<tool_call|>", _gemma_body,
    ),
    "deepseek": CallSyntax(
        "JSON between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>",
        r"(?:\s*function<｜tool▁sep｜>)?([^\n<`]*)(?:<｜tool▁sep｜>|\n```json\n)",
        "<｜tool▁call▁end｜>", wrapper="<｜tool▁calls▁begin｜>",
    ),
    "kimi": CallSyntax(
        "JSON between <|tool_call_begin|> and <|tool_call_end|>", r"<\|tool_call_begin\|>",
        r"\s*(?:functions\.)?([^\n<:]*)(?::\d+\s*)?<\|tool_call_argument_begin\|>",
        "<|tool_call_end|>", wrapper="<|tool_calls_section_begin|>",
    ),
    "python": CallSyntax(
        "Python calls between <|tool_call_start|> and <|tool_call_end|>",
        r"<\|tool_call_start\|>", "", "<|tool_call_end|>", _python_body,
    ),
    "muse": CallSyntax(
        "<atem:invoke> between <atem:function_calls> and </atem:function_calls>",
        "<atem:invoke ", r'name="([^"<>]*)">', "</atem:function_calls>", _tags_body,
        "<atem:function_calls>",
        tags=('<atem:parameter name="', '">', "</atem:parameter>", "</atem:invoke>"),
    ),
    "minimax": CallSyntax(
        "<invoke> between <minimax:tool_call> and </minimax:tool_call>",
        "<invoke ", r'name="([^"<>]*)">', "</minimax:tool_call>", _tags_body, "<minimax:tool_call>",
        tags=('<parameter name="', '">', "</parameter>", "</invoke>"),
    ),
}  # fmt: skip
"""Syntaxes in the order in which they are tried; docs/howto/tools.md shows an example of each."""


def text_before_calls(text: str) -> str:
    """Return the text of a message up to its first call in any syntax; empty if a call is not marked."""
    openings = (syntax.opening.search(text) for syntax in SYNTAXES.values())
    return text[: min((opening.start() for opening in openings if opening), default=0)].rstrip()


def _typed(value: str, schema: Mapping[str, object], key: str) -> object:
    """Return the value of a text by the tool's schema; the text itself if no other type fits."""
    properties = schema.get("properties")
    kinds = _kinds(properties.get(key), schema) if isinstance(properties, Mapping) else set()
    # A string stays as written: the text 42 must not become a number.
    if kinds == {"string"}:
        return value
    try:
        read: Any = shallow(json.loads(value))
    except (ValueError, RecursionError):
        read = _WORDS.get(value.strip().lower(), value)
    # In Python, but not in JSON, True is an integer.
    if isinstance(read, bool):
        return read if not kinds or "boolean" in kinds else value
    is_fitting = any(isinstance(read, _KINDS.get(type_name, ())) for type_name in kinds)
    return read if not kinds or is_fitting else value


def _kinds(schema: object, root: Mapping[str, object]) -> set[str]:
    """Return the types in a schema, including references and choices."""
    kinds: set[str] = set()
    waiting, seen = [schema], set()
    while waiting:
        schema_ = waiting.pop()
        # References of a schema may be circular.
        if not isinstance(schema_, Mapping) or id(schema_) in seen:
            continue
        seen.add(id(schema_))
        if isinstance(reference := schema_.get("$ref"), str) and reference.startswith("#/"):
            target: object = root
            for step in reference[2:].split("/"):
                target = target.get(step) if isinstance(target, Mapping) else None
            waiting.append(target)
        type_name, values = schema_.get("type"), schema_.get("enum")
        if type_name is None and isinstance(values, list | tuple):
            type_name = "string" if all(isinstance(value, str) for value in values) else None
        kinds |= {type_name} if isinstance(type_name, str) else set(map(str, type_name or ()))
        waiting += [*(schema_.get("anyOf") or ()), *(schema_.get("oneOf") or ())]
    return kinds


def past_space(text: str, position: int) -> int:
    return position + len(space[0]) if (space := _SPACE.match(text, position)) else position


def read_value(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at ``position``, after white space, and its end; ``ValueError`` if it is broken."""
    try:
        value, end = _DECODER.raw_decode(text, past_space(text, position))
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    return shallow(value), end


def call_of(value: object) -> ToolCall:
    """Return the call of an object with a name and arguments, without an id."""
    # OpenAI's form has the name and the arguments in `function`.
    inner = value.get("function") if isinstance(value, Mapping) else None
    value = inner if isinstance(inner, Mapping) else value
    if not isinstance(value, Mapping):
        problem = "a call is an object with a name and arguments"
        return ToolCall("", "", json_text(value), f"not run: {problem}")
    arguments: object = next((value[key] for key in ARGUMENTS if key in value), {})
    name, problem = value.get("name"), ""
    if not isinstance(name, str) or not name:
        name, problem = "", "the call has no name"
    elif not value.keys() & {*ARGUMENTS} and value.keys() - {"name", "id", "type"}:
        problem = 'the call has no "arguments"'
    elif isinstance(arguments, str):
        problem = "the arguments are a text; write them as an object"
    elif not isinstance(arguments, Mapping):
        problem = "the arguments are not an object"
    return ToolCall("", name, json_text(arguments), f"not run: {problem}" if problem else "")


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def whole_text(text: str) -> str:
    """Escape unpaired surrogates as JSON does, since stores refuse them."""
    return text.encode(errors="backslashreplace").decode()


# -- OpenAI's form --------------------------------------------------------------------------------


class Arguments(dict[str, Any]):
    """Arguments of a call: a mapping, but JSON text in templates that append it to text (DeepSeek)."""

    def __radd__(self, text: str) -> str:
        return text + json_text(self)


def openai_tool(tool: Tool, text: Text = str) -> dict[str, Any]:
    """Return a tool in OpenAI's form, with ``text`` applied to its texts."""
    parameters = mapped(tool.parameters, text)
    function = {"name": text(tool.name), "description": text(tool.description)}
    return {"type": "function", "function": {**function, "parameters": parameters}}


def openai_call(call: ToolCall, id_: str, text: Text = str) -> dict[str, Any]:
    """Return a call in OpenAI's form, with ``text`` applied to its decoded texts.

    Arguments in broken or too deeply nested JSON become an object with their text.
    """
    try:
        arguments = shallow(json.loads(call.arguments))
    except (ValueError, RecursionError):
        arguments = None
    # Templates iterate over the arguments, so they need an object.
    if not isinstance(arguments, dict):
        arguments = {"text": call.arguments}
    function = {"name": text(call.name), "arguments": Arguments(mapped(arguments, text))}
    return {"id": id_, "type": "function", "function": function}


def mapped(value: object, text: Text) -> Any:
    """Return a copy of a JSON value with ``text`` applied to its keys and strings."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(key)): mapped(item, text) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(item, text) for item in value]
    return value
