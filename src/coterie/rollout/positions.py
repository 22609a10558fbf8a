"""Positions in a tree: the state after each transition, and how turns and their tool calls lead to the next one."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from coterie.environments.protocol import (
    AnswersRequests,
    Environment,
    Observation,
    Shortens,
    State,
    Syntax,
    Transition,
    faults_of,
)
from coterie.errors import UserError
from coterie.record.tree import TURNS, Ending
from coterie.record.turn import (
    Finish,
    Message,
    Part,
    Speaker,
    ToolCall,
    Turn,
    check_calls,
    in_order,
    make_turn,
)
from coterie.rollout.samplers import AgentContext, OutOfContext, Prompt, Response
from coterie.tools.calls import NativeCalls, validate_calls

Reply = TypeVar("Reply")
# Ending of a path whose limit on tool calls is used up.
CALLS = Ending("calls", truncated=True)


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a branch after a whole transition."""

    node: str
    """Id of the last turn, or of the tree's root."""
    state: State
    contexts: Mapping[str, AgentContext] = field(default_factory=dict)
    """Running prompts by actor, or by the turns that end them in the conversations of a program."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one transition."""

    position: Position
    observations: tuple[Turn, ...]
    rewards: Mapping[tuple[str, str], float]
    """Rewards by (last of the simultaneous turns, actor), since they may depend on all of these turns."""

    @property
    def content(self) -> tuple[object, ...]:
        """Everything that a replay has to repeat."""
        state = self.position.state
        return (self.position.node, self.observations, self.rewards, state.answer, state.end)


def make_step_result(
    node: str,
    state: State,
    actions: Sequence[Turn],
    transition: Transition,
    contexts: Mapping[str, AgentContext],
    syntax: Syntax | None,
) -> StepResult:
    """Apply a transition after ``node``. Raises ``TypeError`` or ``ValueError`` if it is invalid."""
    data = transition.data
    _check_frozen(data)
    rewards = _rewards(actions, transition.rewards)
    observations = _observation_turns(node, transition.seen, syntax)
    # An ending by the environment takes precedence over a limit that this step used up.
    end = _limit(state.left) if transition.end is None else transition.end
    answer = state.answer if transition.answer is None else transition.answer
    turns = (*state.turns, *observations)
    state = State(state.task, state.seed, state.variant, turns, data, answer, state.left, end)
    # The next actor's turn becomes a child of the last observation, so a path has all that was
    # seen.
    last_node = observations[-1].id if observations else node
    return StepResult(Position(last_node, state, contexts), observations, rewards)


def left_after(budgets: Mapping[str, int], actions: Sequence[Turn]) -> Mapping[str, int]:
    """Count actions against the limits."""
    remaining = dict(budgets)
    for turn in actions:
        used = {"turns": 1, f"turns:{turn.speaker.name}": 1, "calls": len(turn.calls)}
        # An environment limits only some of these counts; the rest is ignored.
        for key in remaining.keys() & used.keys():
            remaining[key] = max(0, remaining[key] - used[key])
    return MappingProxyType(remaining)


def _observation_turns(
    parent: str, observations: Iterable[Observation], syntax: Syntax | None
) -> tuple[Turn, ...]:
    """Chain observations as turns. Results without parts are rendered by the syntax."""
    turns: list[Turn] = []
    for observation in observations:
        parts, results = (
            observation.parts,
            in_order(observation.results) if observation.results else (),
        )
        if results and not parts and syntax is not None and (text := syntax.show(results)):
            parts = (Part(text, source="results"),)
        speaker, calls = observation.speaker, observation.calls
        author = "environment"
        try:
            turn = make_turn(parent, speaker, parts, calls=calls, results=results, author=author)
        except UserError as error:  # invalid text: the fault of this item alone
            raise ValueError(error.what) from error
        turns.append(turn)
        parent = turn.id
    return tuple(turns)


def _rewards(actions: Sequence[Turn], rewards: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Key rewards by last turn and actor. Each must be finite and for an actor who acted."""
    names = {turn.speaker.name for turn in actions}
    for name, reward in rewards.items():
        if name not in names:
            raise ValueError(
                f"a reward of a transition is for {name!r}, who did not act; give it in Grade(score, metrics, rewards)"
            )
        if not math.isfinite(reward):
            raise ValueError(f"the reward of {name!r} is {reward}")
    return {(actions[-1].id, name): float(reward) for name, reward in rewards.items()}


def _check_frozen(data: object) -> None:
    """Refuse mutable data (without a hash, or with the identity hash), which would leak changes between branches."""
    data_type, fix = type(data), "give a tuple or a frozen dataclass, or keep it in a session"
    try:
        hash(data)
    except TypeError as error:
        raise TypeError(f"the state's data is not frozen ({error}): {fix}") from error
    # A class with the identity hash may be mutable. Only a frozen dataclass without ``eq`` is safe.
    if data is not None and data_type.__hash__ is object.__hash__:
        params = getattr(data_type, "__dataclass_params__", None)
        if params is None or not params.frozen:
            raise TypeError(f"the state's data is not frozen (a {data_type.__name__}): {fix}")


def _limit(budgets: Mapping[str, int]) -> Ending | None:
    exhausted = [key for key, count in budgets.items() if count <= 0]
    if not exhausted:
        return None
    # If turns and calls run out in the same step, the turns are reported.
    return CALLS if exhausted == ["calls"] else TURNS


async def sample_in_context(
    environment: Environment,
    state: State,
    prompt: Prompt,
    sample: Callable[[Prompt], Awaitable[Reply]],
) -> Reply:
    """Call ``sample`` with the prompt, or with the longest shorter prompt that fits; else raise ``OutOfContext``."""
    # Nearly all prompts fit, so shorter ones are built only after a failure.
    try:
        return await sample(prompt)
    except OutOfContext:
        if not isinstance(environment, Shortens):
            raise
        with faults_of(environment):
            views = list(environment.shorter(state, prompt.agent))
        for number, messages in enumerate(views, 1):
            try:
                return await sample(replace(prompt, messages=tuple(messages)))
            except OutOfContext:
                if number == len(views):
                    raise
        # The environment has no shorter prompt.
        raise


async def gather_all(work: Sequence[Coroutine[Any, Any, Reply]]) -> list[Reply]:
    """Run coroutines concurrently and return their results; wait for all even if one fails."""
    if len(work) == 1:  # cheaper than a task
        return [await work[0]]
    # Without ``return_exceptions`` the first error would leave the other coroutines running.
    results: list[Reply] = []
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def chain(
    environment: Environment, position: Position, responses: Sequence[Response]
) -> tuple[Turn, ...]:
    """Chain simultaneous turns in the tree, with their tool calls."""
    turns: list[Turn] = []
    # The calls of simultaneous turns count against one limit, in the order of recording.
    parent, calls_left = position.node, position.state.left.get("calls")
    for response in responses:
        speaker = Speaker(
            environment.actors[response.turn.speaker.name], response.turn.speaker.name
        )
        calls = _calls(environment, position, speaker, response.turn, calls_left)
        calls_left = None if calls_left is None else max(0, calls_left - len(calls))
        # Sampled as a child of the position, the turn becomes a child of the turn recorded before
        # it.
        turn = response.turn.moved(parent, speaker, calls)
        turns.append(turn)
        parent = turn.id
    return tuple(turns)


def _calls(
    environment: Environment,
    position: Position,
    speaker: Speaker,
    turn: Turn,
    max_calls: int | None,
) -> tuple[ToolCall, ...]:
    """Return the checked tool calls of a turn."""
    syntax = environment.syntax
    if syntax is None:
        return turn.calls
    with faults_of(environment):
        tools = environment.tools(position.state, speaker.name)
        # The actor may not call a tool now, so text that looks like a call is only text.
        if not tools:
            return ()
        # A call before a stop string is complete; a call at the token limit may be cut off.
        stopped = turn.text.endswith(syntax.stop)
        finish: Finish = "length" if turn.truncated else "stop_string" if stopped else "end"
        # Calls in the model's own syntax were already read from the sample.
        is_native = isinstance(syntax, NativeCalls)
        calls = turn.calls if is_native else syntax.parse(turn.text, finish)
        check_calls(calls)
        return validate_calls(calls, tools, max_calls=max_calls)


def context_at(
    environment: Environment, position: Position, actor: str, messages: Sequence[Message]
) -> AgentContext:
    """Return the running prompt that a prompt of an actor is stored as a delta on."""
    key: str | None = actor
    # A role of a program has several conversations, each of which ends in another turn.
    if isinstance(environment, AnswersRequests):
        own = {t.id for t in position.state.turns if t.speaker.name == actor and t.prompt}
        key = next(
            (m.turn for m in reversed(messages) if m.role == "assistant" and m.turn in own), None
        )
    return position.contexts.get(key or "") or AgentContext()
