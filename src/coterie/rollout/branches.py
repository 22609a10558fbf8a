"""Branches of one task's tree. If the session of a branch was closed, the branch is **replayed**.

A new session then receives the recorded turns, nothing is sampled again, and the environment must repeat its recorded
observations. Invalid values, timeouts and a replay that differs fail only the branch that met them.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any, TypeVar

from coterie.config.user_code import in_steps
from coterie.engines.protocol import EngineError, gather_or_cancel
from coterie.environments.protocol import (
    AnswersRequests,
    Environment,
    EnvironmentFault,
    Grade,
    Shared,
    State,
    Transition,
    check_return,
    faults_of,
    innermost,
    messages_of,
    wrong_return,
)
from coterie.environments.user_simulator import with_leaks
from coterie.record.tree import CONTEXT, STOPPED, Task, Tree
from coterie.record.turn import Tool, Turn, digest
from coterie.rollout.positions import (
    Position,
    StepResult,
    chain,
    context_at,
    left_after,
    make_step_result,
    sample_in_context,
)
from coterie.rollout.samplers import AgentContext, Prompt, Response, Sampler
from coterie.rollout.sessions import ManagedSession, SessionError, SessionKey, Sessions
from coterie.tools.calls import check_tools, template_tools

Reply = TypeVar("Reply")
T = TypeVar("T", StepResult, Grade)


class ReplayMismatch(EngineError):
    """A replayed environment returned observations that differ from the recorded observations."""


@dataclass(eq=False)
class Branches:
    """All branches of one tree, with a sampler for each actor."""

    environment: Environment
    samplers: Mapping[str, Sampler]
    task: Task
    tree: Tree
    sessions: Sessions
    """Sessions, also of other trees."""
    seed: int
    """Seed of the run; then the environment's, which all samples and branches of a task share."""
    shared: Shared
    seconds: float
    variant: str | None = None
    replays: int = 0
    """Number of sessions that were brought to a node by replay."""
    rewards: dict[tuple[str, str], float] = field(default_factory=dict)
    """Rewards from the environment, by (last of the simultaneous turns, actor)."""
    _tools: dict[str, tuple[Tool, ...]] = field(default_factory=dict)
    _positions: dict[str, Position] = field(default_factory=dict)
    _cut: set[str] = field(default_factory=set)
    """Nodes whose next prompt did not fit the context."""
    _steps: dict[str, StepResult] = field(default_factory=dict)
    """Result of the environment's step after each turn, and after the root."""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # 15 hexadecimal digits are 60 bits, which fit in a signed 64-bit seed.
        self.seed = int(digest("environment", self.seed, self.task.id)[:15], 16)
        self._faults = faults_of(self.environment)

    async def start(self) -> Position:
        """Begin the task, or return its first position."""

        async def begin() -> StepResult:
            # In a tree from the store the first observations exist and must be repeated exactly.
            recorded = set(self.tree.turns)

            async def work(live: Any) -> StepResult:
                step = await self._begin(live)
                if recorded and not recorded.issuperset(turn.id for turn in step.observations):
                    raise self._mismatch(step.position)
                return step

            return await self._run(None, work)

        return await self._step_once(self.tree.root, begin)

    async def position(self, node: str) -> Position:
        """Return the position after a node of the tree and the observations that follow it.

        In a tree from the store the environment runs again; raises ``ReplayMismatch`` if it returns other observations.
        """
        position = await self._find_position(node)
        outcome = self.tree.outcomes.get(position.node)
        # The environment knows nothing of the model's context, so a replay doesn't end there on its
        # own.
        if position.node in self._cut or (outcome is not None and outcome.ending == CONTEXT):
            position = self._end_for_context(position)
        # The record says how this path ended. Another ending means that the environment has
        # changed.
        if outcome is not None:
            # A path that was stopped on purpose goes on in its environment.
            end = None if outcome.ending == STOPPED else outcome.ending
            if end != position.state.end:
                raise self._mismatch(position)
        return position

    async def _find_position(self, node: str) -> Position:
        if node in self._steps:
            return self._steps[node].position
        if node in self._positions:
            return self._positions[node]
        if node == self.tree.root:
            return await self.start()
        # Repeat the recorded turns from the root on, with one step of the environment for each.
        path = [turn.id for turn in self.tree.path(node)]
        position = self._check_on_path(path, await self.start())
        while position.node != node:
            actions = self._recorded_actions(path, position)
            position = await self._follow(path, position, actions)
            # The position after an actor's turn includes the observations, so it may have a later
            # id.
            if actions[-1].id == node:
                break
        return position

    async def refuse(self, position: Position, error: EngineError) -> Position:
        """Continue a program after a request without a reply; end the branch of another environment there."""
        environment = self.environment
        if not isinstance(environment, AnswersRequests):
            return self.cut(position, error)

        async def work(live: Any) -> StepResult:
            refuse = environment.refuse
            transition = await self._timed("a refusal", refuse, position.state, live, error)
            arguments = (position.node, position.state, (), transition, position.contexts)
            return make_step_result(*arguments, environment.syntax)

        # The observation of the refusal is the node of this step.
        step = await self._run(position, work)
        for turn in step.observations:
            self.tree.add(turn)
        return step.position

    def cut(self, position: Position, error: EngineError) -> Position:
        """End a branch whose next prompt does not fit the context. Raises ``error`` if no agent has spoken yet."""
        # The very first prompt is too long, so there is no path that could end here.
        if not any(turn.speaker.kind == "agent" for turn in position.state.turns):
            raise error
        self._cut.add(position.node)
        return self._end_for_context(position)

    def _end_for_context(self, position: Position) -> Position:
        end = CONTEXT if position.state.end is None else position.state.end
        return replace(position, state=replace(position.state, end=end))

    def positions_on(self, leaf: str) -> list[Position]:
        """Return the known positions on the path to a leaf, from the first to the last."""
        nodes = (self.tree.root, *(turn.id for turn in self.tree.path(leaf)))
        return [self._steps[node].position for node in nodes if node in self._steps]

    def nodes(self) -> set[str]:
        """Return the nodes with a known position, which excludes nodes within simultaneous turns."""
        return {self.tree.root, *self._steps, *self._positions}

    def next_actors(self, position: Position) -> tuple[str, ...]:
        """Return who acts now, in the order of recording. A state that has not ended has at least one actor."""
        with self._faults:
            names: Any = self.environment.next_actors(position.state)
        actors, acting = self.environment.actors, tuple[str, ...]()
        if isinstance(names, tuple | list):
            # Simultaneous turns are recorded in the order of ``actors``, whatever the environment's
            # order.
            acting = tuple(name for name in actors if name in names)
        # A repeated or unknown name makes the filtered tuple shorter than the returned one.
        if not acting or len(acting) < len(names):
            expected = f"a tuple of one or more different actors of {', '.join(actors)}"
            raise wrong_return(self.environment, "next_actors", names, expected)
        return acting

    def prompt(self, position: Position, actor: str, seed: int, draw: int) -> Prompt:
        """Build the prompt of an actor."""
        syntax, stop, offered = self.environment.syntax, tuple[str, ...](), tuple[Tool, ...]()
        with self._faults:
            messages = messages_of(self.environment, position.state, actor)
            tools = tuple(self.environment.tools(position.state, actor))
        if tools:
            if tools != self._tools.get(actor):
                check_tools(tools)
                self._tools[actor] = tools  # equal tools are one object, which is written once
            # The stop strings of the call syntax are only needed while the actor may call a tool.
            stop = syntax.stop if syntax is not None else ()
            offered = template_tools(syntax, self._tools[actor])
        max_tokens = None
        if isinstance(self.environment, AnswersRequests):
            stop, max_tokens = self.environment.request_limits(position.state)
        node, calls = position.node, (offered, stop)
        return Prompt(self.tree, node, actor, messages, seed, draw, *calls, self.task, max_tokens)

    async def respond(
        self, position: Position, seeds: Mapping[str, int], draw: int
    ) -> tuple[Response, ...]:
        """Sample the turns of the next actors concurrently; ``seeds`` is by actor, in their order."""
        prompts = [self.prompt(position, actor, seed, draw) for actor, seed in seeds.items()]
        if len(prompts) == 1:  # a task would double the cost of a step
            return (await self._sample(position, prompts[0]),)
        work = (self._sample(position, prompt) for prompt in prompts)
        return tuple(await gather_or_cancel(work))

    async def _sample(self, position: Position, prompt: Prompt) -> Response:
        sampler, environment = self.samplers[prompt.agent], self.environment
        context = context_at(environment, position, prompt.agent, prompt.messages)

        def respond(shorter: Prompt) -> Awaitable[Response]:
            return sampler.respond(shorter, context)

        sampling = sample_in_context(environment, position.state, prompt, respond)
        if not isinstance(environment, AnswersRequests):
            return await sampling
        # A branch that is replayed later has no client that could leave.
        if (session := self.sessions.find(self._session_key(position.node))) is None:
            return await sampling
        return await environment.deliver(await session.live(self.seconds), sampling)

    async def advance(
        self, position: Position, responses: Sequence[Response], *, others_follow: bool = False
    ) -> Position:
        """Add the responses of the acting actors, in their order, and step the environment once.

        With ``others_follow`` more branches continue from ``position``, so its session is forked if possible.
        """
        actions = chain(self.environment, position, responses)
        for turn, response in zip(actions, responses, strict=True):
            self.tree.add(turn, response.request)

        def act() -> Awaitable[StepResult]:
            return self._run(
                position, lambda live: self._act(position, actions, live), others_follow
            )

        return await self._step_once(actions[-1].id, act)

    async def grade(self, position: Position) -> Grade:
        """Grade an ended path; scores are scaled to 0 to 1."""
        environment = self.environment

        async def work(live: Any) -> Grade:
            grade: Grade = await self._timed("grading", environment.grade, position.state, live)
            check_return(environment, "grade", grade, Grade)
            return grade

        grade = await self._run(position, work)
        # Numbers of user code are checked here: a NaN would spread into means and advantages.
        try:
            if grade.score is not None and not math.isfinite(grade.score):
                raise ValueError(f"the score is {grade.score}; use None for what can't be graded")
            for name, reward in grade.rewards.items():
                if name not in environment.actors or not math.isfinite(reward):
                    raise ValueError(f"the grade gives {name!r} {reward}")
        except (TypeError, ValueError) as error:
            expected = f"a Grade of finite numbers: {error}"
            raise wrong_return(environment, "grade", grade, expected) from error
        # Later stages compare scores of several environments, so every range is mapped to [0, 1].
        if grade.score is not None:
            low, high = getattr(innermost(environment), "score_range", (0.0, 1.0))
            if not low <= grade.score <= high:
                expected = f"a score from {low:g} to {high:g}, or declare score_range = (low, high)"
                raise wrong_return(environment, "grade", grade.score, expected)
            grade = replace(grade, score=(grade.score - low) / (high - low))
        return await with_leaks(environment, position.state, grade)

    def forget(self) -> None:
        """Drop the positions so far, which only branches and replays need."""
        self._steps.clear()
        self._positions.clear()

    async def prune(self, tree: Tree) -> None:
        """Continue with a part of the tree, with its observations, and close the sessions of dropped branches."""
        steps = self._steps.items()
        self._steps = {n: step for n, step in steps if n == tree.root or n in tree.turns}
        # The observations of a kept step stay even if all rollouts after them have failed.
        for step in self._steps.values():
            for turn in step.observations:
                tree.add(turn)
        self._cut &= tree.turns.keys()
        # A session of a dropped branch is never used again, but takes a place in the pool.
        dropped = self._positions.keys() - tree.turns.keys() - {tree.root}
        await self._close(dropped)
        for node in dropped:
            del self._positions[node]
        self.tree = tree

    async def close(self) -> None:
        """Close the idle sessions of this tree."""
        await self._close(self._positions)

    async def _close(self, nodes: Iterable[str]) -> None:
        for node in list(nodes):
            if session := self.sessions.take(self._session_key(node)):
                await self.sessions.drop(session)

    # -- steps --------------------------------------------------------------------------------

    async def _step_once(self, node: str, step: Callable[[], Awaitable[StepResult]]) -> Position:
        """Return the position after the step at a node; concurrent callers share one step."""
        if node not in self._steps:
            # Several rollouts may reach a node at once: one of them runs the step, the others wait.
            async with self._locks.setdefault(node, asyncio.Lock()):
                # The step may have finished while this caller waited for the lock.
                if node not in self._steps:
                    result = await step()
                    for turn in result.observations:
                        self.tree.add(turn)
                    self.rewards |= result.rewards
                    self._positions[result.position.node] = result.position
                    self._steps[node] = result
            # Waiting callers hold the lock itself, and new ones find the stored step.
            self._locks.pop(node, None)
        return self._steps[node].position

    async def _act(
        self,
        position: Position,
        actions: tuple[Turn, ...],
        session: Any,
        replayed: tuple[Turn, ...] = (),
    ) -> StepResult:
        contexts, prompt_tokens = dict(position.contexts), 0
        by_turn = isinstance(self.environment, AnswersRequests)
        for turn in actions:
            # Turns without a request (of persons or endpoints) leave the running prompts unchanged.
            if turn.prompt is not None:
                name, request = turn.speaker.name, self.tree.requests[turn.prompt]
                previous = contexts.get(request.previous or "" if by_turn else name)
                context = (previous or AgentContext()).after(turn, request)
                contexts[turn.id if by_turn else name] = context
                prompt_tokens = len(context.ids) - len(turn.ids)
        # The environment sees the limits after these turns, so it knows whether this is the last
        # step.
        budgets = left_after(position.state.left, actions)
        state_, turns = position.state, (*position.state.turns, *actions)
        state_ = State(
            state_.task,
            state_.seed,
            state_.variant,
            turns,
            state_.data,
            state_.answer,
            budgets,
            state_.end,
            prompt_tokens,
        )
        act, syntax = self.environment.act, self.environment.syntax
        transition = await self._timed("an act", act, state_, actions, session, replayed=replayed)
        check_return(self.environment, "act", transition, Transition)
        with self._faults:
            return make_step_result(actions[-1].id, state_, actions, transition, contexts, syntax)

    async def _begin(self, session: Any) -> StepResult:
        environment = self.environment
        transition = await self._timed("the beginning", environment.begin, self.task, session)
        check_return(environment, "begin", transition, Transition)
        with faults_of(environment):
            # With no action this copies the limits into a read-only mapping.
            budgets = left_after(environment.limits, ())
            state = State(self.task, self.seed, self.variant, left=budgets)
            root, syntax = self.tree.root, environment.syntax
            step = make_step_result(root, state, (), transition, {}, syntax)
        # Such a task would give a path without a turn that could be graded or trained on.
        if step.position.state.end is not None:
            fault = f"{environment.name}: task {self.task.id} ended before any actor acted"
            raise EnvironmentFault(fault)
        return step

    async def _timed(
        self, work_name: str, work: Callable[..., Awaitable[Reply]], *args: Any, **named: Any
    ) -> Reply:
        """Await a call of the environment within the time limit."""
        name = self.environment.name
        with self._faults:
            limit = asyncio.timeout(self.seconds)
            try:
                async with limit:
                    reply = work(*args, **named)
                    if not isawaitable(reply):
                        method = work.__name__
                        expected = f"an awaitable: write async def {method}"
                        raise wrong_return(self.environment, method, reply, expected)
                    return await in_steps(reply)
            except TimeoutError as error:
                if not limit.expired():  # raised by the environment itself
                    raise
                late = f"{name}: {work_name} did not end within {self.seconds:g} seconds"
                raise SessionError(late) from error
            except asyncio.CancelledError as error:
                # Cancellation of this task must stop it. Otherwise a library has canceled a task of
                # its own.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                raise SessionError(
                    f"{name}: {work_name} awaited a task that was cancelled"
                ) from error

    # -- replay -------------------------------------------------------------------------------

    def _recorded_actions(self, path: Sequence[str], position: Position) -> tuple[Turn, ...]:
        # The environment ended, but the record continues.
        if position.state.end is not None:
            raise self._mismatch(position)
        # The turns of all acting actors follow the position on the path, one after another.
        index, names = (
            path.index(position.node) + 1 if position.node in path else 0,
            self.next_actors(position),
        )
        actions = tuple(self.tree.turns[node] for node in path[index : index + len(names)])
        # Other actors act than in the record.
        if tuple(turn.speaker.name for turn in actions) != names:
            raise self._mismatch(position)
        return actions

    async def _follow(
        self, path: Sequence[str], position: Position, actions: tuple[Turn, ...]
    ) -> Position:
        """Step through recorded actions, whose observations may be recorded from an earlier run."""

        async def work(live: Any) -> StepResult:
            step = await self._act(position, actions, live)
            # Before the end of the path, its next turn shows which observations were recorded.
            if actions[-1].id != path[-1]:
                self._check_on_path(path, step.position)
                return step
            # At its end only the children do. Sampled siblings may be among them, so one match is
            # enough.
            recorded = {turn.id for turn in self.tree.children(path[-1])}
            if recorded and step.observations and step.observations[0].id not in recorded:
                raise self._mismatch(step.position)
            return step

        return await self._step_once(actions[-1].id, lambda: self._run(position, work))

    def _check_on_path(self, path: Sequence[str], position: Position) -> Position:
        if position.node not in (self.tree.root, *path):
            raise self._mismatch(position)
        return position

    def _mismatch(self, position: Position) -> ReplayMismatch:
        text = position.state.turns[-1].text if position.state.turns else ""
        return ReplayMismatch(
            f"{self.environment.name} did not repeat its recorded observations in a replay of task {self.task.id}. "
            f"Last turn of the replay: {text[:200]!r}"
        )

    async def _replay(self, position: Position) -> ManagedSession:
        session = await self._open()
        try:
            live = await session.live(self.seconds)
            path = [turn.id for turn in self.tree.path(position.node)]
            step = await self._begin(live)
            recorded = self._steps[self.tree.root]
            # Stop at the first step that differs from this run's own result of the same step.
            while step.content == recorded.content and step.position.node != position.node:
                actions = self._recorded_actions(path, step.position)
                recorded = self._steps[actions[-1].id]
                step = await self._act(step.position, actions, live, recorded.observations)
            if step.content != recorded.content:
                raise self._mismatch(step.position)
        except BaseException:
            # Also after a cancellation the session's place in the pool must become free.
            await self.sessions.drop(session)
            raise
        self.replays += 1
        return session

    # -- sessions -----------------------------------------------------------------------------

    async def _run(
        self,
        position: Position | None,
        work: Callable[[Any], Awaitable[T]],
        others_follow: bool = False,
    ) -> T:
        """Run ``work`` on the live object at a position (``None``: at the beginning); an error closes its session."""
        # The position holds the whole state of a pure environment.
        if self.environment.pure:
            return await work(self.shared)
        session = await self._session(position, others_follow)
        try:
            result = await work(await session.live(self.seconds))
        except BaseException:
            await self.sessions.drop(session)
            raise
        # After a step the session belongs to the new node; grading leaves it where it was.
        end_position = result.position if isinstance(result, StepResult) else position
        assert end_position is not None, "a grade has a position"
        await self.sessions.keep(self._session_key(end_position.node), session)
        return result

    async def _session(self, position: Position | None, others_follow: bool) -> ManagedSession:
        if position is None:
            return await self._open()
        key = self._session_key(position.node)
        with self._faults:
            # A fork leaves the session idle at this node for the branches that follow.
            idle = await self.sessions.fork(key) if others_follow else self.sessions.take(key)
        return idle or await self._replay(position)

    async def _open(self) -> ManagedSession:
        with self._faults:
            context = self.environment.open(self.task, self.seed, self.shared)
        return await self.sessions.open(context)

    def _session_key(self, node: str) -> SessionKey:
        # Trees of one task share their root's id, so a node alone is not unique.
        return self, node
