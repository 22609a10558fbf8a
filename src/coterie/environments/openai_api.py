"""OpenAI's chat completions and responses: requests of programs as messages, and sampled replies as bodies and events.

Both protocols become one :class:`ModelRequest`, whose messages keep the call ids of the program.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from coterie.datasets.messages import ROLES, parse_tools
from coterie.datasets.messages import Role as WireRole
from coterie.errors import UserError
from coterie.record.turn import Finish, Role, Tool, ToolCall
from coterie.tools.calls import check_tools

Protocol = Literal["chat", "responses"]
TEXT_PARTS = ("text", "input_text", "output_text")
SAMPLING = ("temperature", "top_p")
"""Settings of requests that the run's own settings replace."""
IGNORED = ("seed", "presence_penalty", "frequency_penalty")
UNSUPPORTED = {
    "logprobs": "log-probs", "top_logprobs": "log-probs", "previous_response_id": "stored responses",
    "conversation": "stored responses", "background": "background responses", "audio": "audio",
    "prediction": "predicted outputs", "logit_bias": "biased tokens", "prompt": "stored prompts",
    "functions": "functions without tools", "function_call": "functions without tools",
}  # fmt: skip
"""Keys whose effect a program would miss without an error."""


UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class RequestError(Exception):
    """A request is refused with a status and OpenAI's error body."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": None, "code": code}
        self.body = {"error": error}


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message of a request."""

    role: Role
    """Role; ``inline`` for what a program has added to an echoed reply."""
    text: str
    calls: tuple[ToolCall, ...] = ()
    """Calls of a reply, with the ids of the program."""
    answers: str = ""
    """Id of the call that a tool's message answers."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelRequest:
    """A request of a program for ``count`` replies."""

    protocol: Protocol
    model: str
    messages: tuple[WireMessage, ...]
    tools: tuple[Tool, ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    count: int = 1
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Values of :data:`SAMPLING` in the request."""
    notes: tuple[str, ...] = ()
    """What the request asks for in vain."""
    streams: bool = False
    streams_usage: bool = False
    fingerprint: str = ""
    """Hash of the body, which is equal for a repeated request."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A sampled reply."""

    id: str
    text: str
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Calls with the ids that the program gets."""
    finish: Finish = "end"
    prompt_tokens: int = 0
    completion_tokens: int = 0


# -- requests -------------------------------------------------------------------------------------


def read_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ``RequestError``."""
    try:
        body = json.loads(raw)
        # Hashes and stores need whole characters, which `\ud800` in JSON is not.
        if rb"\ud" in raw.lower():
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the body is not an object")
    return body


def read_request(protocol: Protocol, raw: bytes) -> ModelRequest:
    """Parse the body of a request. Raises ``RequestError``."""
    body = read_object(raw)
    for name, subject in UNSUPPORTED.items():
        if body.get(name):
            raise RequestError(f"{name}: {subject} are not supported", code="unsupported_parameter")
    try:
        messages = _chat_messages(body) if protocol == "chat" else _input_messages(body)
        notes = _check_formats(body)
        offered = None if body.get("tool_choice") == "none" else body.get("tools")
        tools = _tools(json.dumps(offered)) if offered else ()
        stop = body.get("stop") or ()
        # An empty stop string would end each reply at once.
        stop = tuple(filter(None, [stop] if isinstance(stop, str) else map(str, stop)))
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        limits = [int(body[name]) for name in names if body.get(name) is not None]
        count = 1 if body.get("n") is None else int(body["n"])
        sampling = {name: float(body[name]) for name in SAMPLING if body.get(name) is not None}
        streams = bool(body.get("stream"))
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
    except UNREADABLE as error:
        raise RequestError(f"the request can't be read: {error}") from error
    except UserError as error:
        raise RequestError(error.what) from error
    if not messages or not 1 <= count <= 128 or min(limits, default=1) < 1:
        raise RequestError("messages, n or the limit of tokens are out of range")
    # Clients repeat a request in the same bytes.
    fingerprint = hashlib.sha256(raw).hexdigest()
    return ModelRequest(
        protocol, str(body.get("model")), messages, tools, stop, min(limits, default=None), count,
        sampling, notes, streams, usage, fingerprint,
    )  # fmt: skip


def _check_formats(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is asked for in vain. Raises ``RequestError`` for formats that a program would parse."""
    format_ = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    if format_.get("type", "text") != "text":
        problem = f"response_format={format_['type']} is not supported; ask for it in the prompt"
        raise RequestError(problem, code="unsupported_parameter")
    notes = []
    if body.get("tool_choice") not in (None, "auto", "none"):
        notes.append("tool_choice, which is not enforced: the model may reply without a call")
    if body.get("parallel_tool_calls") is False and body.get("tools"):
        notes.append("parallel_tool_calls=false, which is not enforced")
    ignored = [name for name in IGNORED if body.get(name)]
    return (*notes, *(f"{name}, which the run's own sampling ignores" for name in ignored))


@lru_cache(256)
def _tools(text: str) -> tuple[Tool, ...]:
    """Parse and check tools. Requests of a session repeat them, and equal tools are one object."""
    raw = json.loads(text)
    for tool in raw:
        if tool.get("type", "function") != "function":
            raise ValueError(f"tools of the type {tool['type']} are not supported, only functions")
    tools = parse_tools(raw)
    check_tools(tools)
    return tools


def _text(content: Any) -> str:
    """Join the parts of a content. Raises ``ValueError`` for images and other media."""
    if content is None or isinstance(content, str):
        return content or ""
    kinds = {part["type"] for part in content}
    if not kinds <= {*TEXT_PARTS, "refusal"}:
        raise ValueError(
            f"content of the type {', '.join(sorted(kinds))} is not supported, only text"
        )
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)


def _chat_messages(body: Mapping[str, Any]) -> tuple[WireMessage, ...]:
    messages = []
    for raw in body["messages"]:
        if raw.get("function_call"):
            raise ValueError("a message has a function_call; use tool_calls")
        calls = []
        for call in raw.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"].get("arguments")
            calls.append(ToolCall(str(call.get("id") or ""), str(name), _arguments(arguments)))
        answers = str(raw.get("tool_call_id") or "")
        messages.append(WireMessage(_role(raw), _text(raw.get("content")), tuple(calls), answers))
    return tuple(messages)


def _role(raw: Mapping[str, Any]) -> WireRole:
    if raw["role"] not in ROLES:
        raise ValueError(f"there is no role {raw['role']!r}")
    return ROLES[raw["role"]]


def _input_messages(body: Mapping[str, Any]) -> tuple[WireMessage, ...]:
    """Convert the items of a response's input. Text and calls of a reply, separate items, become one message."""
    messages: list[WireMessage] = []
    if body.get("instructions"):
        messages.append(WireMessage("system", _text(body["instructions"])))
    items = body["input"]
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(WireMessage(_role(item), _text(item.get("content"))))
        elif kind == "function_call":
            call = ToolCall(str(item["call_id"]), str(item["name"]), _arguments(item["arguments"]))
            last = messages[-1] if messages else None
            text, calls = "", tuple[ToolCall, ...]()
            if last and last.role == "assistant":
                text, calls = last.text, last.calls
                messages.pop()
            messages.append(WireMessage("assistant", text, (*calls, call)))
        elif kind == "function_call_output":
            text = _text(item["output"])
            messages.append(WireMessage("tool", text, answers=str(item["call_id"])))
        # Thoughts are recorded with their replies.
        elif kind != "reasoning":
            raise ValueError(f"input items of the type {kind} are not supported")
    return tuple(messages)


# -- replies --------------------------------------------------------------------------------------


def reply_body(request: ModelRequest, replies: Sequence[ModelReply]) -> dict[str, Any]:
    """Return the body of a finished reply."""
    return (
        _completion(request, replies)
        if request.protocol == "chat"
        else _response(request, replies[0])
    )


def reply_events(request: ModelRequest, replies: Sequence[ModelReply]) -> Iterator[str]:
    """Yield the server-sent events of a reply."""
    if request.protocol == "responses":
        for number, event in enumerate(_response_events(_response(request, replies[0]))):
            event["sequence_number"] = number
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        return
    whole = _completion(request, replies)
    for choice in whole["choices"]:
        delta = choice.pop("message")
        for index, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = index
        choice["delta"], finish = delta, choice.pop("finish_reason")
        yield _chunk(whole, [{**choice, "finish_reason": None}])
        yield _chunk(whole, [{"index": choice["index"], "delta": {}, "finish_reason": finish}])
    if request.streams_usage:
        yield _chunk(whole, [], usage=whole["usage"])
    yield "data: [DONE]\n\n"


def _chunk(whole: Mapping[str, Any], choices: list[Any], **usage: Any) -> str:
    head = {name: whole[name] for name in ("id", "created", "model")}
    chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **usage}
    return f"data: {json.dumps(chunk)}\n\n"


def _completion(request: ModelRequest, replies: Sequence[ModelReply]) -> dict[str, Any]:
    choices = []
    for index, reply in enumerate(replies):
        finish = "length" if reply.finish == "length" else "tool_calls" if reply.calls else "stop"
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.calls:
            functions = ({"name": call.name, "arguments": call.arguments} for call in reply.calls)
            message["content"] = reply.text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": function}
                for call, function in zip(reply.calls, functions, strict=True)
            ]
        if reply.thought:
            message["reasoning_content"] = reply.thought
        choice = {"index": index, "message": message, "logprobs": None, "finish_reason": finish}
        choices.append(choice)
    # The prompt is the same for all replies, and is counted once.
    prompt, completion = replies[0].prompt_tokens, sum(r.completion_tokens for r in replies)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    head: dict[str, Any] = {"id": f"chatcmpl-{replies[0].id}", "object": "chat.completion"}
    head |= {"created": int(time.time()), "model": request.model}
    return {**head, "choices": choices, "usage": {**usage, "total_tokens": prompt + completion}}


def _response(request: ModelRequest, reply: ModelReply) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    is_cut = reply.finish == "length"
    status = "incomplete" if is_cut else "completed"
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant"}
        output.append({**message, "status": status, "content": [part]})
    for call in reply.calls:
        item = {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id}
        output.append({**item, "name": call.name, "arguments": call.arguments, "status": status})
    # Clients require all of these keys.
    unset = ("error", "incomplete_details", "instructions", "temperature", "top_p")
    head: dict[str, Any] = {"id": f"resp_{reply.id}", "object": "response", **dict.fromkeys(unset)}
    head |= {"created_at": int(time.time()), "model": request.model, "status": status}
    head |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}}
    if is_cut:
        head["incomplete_details"] = {"reason": "max_output_tokens"}
    usage: dict[str, Any] = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    return {**head, "output": output, "usage": usage}


def _response_events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a response, each item in one piece."""
    unfinished = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": unfinished}
    yield {"type": "response.in_progress", "response": unfinished}
    for index, item in enumerate(whole["output"]):
        head = {"output_index": index, "item_id": item["id"]}
        added = {**item, "status": "in_progress"}
        if item["type"] == "message":
            (part,) = item["content"]
            text, kind = {**head, "content_index": 0}, "response.output_text"
            added["content"] = []
            middle = [
                {"type": "response.content_part.added", **text, "part": {**part, "text": ""}},
                {"type": f"{kind}.delta", **text, "delta": part["text"], "logprobs": []},
                {"type": f"{kind}.done", **text, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **text, "part": part},
            ]
        else:
            added["arguments"], kind = "", "response.function_call_arguments"
            call = {"name": item["name"], "arguments": item["arguments"]}
            middle = [
                {"type": f"{kind}.delta", **head, "delta": item["arguments"]},
                {"type": f"{kind}.done", **head, **call},
            ]
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        yield from middle
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}
