"""Tool calls: sources of tools, native syntax, tags in the text, validation, and execution.

Tools are part of prompts, so they are known before sampling and stay the same for a whole run.

An environment whose agents all use native calls has the syntax ``NativeCalls()``. The syntax of each model is detected
when it is loaded (``models.tool_calls``). A model without one is refused.

An invalid call keeps its text and gets an ``error``, which is its result. It never runs. Read-only calls run
concurrently. A call that changes the environment (``Tool.alone``) runs alone, in order. Results have the order of the
calls.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, ClassVar, Protocol, runtime_checkable

import pydantic_core
from jsonschema import Draft201909Validator, Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT201909, specification_with

from coterie.config.folders import shallow, whole
from coterie.config.settings import Settings, key
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.record.turn import (
    Finish,
    Message,
    Part,
    Role,
    Tool,
    ToolCall,
    ToolResult,
    call_id,
    place,
)

# -- tags: ``<search>Ada Quill | Norway</search>`` -----------------------------------------------

# For models without a native syntax of calls, and for recipes whose papers use tags (GAP). Only sampled text is parsed,
# once after sampling, so a tag in a tool's result is text. A call with an unclosed tag returns an error.

OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class Tag:
    """Syntax of the calls of one tool. The tag has the tool's name."""

    argument: str | None = None
    """Parameter between the tags; ``None``: all arguments, as a JSON object, also between fences."""
    separator: str | None = None
    """Separator of concurrent calls within one tag; a backslash escapes it. ``None``: a tag is one call."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Syntax with a tag for each tool and a tag for the final answer."""

    calls: Mapping[str, Tag]
    answer: str | None = "answer"
    """Tag of a final answer; ``None``: any message without calls is an answer."""
    observation: str = OBSERVATION
    inline: bool = False
    """True if a result continues the message of the call, without an end of turn (GAP)."""
    stop: tuple[str, ...] = field(init=False)
    """Stop strings; a message ends after its first complete tag."""

    def __post_init__(self) -> None:
        names = (*self.calls, *(() if self.answer is None else (self.answer,)))
        if self.answer in self.calls or self.observation in names:
            twice = self.answer if self.answer in self.calls else self.observation
            raise UserError(f"the tag {twice!r} has two meanings", "rename the tool of this name")
        object.__setattr__(self, "stop", tuple(f"</{name}>" for name in names))

    @property
    def role(self) -> Role:
        return "inline" if self.inline else "user"

    def teach(self, tools: Sequence[Tool]) -> str:
        lines = [
            "You can use these tools. Write a call exactly as shown, then stop; you are given the result next."
        ]
        for tool in tools:
            tag = self.calls[tool.name]
            body = _example(tool) if tag.argument is None else tag.argument
            lines.append(f"- <{tool.name}>{body}</{tool.name}> {tool.description}")
            if tag.separator is not None:
                several = f" {tag.separator} ".join((body, f"another {body}"))
                lines.append(
                    f"  For several at the same time: <{tool.name}>{several}</{tool.name}>"
                )
        if self.answer is not None:
            lines.append(f"Write your final answer as <{self.answer}>answer</{self.answer}>.")
        return "\n".join(lines)

    def with_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Add a description of the tools to the system prompt."""
        text = self.teach(tools)
        if messages and messages[0].role == "system":
            first_message = replace(messages[0], parts=(*messages[0].parts, Part(f"\n\n{text}")))
            return (first_message, *messages[1:])
        return (Message.of("system", text), *messages)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """Parse the calls of a message. ``text`` is the sampled text, including its stop string."""
        names = "|".join(map(re.escape, self.calls))
        tags = list(re.finditer(f"<({names})>", text)) if names else []
        calls: list[ToolCall] = []
        for number, tag in enumerate(tags):
            name = tag[1]
            # A tag that is never closed ends where the next one opens.
            until = tags[number + 1].start() if number + 1 < len(tags) else len(text)
            body, closing, _ = text[tag.end() : until].partition(f"</{name}>")
            error = "" if closing else _unclosed(name, finish, is_last=until == len(text))
            for piece in self._pieces(name, body):
                argument = self.arguments(name, piece)
                calls.append(
                    ToolCall(
                        call_id(len(calls)),
                        name,
                        argument,
                        error or f"not run: <{name}> is empty" * (not piece),
                    )
                )
        return tuple(calls)

    def arguments(self, name: str, piece: str) -> str:
        """Convert the text between a tool's tags to the arguments of a call, as JSON."""
        parameter = self.calls[name].argument
        if parameter is None:
            # Models often put JSON between fences.
            return _FENCED_JSON.sub(r"\1", piece)
        return json.dumps({parameter: piece}, ensure_ascii=False)

    def write(self, call: ToolCall) -> str:
        """Return the text of a call. Raise ``UserError`` for a call that :meth:`parse` would not read from it."""
        tag, values = self.calls.get(call.name, Tag()), json.loads(call.arguments)
        body, expected = call.arguments, values
        if tag.argument is not None:
            value = values.get(tag.argument, "")
            body = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            expected = {**values, tag.argument: body.strip()}
        if tag.separator is not None:
            body = body.replace(tag.separator, f"\\{tag.separator}")
        text = f"<{call.name}>{body}</{call.name}>"
        # Not every value can stand between tags, so the text is parsed again and compared.
        calls = self.parse(text, "stop_string")
        read = [json.loads(call.arguments) for call in calls if not call.error]
        if read != [expected] or calls[0].name != call.name:
            raise UserError(
                f"the call {call.name}({call.arguments}) cannot be written as a tag",
                "correct it, or leave its row out",
            )
        return text

    def show(self, results: Sequence[ToolResult]) -> str:
        """Format results for the agent, in the order of the calls."""
        tag = self.observation
        # Escaped, so that a result can't end the observation early.
        blocks = "\n".join(f"<{tag}>\n{inside(result.text, tag)}\n</{tag}>" for result in results)
        return f"\n{blocks}\n" if self.inline else blocks

    def _pieces(self, name: str, body: str) -> list[str]:
        separator = self.calls[name].separator
        if separator is None:
            return [body.strip()]
        parts = re.split(rf"(?<!\\){re.escape(separator)}", body)
        pieces = [part.replace(f"\\{separator}", separator).strip() for part in parts]
        # An empty tag is one call, which gets an error.
        return [piece for piece in pieces if piece] or [""]


_FENCED_JSON = re.compile(r"\A```(?:json)?\s*(.*?)\s*(?:```)?\Z", re.DOTALL)


def _example(tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return "{}"
    kinds = {
        name: schema.get("type", "value") if isinstance(schema, Mapping) else "value"
        for name, schema in properties.items()
    }
    return json.dumps(kinds, ensure_ascii=False)


def inside(text: str, tag: str) -> str:
    """Escape a text inside a tag, so that it cannot open or close the tag: ``</a>`` becomes ``[/a]``."""
    return re.sub(rf"<(/?{re.escape(tag)})>", r"[\1]", text)


def closing(text: str, stops: Sequence[str]) -> str:
    """Return the closing tag of the last unclosed tag, which some servers cut off, or an empty string."""
    # Position of the last opening tag of each stop string.
    positions = {text.rfind(stop.replace("</", "<", 1)): stop for stop in stops if stop[:2] == "</"}
    last_position = max(positions, default=-1)
    return (
        positions[last_position]
        if last_position >= 0 and positions[last_position] not in text[last_position:]
        else ""
    )


def _unclosed(name: str, finish: Finish, *, is_last: bool) -> str:
    if is_last and finish == "length":
        return f"not run: the message was cut off before </{name}>"
    return f"not run: <{name}> is not closed; write </{name}> after the call"


# -- sources ------------------------------------------------------------------------------------

MESSAGE: ContextVar[str] = ContextVar("MESSAGE", default="")
"""Text of the message whose call is running, including thoughts."""

Function = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Function of a tool, from arguments to a text."""


class ToolSource(Protocol):
    """Source of tools. The constructor raises ``UserError`` for a missing index, key or server."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools, constant during a run."""
        ...

    @property
    def tags(self) -> Mapping[str, Tag]:
        """Tag syntax by tool name. A tool without an entry can't be called by tags."""
        ...

    @property
    def identity(self) -> str:
        """Hash of code and settings that results depend on, without paths and addresses."""
        ...

    def open(self) -> AbstractAsyncContextManager[Mapping[str, Function]]:
        """Return the functions by tool name. Raises ``UserError`` if it can't be opened or its tools have changed."""
        ...


@runtime_checkable
class SessionSource(Protocol):
    """Source of tools with state per branch of a dialogue, such as the variables of a Python session.

    It is also a :class:`ToolSource`, whose :meth:`ToolSource.open` returns none of these functions.
    """

    @property
    def needs(self) -> tuple[type, ...]: ...

    @property
    def max_sessions(self) -> int: ...

    def open_session(
        self, seed: int, shared: Any
    ) -> AbstractAsyncContextManager[Mapping[str, Function]]:
        """Open a session of one branch; return its functions by tool name. Other branches replay their calls."""
        ...


class NativeCalls:
    """Placeholder for each model's syntax. The model ends a message, so a message may have several calls."""

    stop: ClassVar[tuple[str, ...]] = ()
    role: ClassVar[Role] = "tool"

    def with_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Return the messages unchanged, since chat templates render tools."""
        return tuple(messages)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        return ()

    def show(self, results: Sequence[ToolResult]) -> str:
        """Return an empty text, since chat templates render results."""
        return ""


def text_schema(required: str, **descriptions: str) -> dict[str, Any]:
    """Return a JSON schema of string parameters."""
    texts = {name: {"type": "string", "description": text} for name, text in descriptions.items()}
    return {
        "type": "object",
        "properties": texts,
        "required": [required],
        "additionalProperties": False,
    }


def template_tools(syntax: object, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools for the chat template: all for native calls, else none, since prompts describe them."""
    return tools if isinstance(syntax, NativeCalls) else ()


# -- validation ---------------------------------------------------------------------------------

MAX_ERROR = 1000
"""Characters of an error, which may contain text of the model."""
MAX_STEPS = 200_000
"""Schema keywords evaluated for one call (about a second)."""
LEFT_OUT = ("patternProperties", "unevaluatedItems", "unevaluatedProperties")
"""Keywords that are left to the tool, since their time has no limit."""
_steps: ContextVar[int] = ContextVar("steps", default=0)


class _TooLong(ValueError):
    """A schema needs more than ``MAX_STEPS``."""


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise :class:`UserError` for tools with equal names, or parameters that are not a schema of an object."""
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"two tools are called {min(twice)!r}", "give each tool a name of its own")
    for tool in tools:
        try:
            if tool.parameters.get("type") != "object":
                raise ValueError("they are not a schema of an object")
            draft = _draft(tool.parameters)
            # Patterns may be of another language than Python.
            draft.check_schema(tool.parameters, format_checker=FormatChecker(()))
            _check_references(tool.parameters, draft)
            # A trial finds schemas that fail only when they are used.
            _first_error(tool, {})
        except (SchemaError, Unresolvable, ValueError, RecursionError) as error:
            raise UserError(
                f"the parameters of the tool {tool.name!r} can't be used: {str(error)[:MAX_ERROR]}",
                "correct them; a tool without parameters has {'type': 'object'}",
            ) from error


def _draft(schema: Mapping[str, Any]) -> Any:
    """Return the draft that a schema names; else 2020-12, or 2019-09 if ``items`` is a list."""
    default = Draft201909Validator if _has_tuples(schema) else Draft202012Validator
    return validator_for(schema, default)


def _has_tuples(schema: object) -> bool:
    return isinstance(schema, Mapping) and (
        isinstance(schema.get("items"), list)
        or any(map(_has_tuples, DRAFT201909.subresources_of(schema)))
    )


def _check_references(schema: Mapping[str, Any], draft: Any) -> None:
    """Raise ``Unresolvable`` or ``ValueError`` for a reference to something that is not a schema inside this schema."""
    specification: Any = specification_with(draft.META_SCHEMA["$schema"])
    base = str(schema.get("$id", ""))
    # Nothing is looked up outside of this schema.
    resolver = Registry().with_resource(base, specification.create_resource(schema)).resolver(base)
    schemas = [schema]
    for subschema in schemas:  # grows
        for name in ("$ref", "$dynamicRef"):
            reference = subschema.get(name)
            part = resolver.lookup(reference).contents if isinstance(reference, str) else {}
            if not isinstance(part, Mapping | bool):
                raise ValueError(f"{reference!r} is not a schema")
        schemas += [
            part for part in specification.subresources_of(subschema) if isinstance(part, Mapping)
        ]


def validate_calls(
    calls: Sequence[ToolCall], tools: Sequence[Tool], *, max_calls: int | None = None
) -> tuple[ToolCall, ...]:
    """Return the calls with an error on each invalid one and those beyond ``max_calls``; existing errors stay."""
    by_name = {tool.name: tool for tool in tools}

    def error(index: int, call: ToolCall) -> str:
        if max_calls is not None and index >= max_calls:
            return too_many(max_calls)
        return _fault(call, by_name)[:MAX_ERROR]

    return tuple(
        call if call.error else replace(call, error=error(index, call))
        for index, call in enumerate(calls)
    )


def too_many(max_calls: int) -> str:
    return f"not run: only {max_calls} calls of this message are run"


def _fault(call: ToolCall, by_name: Mapping[str, Tool]) -> str:
    tool = by_name.get(call.name)
    if tool is None:
        names = ", ".join(by_name) or "none"
        return f"there is no tool {call.name!r}; the tools are: {names}"
    try:
        # Python also reads NaN and Infinity, which JSON does not have.
        values = whole(json.loads(call.arguments, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:
        return f"the arguments are not JSON: {error}"
    try:
        fault = _first_error(tool, shallow(values))
    except (Unresolvable, re.error) as error:
        return f"the tool's own schema is broken: {error}"
    except RecursionError:
        return "the arguments, or the tool's own schema, nest too deep"
    except _TooLong:
        return "the arguments are too many to be checked by the tool's schema"
    except OverflowError:
        return "wrong arguments: a number is too large"
    except ValueError as error:
        return f"wrong arguments: {error}"
    if fault is None:
        return ""
    where = f" (at {fault.json_path})" if fault.path else ""
    return f"wrong arguments: {fault.message}{where}"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _first_error(tool: Tool, values: object) -> ValidationError | None:
    """Return the most relevant error of arguments."""
    _steps.set(MAX_STEPS)
    validator = _validator(_draft(tool.parameters))
    # With the default registry it would download referenced schemas.
    return best_match(validator(tool.parameters, registry=Registry()).iter_errors(values))


@cache
def _validator(draft: Any) -> Any:
    """Return a validator whose time is limited, and whose patterns take linear time, on text of a model."""
    # Patterns take exponential time in Python's backtracking search, and ``uniqueItems`` quadratic
    # time in jsonschema; a model could write such arguments.
    own_checks = {"pattern": _match, "uniqueItems": _unique, "additionalProperties": _additional}
    checks = {**draft.VALIDATORS, **own_checks, **dict.fromkeys(LEFT_OUT, lambda *_: ())}
    return extend(draft, {name: _count_steps(check) for name, check in checks.items()})


def _count_steps(check: Callable[..., Any]) -> Callable[..., Any]:
    def count(*args: Any) -> Any:
        _steps.set(steps_left := _steps.get() - 1)
        if steps_left < 0:
            raise _TooLong("its schemas refer to each other too often")
        return check(*args)

    return count


def _unique(_: Any, unique: bool, value: object, __: Any) -> Iterator[ValidationError]:
    items = value if unique and isinstance(value, list) else []
    if len({json.dumps(item, sort_keys=True) for item in items}) < len(items):
        yield ValidationError("an item of the list is there twice")


def _additional(validator: Any, inner: Any, value: object, schema: Any) -> Iterator[Any]:
    # Without ``patternProperties`` it is unknown which properties are additional.
    if "patternProperties" not in schema:
        check = Draft202012Validator.VALIDATORS["additionalProperties"]
        yield from check(validator, inner, value, schema)


def _match(_: Any, pattern: str, value: object, __: Any) -> Iterator[ValidationError]:
    validator = _compile(pattern) if isinstance(value, str) else None
    if validator and not validator.isinstance_python(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


@cache
def _compile(pattern: str) -> pydantic_core.SchemaValidator | None:
    """Compile a pattern; ``None`` if it has look-around or back references, which need backtracking."""
    with suppress(pydantic_core.SchemaError):
        # Rust's regular expressions, in pydantic, take linear time.
        return pydantic_core.SchemaValidator(pydantic_core.core_schema.str_schema(pattern=pattern))
    return None


# -- execution ----------------------------------------------------------------------------------

FIRST_PAUSE = 0.2
"""Seconds before the second attempt of a call; the pause doubles."""


class ToolError(Exception):
    """A call failed. The agent sees the message: a missing page, a wrong argument."""


class ToolUnavailable(EngineError):
    """A tool is unavailable through no fault of the agent. The item fails, instead of a score of 0."""


class CallLimits(Settings):
    """Limits of calls."""

    max_calls: int = key(16, "Calls per message; further calls return an error.", ge=1)
    concurrency: int = key(8, "Concurrent calls.", ge=1)
    seconds: float = key(30.0, "Seconds of a call; a late call returns an error.", gt=0)
    tries: int = key(3, "Attempts of a call; one that changes the environment has one.", ge=1)
    max_characters: int = key(8000, "Characters of a result, which loses its middle.", ge=100)


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Sequence[Tool],
    functions: Mapping[str, Function],
    limits: CallLimits,
) -> tuple[ToolResult, ...]:
    """Run checked calls; return their results in order. Raises :class:`ToolUnavailable` after all have ended."""
    alone = {tool.name for tool in tools if tool.alone}
    room, start = asyncio.Semaphore(limits.concurrency), time.monotonic()

    async def answer(call: ToolCall) -> ToolResult:
        if call.error:
            return ToolResult(call.id, call.error, error=True)
        if place(call.id) >= limits.max_calls:
            return ToolResult(call.id, too_many(limits.max_calls), error=True)
        async with room:
            # The time of a call begins when it runs, not while it waits for a free place.
            tries, began = 1 if call.name in alone else limits.tries, time.monotonic()
            text, error = await _run(call, functions[call.name], limits, tries)
            took = round(began - start, 6), round(time.monotonic() - began, 6)
            result = cut_text(text, limits.max_characters)
            left_out = max(0, len(text) - limits.max_characters)
            return ToolResult(call.id, result, error, *took, left_out)

    results: list[ToolResult] = []
    for stage in stages(calls, alone):
        # Wait for all calls of the stage, so that none is still running after an error.
        for answered in await asyncio.gather(*map(answer, stage), return_exceptions=True):
            if isinstance(answered, BaseException):
                raise answered
            results.append(answered)
    return tuple(results)


def stages(calls: Sequence[ToolCall], alone: set[str]) -> list[list[ToolCall]]:
    """Group calls: adjacent read-only (or broken) calls, or one call that changes something."""
    # Adjacent read-only calls share the key -1; a call that changes something has its own.
    groups = groupby(
        enumerate(calls),
        lambda index_and_call: (
            index_and_call[0]
            if index_and_call[1].name in alone and not index_and_call[1].error
            else -1
        ),
    )
    return [[call for _, call in group] for _, group in groups]


def cut_text(text: str, max_characters: int) -> str:
    """Return at most about ``max_characters`` of a text: its beginning, a note and its end."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out:,} characters are left out here]\n{text[-half:]}"


def _text(result: str) -> str:
    """Replace lone surrogates, which tokenizers refuse."""
    return result.encode(errors="replace").decode()


async def _run(
    call: ToolCall, function: Function, limits: CallLimits, tries: int
) -> tuple[str, bool]:
    for number in range(tries):
        limit = asyncio.timeout(limits.seconds)
        try:
            async with limit:
                return _text(await function(json.loads(call.arguments))), False
        except ToolError as error:
            return _text(f"{error}"), True
        except TimeoutError as error:
            # Raised by the tool itself, not by the limit of this call.
            if not limit.expired():
                return _text(f"no answer in time: {error}"), True
            return f"no answer within {limits.seconds:g} seconds", True
        except ToolUnavailable:
            # A call that changes something has one try only: it may have had its effect.
            if number == tries - 1:
                raise
            await asyncio.sleep(FIRST_PAUSE * 2**number)
    raise AssertionError("the last try returns or raises")
