"""The environment of one task, as branches ask it: within a time limit, and what it gives is checked.

What an environment does that can't be is its own fault, and fails the branch that met it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from coterie.environments.faults import (
    EnvironmentFault,
    check_return,
    faults_of,
    innermost,
    messages_of,
    wrong_return,
)
from coterie.environments.protocol import Environment, Grade, State, Transition
from coterie.rollout.samplers import AgentContext
from coterie.rollout.sessions import SessionError
from coterie.rollout.transitions import Arrival, arrive, check_grade, left_after
from coterie.tools.checking import check_tools
from coterie.trajectories.calls import Tool
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Message, Turn

T = TypeVar("T")


async def timed(
    environment: Environment,
    seconds: float,
    what: str,
    work: Callable[..., Awaitable[T]],
    *args: Any,
    **named: Any,
) -> T:
    with faults_of(environment):
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work(*args, **named)
        except TimeoutError as error:
            if not limit.expired():  # the environment's own
                raise
            raise SessionError(
                f"{environment.name}: {what} did not end within {seconds:g} seconds"
            ) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise SessionError(
                f"{environment.name}: {what} waited for what was cancelled"
            ) from error


@dataclass(frozen=True, slots=True)
class CheckedEnvironment:
    """All methods raise :class:`EnvironmentFault` for what the environment does wrong."""

    environment: Environment
    task: Task
    seed: int
    seconds: float
    """Time limit of what it does at a time."""
    variant: str | None
    _tools: dict[str, tuple[Tool, ...]] = field(default_factory=dict)

    def acting(self, state: State) -> tuple[str, ...]:
        """Who acts now, in the order in which it is recorded; somebody, in a state that has not ended."""
        with faults_of(self.environment):
            names = self.environment.acting(state)
            known = self.environment.actors
            if not names or not set(names) <= known.keys() or len(set(names)) < len(names):
                raise ValueError(f"acting() gave {names}; the actors are {', '.join(known)}")
        return tuple(name for name in known if name in names)

    def shown(self, state: State, actor: str) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
        with faults_of(self.environment):
            shown = messages_of(self.environment, state, actor)
            tools = tuple(self.environment.tools(state, actor))
        if tools != self._tools.get(actor, ()):
            check_tools(tools)
            self._tools[actor] = tools
        return shown, self._tools.get(actor, ())

    async def begin(self, live: Any, root: str) -> Arrival:
        """The beginning, after the ``root`` of a tree."""
        found = await timed(
            self.environment, self.seconds, "the beginning", self.environment.begin, self.task, live
        )
        left = MappingProxyType(dict(self.environment.limits))
        check_return(self.environment, "begin", found, Transition)
        with faults_of(self.environment):
            before = State(self.task, self.seed, self.variant, left=left)
            arrival = arrive(root, before, (), found, {}, self.environment.syntax)
        if arrival.position.state.end is not None:
            raise EnvironmentFault(
                f"{self.environment.name}: task {self.task.id} ended before anybody acted"
            )
        return arrival

    async def act(
        self,
        state: State,
        taken: tuple[Turn, ...],
        live: Any,
        contexts: Mapping[str, AgentContext],
        recorded: tuple[Turn, ...],
    ) -> Arrival:
        """The transition that turns bring about; ``contexts`` are what actors have seen and said after them."""
        now = replace(state, turns=(*state.turns, *taken), left=left_after(state.left, taken))
        found = await timed(
            self.environment,
            self.seconds,
            "an act",
            self.environment.act,
            now,
            taken,
            live,
            recorded=recorded,
        )
        check_return(self.environment, "act", found, Transition)
        with faults_of(self.environment):
            return arrive(taken[-1].id, now, taken, found, contexts, self.environment.syntax)

    async def grade(self, state: State, live: Any) -> Grade:
        grade: Grade = await timed(
            self.environment, self.seconds, "grading", self.environment.grade, state, live
        )
        check_return(self.environment, "grade", grade, Grade)
        with faults_of(self.environment):
            check_grade(grade, self.environment.actors)
        if grade.score is None:
            return grade
        low, high = getattr(innermost(self.environment), "score_range", (0.0, 1.0))
        if not low <= grade.score <= high:
            expected = f"a score from {low:g} to {high:g}, or declare score_range = (low, high)"
            raise wrong_return(self.environment, "grade", grade.score, expected)
        return replace(grade, score=(grade.score - low) / (high - low))
