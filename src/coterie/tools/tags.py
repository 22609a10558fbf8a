"""Tool calls as tags in the text: ``<search>Ada Quill | Norway</search>``.

Tags are for models without a native syntax of calls, and for recipes whose papers use tags (GAP). Only sampled text is
parsed, once after sampling, so a tag in a tool's result is text. A call with an unclosed tag returns an error.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.errors import UserError
from coterie.record.turn import Finish, Message, Part, Role, Tool, ToolCall, ToolResult, call_id

OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class Tag:
    """Syntax of the calls of one tool. The tag has the tool's name."""

    argument: str | None = None
    """Parameter between the tags; ``None``: all arguments, as a JSON object."""
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
            first = replace(messages[0], parts=(*messages[0].parts, Part(f"\n\n{text}")))
            return (first, *messages[1:])
        return (Message.of("system", text), *messages)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """Parse the calls of a message. ``text`` is the sampled text, including its stop string."""
        names = "|".join(map(re.escape, self.calls))
        tags = list(re.finditer(f"<({names})>", text)) if names else []
        calls: list[ToolCall] = []
        for number, tag in enumerate(tags):
            name = tag[1]
            until = tags[number + 1].start() if number + 1 < len(tags) else len(text)
            body, closing, _ = text[tag.end() : until].partition(f"</{name}>")
            error = "" if closing else _unclosed(name, finish, last=until == len(text))
            for piece in self._pieces(name, body):
                argument = self.arguments(name, piece)
                calls.append(
                    ToolCall(call_id(len(calls)), name, argument, error or _empty(name, piece))
                )
        return tuple(calls)

    def arguments(self, name: str, piece: str) -> str:
        """Convert the text between a tool's tags to the arguments of a call, as JSON."""
        parameter = self.calls[name].argument
        return piece if parameter is None else json.dumps({parameter: piece}, ensure_ascii=False)

    def find_answer(self, text: str) -> str | None:
        """Return the text of the last complete answer tag, or ``None``."""
        if self.answer is None:
            return None
        answers = re.findall(f"<{self.answer}>(.*?)</{self.answer}>", text, re.DOTALL)
        return answers[-1].strip() if answers else None

    def show(self, results: Sequence[ToolResult]) -> str:
        """Format results for the agent, in the order of the calls."""
        tag = self.observation
        blocks = "\n".join(f"<{tag}>\n{inside(result.text, tag)}\n</{tag}>" for result in results)
        return f"\n{blocks}\n" if self.inline else blocks

    def _pieces(self, name: str, body: str) -> list[str]:
        separator = self.calls[name].separator
        if separator is None:
            return [body.strip()]
        parts = re.split(rf"(?<!\\){re.escape(separator)}", body)
        pieces = [part.replace(f"\\{separator}", separator).strip() for part in parts]
        return [piece for piece in pieces if piece] or [""]


def _example(tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return "{}"
    kinds = {
        name: one.get("type", "value") if isinstance(one, Mapping) else "value"
        for name, one in properties.items()
    }
    return json.dumps(kinds, ensure_ascii=False)


def inside(text: str, tag: str) -> str:
    """Escape a text inside a tag, so that it cannot open or close the tag: ``</a>`` becomes ``[/a]``."""
    return re.sub(rf"<(/?{re.escape(tag)})>", r"[\1]", text)


def closing(text: str, stops: Sequence[str]) -> str:
    """Return the closing tag of the last unclosed tag, or an empty string.

    For servers that cut off the stop string and do not report it.
    """
    positions = {text.rfind(stop.replace("</", "<", 1)): stop for stop in stops if stop[:2] == "</"}
    last = max(positions, default=-1)
    return positions[last] if last >= 0 and positions[last] not in text[last:] else ""


def _unclosed(name: str, finish: Finish, *, last: bool) -> str:
    if last and finish == "length":
        return f"not run: the message was cut off before </{name}>"
    return f"not run: <{name}> is not closed; write </{name}> after the call"


def _empty(name: str, piece: str) -> str:
    return "" if piece else f"not run: <{name}> is empty"
