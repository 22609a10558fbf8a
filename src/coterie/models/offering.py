"""Tools and calls as a chat template takes them: OpenAI's form, its texts made safe by who asks."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from coterie.config.text import shallow
from coterie.trajectories.calls import Tool, ToolCall

Text = Callable[[str], str]


def offered(tool: Tool, text: Text = str) -> dict[str, Any]:
    """A tool, every text of it by ``text``; keys stay in the order in which the tool has them."""
    function = {
        "name": text(tool.name),
        "description": text(tool.description),
        "parameters": mapped(tool.parameters, text),
    }
    return {"type": "function", "function": function}


def called(call: ToolCall, id_: str, text: Text = str) -> dict[str, Any]:
    """A call, its arguments as a mapping, which is all that some templates take."""
    function = {"name": text(call.name), "arguments": mapped(_arguments(call), text)}
    return {"id": id_, "type": "function", "function": function}


def safe_call(call: ToolCall, safe: Text) -> ToolCall:
    """A call, every text of it by ``safe``, whatever JSON spells it as."""
    arguments = json.dumps(mapped(_arguments(call), safe), ensure_ascii=False)
    return replace(call, name=safe(call.name), arguments=arguments)


def mapped(value: object, text: Text) -> Any:
    """A copy of a JSON value, its keys and strings by ``text``."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(key)): mapped(one, text) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(one, text) for one in value]
    return value


def _arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call; what is no JSON object, or nests too deep to be gone through, is a text in one."""
    try:
        found = shallow(json.loads(call.arguments))
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"text": call.arguments}
