"""What is said to servers of chat models, and what they answer: messages, calls of tools, tokens."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

BYTES_PER_TOKEN = 4
"""For estimates, where the server has not counted."""


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """A call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[EndpointCall, ...] = ()
    """Of an assistant's message."""
    call_id: str = ""
    """Of a tool's message: the call that it answers."""
    images: tuple[str, ...] = ()
    """URLs (also ``data:`` URLs) of images that stand before the text, for models that see."""

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
    """What the model answered."""

    text: str
    finish: Literal["stop", "length", "other"]
    """``other``: what the server calls otherwise, such as a content filter."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: bool
    """Whether the server has not counted, and the tokens are a fourth of the bytes."""
    stop: str = ""
    """The stop string that ended it, which its text has no more; empty where the server does not say."""
    calls: tuple[EndpointCall, ...] = ()
    thought: str = ""
    """The thought of the reply with its marks, if the server or the reply's text has one."""
    thought_tokens: int = 0
    """Completion tokens of the thought, as the server counts them."""


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
    """The part of a server's reply that is read."""

    choices: list[_Choice]
    usage: _Usage | None = None


def _checked(content: bytes) -> _Answer | None:
    """A server's reply, if it is one. The reason why not quotes it, key and all, and is left here."""
    try:
        return _Answer.model_validate_json(content)
    except ValidationError:
        return None


def _call(one: _ToolCall) -> EndpointCall:
    """A call; some servers give arguments as an object, and none as an empty text."""
    arguments = one.function.arguments or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return EndpointCall(one.id or "", one.function.name or "", text)


def _finish(reason: str | None) -> Literal["stop", "length", "other"]:
    return (
        "stop" if reason in ("stop", "tool_calls") else "length" if reason == "length" else "other"
    )


def read_reply(content: bytes, prompt: int) -> Reply | None:
    """The reply in a server's answer; ``None`` if it has none.

    Its usage is estimated if it is not there; ``prompt`` is the estimate of the prompt.
    """
    body = _checked(content)
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
    """Split a text at the thought with which it begins; its prompt may have opened the thought."""
    thought, closed, content = text.partition("</think>")
    has_start = thought.lstrip().startswith("<think>")
    if not has_start and (not closed or "<think>" in thought):
        return "", text
    content = content.lstrip()
    return text[: len(text) - len(content)], content


def estimate(text: str) -> int:
    return -(-len(text.encode()) // BYTES_PER_TOKEN)
