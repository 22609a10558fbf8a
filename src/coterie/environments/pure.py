"""Base class of pure environments, without sessions, tools or shared resources."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from coterie.environments.protocol import Shared, State, Syntax, Transition
from coterie.trajectories.calls import Tool
from coterie.trajectories.task import Task


class Pure:
    """Defaults of a pure environment."""

    version = "1"
    needs: tuple[type, ...] = ()
    pure = True
    max_sessions = 1
    syntax: Syntax | None = None

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """Return an empty context: a pure environment has no sessions."""
        return nullcontext()

    async def begin(self, task: Task, live: Any) -> Transition:
        return Transition()

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return ()
