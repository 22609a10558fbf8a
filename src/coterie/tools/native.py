"""Calls in the syntax of whatever model plays: its chat template shows tools and results, and who samples reads calls.

An environment of which all agents call in this way has ``NativeCalls()`` as its syntax. Each agent's model may have
another syntax; which one is found when the model is loaded (``models.tool_calls``). A model without one is refused.
"""

from collections.abc import Sequence
from typing import ClassVar

from coterie.trajectories.calls import Tool, ToolCall, ToolResult
from coterie.trajectories.turn import Finish, Message, Role


class NativeCalls:
    """Stands for the syntax of each model. A message ends where the model ends it, so it may make several calls."""

    stop: ClassVar[tuple[str, ...]] = ()
    role: ClassVar[Role] = "tool"
    """Of the messages that show results."""

    def told(self, shown: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """The messages as they are: chat templates show tools."""
        return tuple(shown)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        return ()

    def show(self, results: Sequence[ToolResult]) -> str:
        """Empty: chat templates show results."""
        return ""


def shown_by_template(syntax: object, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools that a chat template is to show: all where calls are native, else none, as prompts teach them."""
    return tools if isinstance(syntax, NativeCalls) else ()
