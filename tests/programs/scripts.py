"""What the models say to each client, and what a chat template makes of the messages that a client sent.

A random model writes no calls. So the engine returns scripted texts, in tokens that no tokenizer gives (letter by
letter), as a model of the template's family writes them: with thoughts where it thinks, and other spaces in its calls
than the template writes. All else is real: client, HTTP, gateway, templates, and the record.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from coterie.models.chat import ChatRenderer
from tests.helpers.published_templates import published_tokenizer
from tests.programs.recorder import Exchange

Chat = list[dict[str, Any]]
TEMPLATES = ("qwen2_5", "qwen3", "qwen3_6", "llama3_1", "lfm2_2_5")
"""Templates of TRL: calls as JSON, as tags and as Python, thoughts that are dropped, and a prompt that opens one."""
THOUGHT = "Hm, boxes."


@dataclass(frozen=True)
class Reply:
    """A reply of a model, before its template writes it."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The message of the reply for a template, with its thought."""
        functions = [{"name": name, "arguments": dict(values)} for name, values in self.calls]
        calls = [{"type": "function", "function": function} for function in functions]
        message = {"role": "assistant", "content": self.text, "reasoning_content": THOUGHT}
        return {**message, "tool_calls": calls} if calls else message


def call(name: str, text: str = "", **arguments: Any) -> Reply:
    return Reply(text, ((name, arguments),))


@cache
def renderer(template: str) -> ChatRenderer:
    return ChatRenderer(published_tokenizer(template))


def rendered(
    template: str, chat: Chat, *, generation: bool = True, tools: Sequence[Any] = ()
) -> str:
    """Return the template's own text of a chat."""
    options = {"tools": list(tools)} if tools else {}
    text = published_tokenizer(template).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=generation, **options
    )
    assert isinstance(text, str)
    return text


def as_written(template: str, reply: Reply) -> str:
    """Return the text that the template writes for a reply after its own generation prompt."""
    chat = [{"role": "user", "content": "a"}]
    prompt = rendered(template, chat)
    text = rendered(template, [*chat, reply.message], generation=False)
    assert text.startswith(prompt), "the template continues its prompt"
    end = renderer(template).decode(renderer(template).end)
    return text[len(prompt) :].rpartition(end)[0]


def as_sampled(template: str, reply: Reply) -> str:
    """Return the text that the model samples: its calls have fewer spaces than the template writes."""
    text = as_written(template, reply)
    return re.sub(r'(":|=\d+,) ', r"\1", text) if reply.calls else text


def chat_of(exchange: Exchange) -> tuple[Chat, list[Any]]:
    """Return the messages and tools of a request as a template takes them, without any code of the gateway."""
    body = exchange.body
    if exchange.path.endswith("/responses"):
        flat = body.get("tools", ())
        chat = [{"role": "system", "content": body["instructions"]}, *_joined(body["input"])]
    else:
        flat = [tool["function"] for tool in body.get("tools", ())]
        chat = [_plain(message) for message in body["messages"]]
    tools = [
        {
            "type": "function",
            "function": {key: tool[key] for key in ("name", "description", "parameters")},
        }
        for tool in flat
    ]
    return chat, tools


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its content as text and its arguments as objects."""
    plain = {"role": message["role"], "content": _text(message.get("content"))}
    calls = [(c["id"], c["function"]) for c in message.get("tool_calls") or ()]
    if calls:
        plain["tool_calls"] = [_call(id_, function) for id_, function in calls]
    return plain


def _call(id_: str, function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.loads(function["arguments"])
    return {
        "id": id_,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _joined(items: Sequence[Mapping[str, Any]]) -> Chat:
    """Return items of the Responses API as messages: a text and calls that follow each other are one reply."""
    chat: Chat = []
    for item in items:
        item_type = item.get("type", "message")
        if item_type == "function_call_output":
            chat.append({"role": "tool", "content": _text(item["output"])})
            continue
        if item_type == "message":
            chat.append({"role": item["role"], "content": _text(item["content"])})
            continue
        if not chat or chat[-1]["role"] != "assistant":
            chat.append({"role": "assistant", "content": ""})
        chat[-1].setdefault("tool_calls", []).append(_call(item["call_id"], item))
    return chat


def replies_of(exchange: Exchange) -> tuple[str, tuple[str, ...]]:
    """Return the text and the call ids of an answer."""
    answer = exchange.answer
    if exchange.path.endswith("/responses"):
        texts = [_text(item["content"]) for item in answer["output"] if item["type"] == "message"]
        ids = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        return "".join(texts), tuple(ids)
    message = answer["choices"][0]["message"]
    return _text(message["content"]), tuple(c["id"] for c in message.get("tool_calls") or ())
