"""Calls as tags in the text: ``<search>Ada Quill | Norway</search>``.

For models without a syntax of their own for calls, and for recipes whose papers use tags (GAP). A message is parsed
once, after sampling, and only what was sampled is parsed: a tag in a tool's result is text. A call whose tag is not
closed is answered and never run.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.errors import UserError
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, call_id
from coterie.trajectories.turn import Finish, Message, Part, Role

_NAME = re.compile(r"[A-Za-z0-9_-]+")
OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class Tag:
    """How the calls of one tool are written. The tag has the tool's name."""

    argument: str | None = None
    """The tool's parameter that stands between the tags; ``None``: all arguments, as a JSON object."""
    separator: str | None = None
    """What stands between the calls that one tag makes, which run side by side; a backslash before it makes it
    text. ``None``: a tag is one call."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The syntax: which tools have tags, and the tag of a final answer."""

    calls: Mapping[str, Tag]
    answer: str | None = "answer"
    """The tag of a final answer; ``None``: an answer has no form of its own."""
    observation: str = OBSERVATION
    inline: bool = False
    """Whether a result goes on in the message that called, with no end of turn between them (GAP)."""
    stop: tuple[str, ...] = field(init=False)
    """Stop strings: a message ends with its first complete tag."""

    def __post_init__(self) -> None:
        names = (*self.calls, *(() if self.answer is None else (self.answer,)))
        for name in (*names, self.observation):
            if not _NAME.fullmatch(name):
                raise UserError(
                    f"{name!r} is not the name of a tag", "use letters, digits, _ and -"
                )
        if self.answer in self.calls:
            raise UserError(
                f"the tag {self.answer!r} is a call and the answer", "rename one of them"
            )
        if self.observation in names:
            raise UserError(
                f"the tag {self.observation!r} is a result and a call or the answer",
                "rename one of them",
            )
        for name, tag in self.calls.items():
            if tag.separator is not None and not tag.separator.strip():
                raise UserError(f"the tag {name!r} has an empty separator", "give a sign, or None")
            if tag.separator is not None and tag.argument is None:
                raise UserError(
                    f"the tag {name!r} has a separator, and holds a JSON object",
                    "name its argument, or leave the separator out",
                )
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

    def told(self, shown: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Messages whose system prompt teaches the tools."""
        taught = self.teach(tools)
        if shown and shown[0].role == "system":
            first = replace(shown[0], parts=(*shown[0].parts, Part(f"\n\n{taught}")))
            return (first, *shown[1:])
        return (Message.of("system", taught), *shown)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """The calls of a message, in their order. ``text`` is all that was sampled, its stop string included."""
        names = "|".join(map(re.escape, self.calls))
        opened = list(re.finditer(f"<({names})>", text)) if names else []
        calls: list[ToolCall] = []
        for number, tag in enumerate(opened):
            name = tag[1]
            until = opened[number + 1].start() if number + 1 < len(opened) else len(text)
            body, closing, _ = text[tag.end() : until].partition(f"</{name}>")
            error = "" if closing else _unclosed(name, finish, last=until == len(text))
            for piece in self._pieces(name, body):
                argument = self.written(name, piece)
                calls.append(
                    ToolCall(call_id(len(calls)), name, argument, error or _empty(name, piece))
                )
        return tuple(calls)

    def written(self, name: str, piece: str) -> str:
        """What stands between the tags of a tool, as the arguments of a call."""
        parameter = self.calls[name].argument
        return piece if parameter is None else json.dumps({parameter: piece}, ensure_ascii=False)

    def answered(self, text: str) -> str | None:
        """What stands in the last complete answer tag; ``None`` if there is none."""
        if self.answer is None:
            return None
        found = re.findall(f"<{self.answer}>(.*?)</{self.answer}>", text, re.DOTALL)
        return found[-1].strip() if found else None

    def show(self, results: Sequence[ToolResult]) -> str:
        """Results as the agent is shown them, in the order of the calls."""
        tag = self.observation
        shown = "\n".join(f"<{tag}>\n{inside(result.text, tag)}\n</{tag}>" for result in results)
        return f"\n{shown}\n" if self.inline else shown

    def _pieces(self, name: str, body: str) -> list[str]:
        separator = self.calls[name].separator
        if separator is None:
            return [body.strip()]
        pieces = re.split(rf"(?<!\\){re.escape(separator)}", body)
        found = [piece.replace(f"\\{separator}", separator).strip() for piece in pieces]
        return [piece for piece in found if piece] or [""]


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
    """A text that is to stand in a tag: it can neither close the tag nor open another one, ``</a>`` is ``[/a]``."""
    return re.sub(rf"<(/?{re.escape(tag)})>", r"[\1]", text)


def closing(text: str, stops: Sequence[str]) -> str:
    """The closing tag that ended a message, of a server that cuts stop strings off and does not say which; the tag
    that was opened last and is not closed. Empty if there is none.
    """
    opened = {text.rfind(stop.replace("</", "<", 1)): stop for stop in stops if stop[:2] == "</"}
    last = max(opened, default=-1)
    return opened[last] if last >= 0 and opened[last] not in text[last:] else ""


def _unclosed(name: str, finish: Finish, *, last: bool) -> str:
    if last and finish == "length":
        return f"not run: the message was cut off before </{name}>"
    return f"not run: <{name}> is not closed; write </{name}> after the call"


def _empty(name: str, piece: str) -> str:
    return "" if piece else f"not run: <{name}> is empty"
