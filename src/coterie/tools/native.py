"""Calls in each model's native syntax. The chat template renders tools and results, and the sampler parses calls.

An environment whose agents all use native calls has the syntax ``NativeCalls()``. The syntax of each model is detected
when it is loaded (``models.tool_calls``). A model without one is refused.
"""

from collections.abc import Sequence
from typing import ClassVar

from coterie.trajectories.calls import Tool, ToolCall, ToolResult
from coterie.trajectories.turn import Finish, Message, Role


class NativeCalls:
    """Placeholder for each model's syntax. The model ends a message, so a message may have several calls."""

    stop: ClassVar[tuple[str, ...]] = ()
    role: ClassVar[Role] = "tool"
    """Role of messages with results."""

    def with_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Return the messages unchanged, since chat templates render tools."""
        return tuple(messages)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        return ()

    def show(self, results: Sequence[ToolResult]) -> str:
        """Return an empty text, since chat templates render results."""
        return ""


def template_tools(syntax: object, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools for the chat template: all for native calls, else none, since prompts describe them."""
    return tools if isinstance(syntax, NativeCalls) else ()
