"""Where tools come from: what a run is told of them before it begins, and what it opens while it plays.

A source may be a Python function, a retriever behind HTTP, an MCP server or the sandbox. Its tools are known before
anything is sampled, because prompts show them; they stay the same for a whole run.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from coterie.tools.run import Function
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool

MESSAGE: ContextVar[str] = ContextVar("MESSAGE", default="")
"""While a call runs: the text of the message that makes it, thoughts included."""


class ToolSource(Protocol):
    """Tools of one kind. Making it raises ``UserError`` for what can't be used: no index, no key, no server."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools; never others later."""
        ...

    @property
    def tags(self) -> Mapping[str, Tag]:
        """By name of a tool: how it is called by tags. A tool that is not in it can't be called so."""
        ...

    @property
    def identity(self) -> str:
        """What results depend on: a hash of code and settings, but not of where files lie or servers listen."""
        ...

    def open(self) -> AbstractAsyncContextManager[Mapping[str, Function]]:
        """What runs the calls, by name of the tool, for as long as a run plays.

        Raises ``UserError`` if it can't be opened, or if its tools are not :attr:`tools` any more.
        """
        ...


@runtime_checkable
class SessionSource(Protocol):
    """Tools whose state belongs to one branch of a dialogue, such as the variables of a Python session.

    They are a :class:`ToolSource` too, whose :meth:`ToolSource.open` gives none of them.
    """

    @property
    def needs(self) -> tuple[type, ...]: ...

    @property
    def max_sessions(self) -> int: ...

    def open_session(
        self, seed: int, shared: Any
    ) -> AbstractAsyncContextManager[Mapping[str, Function]]:
        """What runs the calls of one branch, by name of the tool. Another branch is brought there by replay."""
        ...
