"""Messages of conversations, and their tools, in the formats of OpenAI and ShareGPT."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeGuard

from pydantic import ConfigDict

from coterie.datasets.columns import check_media, check_text, message_is_trained
from coterie.datasets.rows import Frozen, kind_of, parsed_json
from coterie.record.turn import Tool, ToolCall, call_id

Role = Literal["system", "user", "assistant", "tool"]
ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "model": "assistant", "bot": "assistant", "tool": "tool", "function": "tool",
    "observation": "tool", "function_call": "assistant", "ipython": "tool",
}  # fmt: skip
THOUGHTS = ("reasoning_content", "reasoning", "thinking")


class ChatMessage(Frozen):
    """A message of a conversation."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    role: Role
    content: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: str = ""
    """For a tool's message: id of the call that it answers, ``c0``, ``c1``, ..."""
    is_trained: bool = True
    """False for an assistant's message that the file excludes from training."""

    @property
    def text(self) -> str:
        """Content and calls as one text, for comparison and display."""
        calls = [f"{call.name}({call.arguments})" for call in self.calls]
        return "\n".join(filter(None, (self.content.strip(), *calls)))


Messages = tuple[ChatMessage, ...]


def parse_messages(value: Any, system: str = "") -> Messages:
    """Parse messages in the format of OpenAI or ShareGPT, or JSON text of them. Empty system messages are dropped.

    Args:
        value: List of objects with ``role`` and ``content``, or ``from`` and ``value``.
        system: System message that another column has.

    Raises:
        ValueError: If the messages are not of these formats, or a key changes what is trained in another way than by
            whole messages of the assistant.
    """
    value = parsed_json(value, "its list of messages")
    if not isinstance(value, list | tuple):
        raise ValueError(f"its messages are {kind_of(value)}, not a list")
    messages = [ChatMessage(role="system", content=system)] if system else []
    ids: list[str] = []  # ids in the file of the last message's calls
    waiting: list[int] = []  # indices of these calls that have no result yet
    for number, raw in enumerate(value, 1):
        if not isinstance(raw, Mapping):
            raise ValueError(f"message {number} is {kind_of(raw)}, not an object")
        # OpenAI's messages have `role` and `content`, ShareGPT's `from` and `value`.
        name = raw.get("role") or raw.get("from")
        role = ROLES.get(name.lower()) if isinstance(name, str) else None
        if role is None:
            raise ValueError(f"message {number} has the role {name!r}")
        content = raw.get("content")
        content = _content(raw.get("value") if content is None else content, number)
        called = parsed_json(
            raw.get("tool_calls") or raw.get("function_call") or (), f"a call of message {number}"
        )
        # ShareGPT writes a call as a message of its own, whose text is the call as JSON.
        if name == "function_call":
            called, content = parsed_json(content, f"message {number}"), ""
        calls = _calls([called] if isinstance(called, Mapping) else called, number)
        results = ""
        # Results refer to calls of the last assistant's message. Ids are renumbered by position,
        # because files have ids of any form or none.
        if role == "tool":
            index = _answered_call(raw.get("tool_call_id"), ids, waiting, number)
            waiting.remove(index)
            results = call_id(index)
        # A new message of the user or the assistant replaces the calls that results may answer.
        elif role != "system":
            ids, waiting = [id_ for id_, _ in calls], list(range(len(calls)))
        elif not content.strip() or (messages and content.strip() == system.strip()):
            continue
        check_media(raw, f"message {number}")
        # A placeholder of media matters only in the user's text; a reply may mention such a tag.
        check_text(content, f"message {number}", is_shown=role == "user")
        thought = next((raw[key] for key in THOUGHTS if has_text(raw.get(key))), "")
        message = ChatMessage(
            role=role,
            content=content,
            thought=thought,
            calls=tuple(call for _, call in calls),
            results=results,
            is_trained=message_is_trained(raw, role, number),
        )
        messages.append(message)
    return tuple(messages)


def _answered_call(id_: Any, ids: Sequence[str], waiting: Sequence[int], number: int) -> int:
    """Return the index of the call that a result belongs to: by its id, else the next call without a result."""
    if not waiting:
        raise ValueError(f"message {number} is of a tool, and no call waits for a result")
    # Without ids, results answer the calls in order.
    if id_ in (None, "") or not any(ids):
        return waiting[0]
    index = ids.index(str(id_)) if str(id_) in ids else -1
    if index not in waiting:
        raise ValueError(f"message {number} answers the call {id_!r}, which waits for no result")
    return index


def parse_tools(value: Any) -> tuple[Tool, ...]:
    """Parse tools in OpenAI's format, plain function schemas, or JSON text of either."""
    if isinstance(value, str):
        value = parsed_json(value, "tools") if value.strip() else None
    if not isinstance(value, list | tuple | None):
        raise ValueError(f"its tools are {kind_of(value)}, not a list")
    tools = []
    for raw in value or ():
        # A plain schema is the function itself, without OpenAI's wrapper.
        function = raw.get("function", raw) if isinstance(raw, Mapping) else None
        function = function if isinstance(function, Mapping) else {}
        name, text, schema = map(function.get, ("name", "description", "parameters"))
        if not isinstance(name, str):
            raise ValueError("its tools are not of OpenAI's form")
        if not (isinstance(text, str | None) and isinstance(schema, Mapping | None)):
            raise ValueError(f"the tool {name!r} is not of OpenAI's form")
        tools.append(Tool(name, text or "", schema or {"type": "object", "properties": {}}))
    return tuple(tools)


def flaw_of(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
    """Return why a conversation cannot be trained on, or an empty text."""
    if not tools and any(message.calls for message in messages):
        return "its assistant calls tools, and it has no tools"
    if not messages:
        return "it has no messages"
    turns = [message.role for message in messages if message.role != "system"]
    # Most chat templates accept system messages only at the beginning.
    for previous, message in pairwise(messages):
        if message.role == "system" and previous.role != "system":
            return "a system message follows other messages"
    if turns[:1] != ["user"]:
        return "its first message is not the user's"
    if turns[-1] != "assistant":
        return "its last message is not the assistant's"
    # Most templates reject or merge two replies without a message in between.
    for number, two in enumerate(pairwise(turns), 1):
        if two == ("assistant", "assistant"):
            return f"messages {number} and {number + 1} are both the assistant's"
    # A tool may return nothing, but any other message needs a text or calls.
    for number, message in enumerate(messages, 1):
        if not message.content.strip() and not message.calls and message.role != "tool":
            return f"message {number} ({message.role}) is empty"
    return ""


def _content(value: Any, number: int) -> str:
    if isinstance(value, list | tuple):
        # Parts are joined if all of them are texts. Images and other media are refused.
        kinds = {part.get("type") if isinstance(part, Mapping) else None for part in value}
        if kinds - {"text"}:
            raise ValueError(f"message {number} has a part that is not text")
        return "".join(part["text"] or "" for part in value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"the content of message {number} is {kind_of(value)}, not a text")
    return value or ""


def _calls(value: Iterable[Any], number: int) -> list[tuple[str, ToolCall]]:
    """Return each call with its id in the file."""
    calls: list[tuple[str, ToolCall]] = []
    for index, raw in enumerate(value):
        function = raw.get("function", raw) if isinstance(raw, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"a call of message {number} has no name")
        # Llama's templates call the arguments of a call `parameters`.
        arguments = function.get("arguments", function.get("parameters")) or {}
        arguments = parsed_json(arguments, f"a call of message {number}")
        if not isinstance(arguments, Mapping):
            raise ValueError(f"the arguments of a call of message {number} are not an object")
        id_ = "" if raw.get("id") is None else str(raw["id"])
        if id_ and id_ in dict(calls):
            raise ValueError(f"two calls of message {number} have the id {id_!r}")
        # Arguments become JSON text again, the form in which a model writes them.
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        calls.append((id_, ToolCall(call_id(index), function["name"], text)))
    return calls


def has_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())
