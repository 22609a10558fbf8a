"""Messages to chat servers, and their replies."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

BYTES_PER_TOKEN = 4
"""Estimate for a server that does not report tokens."""


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """Tool call."""

    id: str
    name: str
    arguments: str
    """JSON text from the model."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """Message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[EndpointCall, ...] = ()
    """Tool calls of an assistant message."""
    call_id: str = ""
    """Call that a tool message answers."""
    images: tuple[str, ...] = ()
    """URLs (also ``data:`` URLs) of images before the text, for vision models."""

    @property
    def body(self) -> dict[str, Any]:
        calls = [
            {"id": one.id, "type": "function",
             "function": {"name": one.name, "arguments": one.arguments}}
            for one in self.calls
        ]  # fmt: skip
        images = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
        return {
            "role": self.role,
            "content": [*images, {"type": "text", "text": self.text}] if images else self.text,
            **({"tool_calls": calls} if calls else {}),
            **({"tool_call_id": self.call_id} if self.call_id else {}),
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a model."""

    text: str
    finish: Literal["stop", "length", "other"]
    """``other``: for example a content filter."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: bool
    """True if the server reports no tokens, and they are estimated from the bytes."""
    stop: str = ""
    """Stop string that ended the reply, which ``text`` does not have; empty if the server does not report it."""
    calls: tuple[EndpointCall, ...] = ()
    thought: str = ""
    """Thought of the reply with its tags, from the server's field or the text."""
    thought_tokens: int = 0
    """Completion tokens of the thought, reported by the server."""


class _Function(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Cached(BaseModel):
    cached_tokens: int | None = Field(None, ge=0)


class _Completion(BaseModel):
    reasoning_tokens: int | None = Field(None, ge=0)


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(0, ge=0)
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Completion | None = None


class _Answer(BaseModel):
    """Fields of a server's reply that coterie reads."""

    choices: list[_Choice]
    usage: _Usage | None = None


def _parse(content: bytes) -> _Answer | None:
    """Parse a server's reply; ``None`` if it is invalid. The error is dropped, because it may quote the API key."""
    try:
        return _Answer.model_validate_json(content)
    except ValidationError:
        return None


def _call(one: _ToolCall) -> EndpointCall:
    """Return a tool call; some servers send arguments as an object, or an empty text for no arguments."""
    arguments = one.function.arguments or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return EndpointCall(one.id or "", one.function.name or "", text)


def _finish(reason: str | None) -> Literal["stop", "length", "other"]:
    return (
        "stop" if reason in ("stop", "tool_calls") else "length" if reason == "length" else "other"
    )


def read_reply(content: bytes, prompt: int) -> Reply | None:
    """Parse the reply in a server's answer; ``None`` if it has none.

    If the server reports no usage it is estimated, with ``prompt`` as the estimate of the prompt tokens.
    """
    body = _parse(content)
    if body is None or not body.choices:
        return None
    choice = body.choices[0]
    message, finish = choice.message, _finish(choice.finish_reason)
    thought, text = split_thought(message.content or "")
    if own := message.reasoning_content or message.reasoning:
        thought = f"<think>\n{own}\n</think>\n\n"
    stop = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
    calls = tuple(map(_call, choice.message.tool_calls or ()))
    if (usage := body.usage) is None:
        output = text + "".join(one.name + one.arguments for one in calls)
        output += thought
        return Reply(text, finish, prompt, estimate(output), 0, True, stop, calls, thought)
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens if details else None) or 0
    tokens = usage.prompt_tokens, usage.completion_tokens
    completion = usage.completion_tokens_details
    reasoning = (completion.reasoning_tokens if completion else None) or 0
    return Reply(text, finish, *tokens, cached, False, stop, calls, thought, reasoning)


def split_thought(text: str) -> tuple[str, str]:
    """Split a text into its thought and the rest; the start tag of the thought may be in the prompt."""
    thought, closed, content = text.partition("</think>")
    has_start = thought.lstrip().startswith("<think>")
    if not has_start and (not closed or "<think>" in thought):
        return "", text
    content = content.lstrip()
    return text[: len(text) - len(content)], content


def estimate(text: str) -> int:
    return -(-len(text.encode()) // BYTES_PER_TOKEN)
