"""Sources of tools. A run reads their descriptions before it starts, and opens them while it samples.

A source may be a Python function, an HTTP retriever, an MCP server or the sandbox. Its tools are part of prompts, so
they are known before sampling and stay the same for a whole run.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from coterie.tools.run import Function
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool

MESSAGE: ContextVar[str] = ContextVar("MESSAGE", default="")
"""Text of the message whose call is running, including thoughts."""


class ToolSource(Protocol):
    """Source of tools. The constructor raises ``UserError`` for a missing index, key or server."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools, constant during a run."""
        ...

    @property
    def tags(self) -> Mapping[str, Tag]:
        """Tag syntax by tool name. A tool without an entry can't be called by tags."""
        ...

    @property
    def identity(self) -> str:
        """Hash of everything that results depend on (code and settings), but not of paths and addresses."""
        ...

    def open(self) -> AbstractAsyncContextManager[Mapping[str, Function]]:
        """Open the source; return the functions by tool name.

        Raises ``UserError`` if it can't be opened, or if its tools have changed.
        """
        ...


@runtime_checkable
class SessionSource(Protocol):
    """Source of tools with state per branch of a dialogue, such as the variables of a Python session.

    It is also a :class:`ToolSource`, whose :meth:`ToolSource.open` returns none of these functions.
    """

    @property
    def needs(self) -> tuple[type, ...]: ...

    @property
    def max_sessions(self) -> int: ...

    def open_session(
        self, seed: int, shared: Any
    ) -> AbstractAsyncContextManager[Mapping[str, Function]]:
        """Open a session of one branch; return its functions by tool name. Other branches replay their calls."""
        ...
