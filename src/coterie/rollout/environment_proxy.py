"""Proxy of an environment for one task that adds time limits and checks returned values.

Invalid values and timeouts are the environment's own faults and fail only the branch that met them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from coterie.environments.checks import (
    EnvironmentFault,
    check_return,
    faults_of,
    innermost,
    messages_of,
    wrong_return,
)
from coterie.environments.protocol import Environment, Grade, State, Transition
from coterie.record.tree import Task
from coterie.record.turn import Message, Tool, Turn
from coterie.rollout.samplers import AgentContext
from coterie.rollout.sessions import SessionError
from coterie.rollout.transitions import StepResult, check_grade, left_after, make_step_result
from coterie.tools.calls import check_tools

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvironmentProxy:
    """One task's environment; methods raise :class:`EnvironmentFault` for its faults."""

    environment: Environment
    task: Task
    seed: int
    seconds: float
    """Time limit of each call."""
    variant: str | None
    _tools: dict[str, tuple[Tool, ...]] = field(default_factory=dict)

    def acting(self, state: State) -> tuple[str, ...]:
        """Return the acting actors in the order of recording; at least one."""
        with faults_of(self.environment):
            names = self.environment.acting(state)
            actors = self.environment.actors
            if not names or not set(names) <= actors.keys() or len(set(names)) < len(names):
                raise ValueError(f"acting() gave {names}; the actors are {', '.join(actors)}")
        return tuple(name for name in actors if name in names)

    def see(self, state: State, actor: str) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
        """Return the messages and tools of an actor's next prompt."""
        with faults_of(self.environment):
            messages = messages_of(self.environment, state, actor)
            tools = tuple(self.environment.tools(state, actor))
        if tools != self._tools.get(actor, ()):
            check_tools(tools)
            self._tools[actor] = tools
        return messages, self._tools.get(actor, ())

    async def begin(self, live: Any, root: str) -> StepResult:
        """Begin the task after the ``root`` of a tree."""
        transition = await self._timed("the beginning", self.environment.begin, self.task, live)
        left = MappingProxyType(dict(self.environment.limits))
        check_return(self.environment, "begin", transition, Transition)
        with faults_of(self.environment):
            before = State(self.task, self.seed, self.variant, left=left)
            step = make_step_result(root, before, (), transition, {}, self.environment.syntax)
        if step.position.state.end is not None:
            raise EnvironmentFault(
                f"{self.environment.name}: task {self.task.id} ended before any actor acted"
            )
        return step

    async def act(
        self,
        state: State,
        actions: tuple[Turn, ...],
        live: Any,
        contexts: Mapping[str, AgentContext],
        recorded: tuple[Turn, ...],
    ) -> StepResult:
        """Apply actions; ``contexts`` are the actors' contexts after them."""
        left = left_after(state.left, actions)
        now = replace(state, turns=(*state.turns, *actions), left=left)
        transition = await self._timed(
            "an act", self.environment.act, now, actions, live, recorded=recorded
        )
        check_return(self.environment, "act", transition, Transition)
        with faults_of(self.environment):
            syntax = self.environment.syntax
            return make_step_result(actions[-1].id, now, actions, transition, contexts, syntax)

    async def grade(self, state: State, live: Any) -> Grade:
        """Grade an ended path; scores are scaled to 0 to 1."""
        grade: Grade = await self._timed("grading", self.environment.grade, state, live)
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

    async def _timed(
        self, what: str, work: Callable[..., Awaitable[T]], *args: Any, **named: Any
    ) -> T:
        with faults_of(self.environment):
            limit = asyncio.timeout(self.seconds)
            try:
                async with limit:
                    return await work(*args, **named)
            except TimeoutError as error:
                if not limit.expired():  # raised by the environment itself
                    raise
                raise SessionError(
                    f"{self.environment.name}: {what} did not end within {self.seconds:g} seconds"
                ) from error
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                raise SessionError(
                    f"{self.environment.name}: {what} awaited a task that was cancelled"
                ) from error
