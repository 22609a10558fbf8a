"""What environments that play another one's tasks pass on to it, as mixins."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.environments.protocol import Environment, Grade, Shared, State, Transition
from coterie.trajectories.calls import Tool
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Turn


class OthersTasks:
    """The tasks of another environment, and what they are worth."""

    environment: Environment

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        return self.environment.tasks(split, count, seed, drawn)

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        return self.environment.open(task, seed, shared)

    async def grade(self, state: State, live: Any) -> Grade:
        return await self.environment.grade(state, live)


class OthersPlay(OthersTasks):
    """And how it goes: who acts, which tools there are, and what comes of an act."""

    async def begin(self, task: Task, live: Any) -> Transition:
        return await self.environment.begin(task, live)

    def acting(self, state: State) -> tuple[str, ...]:
        return self.environment.acting(state)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return self.environment.tools(state, actor)

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """As the environment's own; of a shorter play the last turn is the last to it too."""
        return await self.environment.act(state, taken, live, recorded=recorded)
