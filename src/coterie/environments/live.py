"""What a branch of an environment with tools has open: the environment's own session, and the tools."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from coterie.environments.protocol import Session
from coterie.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Live:
    """The environment's own session, and tools, of which some may belong to the branch."""

    session: Any
    """What is shared, where the environment is pure."""
    toolbox: Toolbox
    forks: bool
    """Whether it can be copied: no tool keeps a state for the branch."""

    def fork(self) -> "AbstractAsyncContextManager[Session] | None":
        """With a copy of the environment's own session, if it can be had."""
        copy = self.session.fork() if self.forks else None
        return None if copy is None else _copied(copy, self.toolbox)


@asynccontextmanager
async def _copied(
    opening: AbstractAsyncContextManager[Any], toolbox: Toolbox
) -> AsyncIterator[Live]:
    async with opening as session:
        yield Live(session, toolbox, True)
