"""Mixins that forward methods to an inner environment."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.environments.protocol import Environment, Grade, Shared, State, Transition
from coterie.trajectories.calls import Tool
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Turn


class ForwardedTasks:
    """Forward tasks, sessions and grades."""

    environment: Environment

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        return self.environment.tasks(split, count, seed, after)

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        return self.environment.open(task, seed, shared)

    async def grade(self, state: State, live: Any) -> Grade:
        return await self.environment.grade(state, live)


class ForwardedPlay(ForwardedTasks):
    """Forward acts and tools too."""

    async def begin(self, task: Task, live: Any) -> Transition:
        return await self.environment.begin(task, live)

    def acting(self, state: State) -> tuple[str, ...]:
        return self.environment.acting(state)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return self.environment.tools(state, actor)

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:

        return await self.environment.act(state, turns, live, recorded=recorded)
