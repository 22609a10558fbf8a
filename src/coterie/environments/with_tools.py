"""Tools for the agents of any environment, by a wrapper that forwards other methods to it.

After a message with calls, the agent gets the results and acts again. The inner environment sees only answers, and its
limits count only answers. No other agent sees the calls or the results.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.environments.protocol import (
    ActorKind,
    Environment,
    Grade,
    Observation,
    Openers,
    Session,
    Shared,
    State,
    Syntax,
    Transition,
    messages_of,
    openers_of,
)
from coterie.environments.qa_metrics import doubling
from coterie.errors import UserError
from coterie.record.tree import TURNS, Task
from coterie.record.turn import Message, Part, Speaker, Tool, ToolCall, ToolResult, Turn, digest
from coterie.tools.calls import Function, NativeCalls, SessionSource, Tags, ToolSource
from coterie.tools.registry import Toolbox, ToolsSettings, open_toolbox


@dataclass(frozen=True, slots=True)
class Live:
    """Session of the environment, with the tools of the branch."""

    session: Any
    """The environment's session, or :class:`Shared` for pure environments."""
    toolbox: Toolbox
    forks: bool
    """True if it can be copied, because no tool has state of its own for the branch."""

    def fork(self) -> "AbstractAsyncContextManager[Session] | None":
        copy = self.session.fork() if self.forks else None
        return None if copy is None else _copy(copy, self.toolbox)


@asynccontextmanager
async def _copy(opening: AbstractAsyncContextManager[Any], toolbox: Toolbox) -> AsyncIterator[Live]:
    async with opening as session:
        yield Live(session, toolbox, True)


LAST = "These were your last calls for this answer. Answer now, without another call."
REPEATED = "not run: this call was made before, and its result is above; ask for something else"
LEFT_OUT = "[This result was left out: the dialogue has become too long.]"
SPENT = "not run: no calls are left"


@dataclass(frozen=True, slots=True)
class PastCalls:
    """Data of the inner environment, and the calls of the trajectory."""

    data: object = None
    hidden: tuple[str, ...] = ()
    """Ids of turns with calls."""
    keys: frozenset[tuple[str, str]] = frozenset()
    """Tool and arguments of successful calls. Failed calls may be repeated."""
    calls: int = 0
    rounds: int = 0
    """Number of messages with calls since the last answer."""


class WithTools:
    """An environment whose agents may call tools. Use :func:`with_tools`, which keeps the environment's traits."""

    def __init__(
        self,
        environment: Environment,
        sources: Sequence[ToolSource],
        settings: ToolsSettings,
        syntax: Tags | NativeCalls,
    ) -> None:
        self.environment = environment
        self.sources = sources
        self.settings = settings
        self.syntax: Syntax | None = syntax
        self._calls = syntax
        self.offered = tuple(tool for source in sources for tool in source.tools)
        self.name, self.metric = environment.name, environment.metric
        self.session_sources = [source for source in sources if isinstance(source, SessionSource)]
        needs = (need for source in self.session_sources for need in source.needs)
        self.needs = tuple(dict.fromkeys((*environment.needs, Toolbox, *needs)))
        # Tools with sessions, such as a Python interpreter, give each branch a state of its own.
        self.pure = environment.pure and not self.session_sources
        limits = [] if environment.pure else [environment.max_sessions]
        source_limits = (source.max_sessions for source in self.session_sources)
        self.max_sessions = min([*limits, *source_limits], default=1)
        identity = digest([source.identity for source in sources], settings.identity())
        self.version = f"{environment.version} tools {identity}"

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        return self.environment.tasks(split, count, seed, previous_counts)

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return self.environment.actors

    @property
    def limits(self) -> Mapping[str, int]:
        """Limits of the environment plus room for messages with calls. :meth:`act` enforces the original limits."""
        return {
            name: count * (self.settings.rounds + 1)
            for name, count in self.environment.limits.items()
        }

    def openers(self, logs: Path) -> Openers:
        environment_openers = openers_of(self.environment, logs)
        return {**environment_openers, Toolbox: lambda: open_toolbox(self.sources, self.settings)}

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[Live]:
        if Toolbox not in shared:  # only a first prompt is needed, without calls
            async with self.environment.open(task, seed, shared) as alone:
                yield Live(alone, Toolbox({}, self.settings), True)
            return
        async with AsyncExitStack() as stack:
            functions: dict[str, Function] = {}
            for source in self.session_sources:
                functions |= await stack.enter_async_context(source.open_session(seed, shared))
            session: Any = shared
            if not self.environment.pure:
                opening = self.environment.open(task, seed, shared)
                session = await stack.enter_async_context(opening)
            yield Live(session, shared[Toolbox].beside(functions), not functions)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return self.offered if self.actors[actor] == "agent" else ()

    # -- the environment, on a state without calls --------------------------------------------

    async def begin(self, task: Task, session: Any) -> Transition:
        transition = await self.environment.begin(task, self._own(session))
        return replace(transition, data=PastCalls(transition.data))

    def next_actors(self, state: State) -> tuple[str, ...]:
        return self.environment.next_actors(self._inner(state))

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        messages = messages_of(self.environment, self._inner(state), actor)
        if self.actors[actor] != "agent":
            return messages
        earlier, current = self._exchanges(state, actor)
        # An answer is preceded by the calls and results that led to it.
        with_calls = (
            message
            for message_ in self._calls.with_tools(messages, self.offered)
            for message in (*earlier.get(message_.turn or "", ()), message_)
        )
        return (*with_calls, *current)

    def shorter(self, state: State, actor: str) -> Iterator[tuple[Message, ...]]:
        """Yield prompts that omit more and more of the oldest results. The actor's own messages stay."""
        messages = self.observe(state, actor)
        result_turns = {turn.id for turn in state.turns if _of_tools(turn.speaker)}
        result_indices = [
            index for index, message in enumerate(messages) if message.turn in result_turns
        ]
        # The newest result always stays. Few prompts are tried, and later ones omit the same results.
        for count in doubling(len(result_indices) - 1):
            oldest = set(result_indices[:count])
            yield tuple(
                _left_out(message) if index in oldest else message
                for index, message in enumerate(messages)
            )

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        past = _past_calls(state)
        # After the last round, calls are ignored and the message counts as an answer.
        if any(turn.calls for turn in turns) and past.rounds < self.settings.rounds:
            return await self._run_calls(past, turns, session, replayed)
        inner = self._inner(state)
        transition = await self.environment.act(inner, turns, self._own(session), replayed=replayed)
        data = replace(past, data=transition.data, rounds=0)
        # The recorded limits leave room for calls, so the environment's own limits apply here.
        limit = TURNS if any(count <= 0 for count in inner.left.values()) else None
        return replace(transition, data=data, end=transition.end or limit)

    async def grade(self, state: State, session: Any) -> Grade:
        grade = await self.environment.grade(self._inner(state), self._own(session))
        turn_metrics = getattr(self.environment, "turn_metrics", None)
        results = [result for turn in state.turns for result in turn.results]
        counts = {
            "calls": len(results),
            "call_errors": sum(result.error for result in results),
            "rounds": len(_past_calls(state).hidden),
        }
        environment_metrics = turn_metrics(state.turns) if turn_metrics is not None else {}
        return replace(grade, metrics={**counts, **grade.metrics, **environment_metrics})

    # -- calls --------------------------------------------------------------------------------

    async def _run_calls(
        self, past: PastCalls, turns: tuple[Turn, ...], session: Any, replayed: tuple[Turn, ...]
    ) -> Transition:
        if len(turns) > 1:
            raise ValueError("simultaneous agents can't call tools in this environment")
        (turn,) = turns
        calls = tuple(self._allowed(past, turn))
        toolbox: Toolbox = session.toolbox if isinstance(session, Live) else session[Toolbox]
        # A replay copies recorded results. Calls with side effects must run again.
        if replayed and not any(self.changes(call) for call in calls):
            results: tuple[ToolResult, ...] = replayed[0].results
        else:
            results = await toolbox.run(calls, self.offered, turn.whole_text)
        ran = [call for call in calls if not call.error]
        failed = {result.call_id for result in results if result.error}
        past_calls = PastCalls(
            past.data,
            (*past.hidden, turn.id),
            past.keys | {_key(call) for call in ran if call.id not in failed},
            past.calls + min(len(ran), self.settings.max_calls),  # those beyond were not run
            past.rounds + 1,
        )
        return Transition(
            data=past_calls, seen=(Observation(_speaker(turn.speaker.name), results=results),)
        )

    def _allowed(self, past: PastCalls, turn: Turn) -> Iterator[ToolCall]:
        """Yield the calls of a turn, with an error on repeated calls and on calls over the limit, which do not run."""
        keys, count = set(past.keys), past.calls
        once = self.settings.repeats == "refuse"
        for call in turn.calls:
            if call.error:
                yield call
            elif once and not self.changes(call) and _key(call) in keys:
                yield replace(call, error=REPEATED)
            elif count >= self.settings.max_total_calls:
                yield replace(call, error=SPENT)
            else:
                keys.add(_key(call))
                count += 1
                yield call

    def changes(self, call: ToolCall) -> bool:
        """Return True if the call has side effects, so that its repetition may give another result."""
        return any(tool.alone for tool in self.offered if tool.name == call.name)

    def _exchanges(
        self, state: State, actor: str
    ) -> tuple[dict[str, tuple[Message, ...]], tuple[Message, ...]]:
        """Return an agent's messages with calls and results: by the answer after them, and after its last answer."""
        hidden = set(_past_calls(state).hidden)
        earlier: dict[str, tuple[Message, ...]] = {}
        current: list[Message] = []
        for turn in state.turns:
            if turn.id in hidden and turn.speaker.name == actor:
                current.append(Message("assistant", turn=turn.id))
            elif turn.speaker == _speaker(actor):
                current.append(Message(self._calls.role, turn=turn.id))
                # Two messages for each round: the calls and their results.
                if len(current) == 2 * self.settings.rounds:
                    current.append(Message.of("user", LAST))
            elif turn.speaker.name == actor:
                earlier[turn.id], current = tuple(current), []
        return earlier, tuple(current)

    def _inner(self, state: State) -> State:
        past = _past_calls(state)
        hidden = set(past.hidden)
        turns = tuple(t for t in state.turns if t.id not in hidden and not _of_tools(t.speaker))
        # Messages with calls do not count against the environment's limits.
        speakers = [turn.speaker.name for turn in turns if turn.speaker.name in self.actors]
        budgets = {
            name: count - (speakers.count(name.partition(":")[2]) if ":" in name else len(speakers))
            for name, count in self.environment.limits.items()
        }
        return replace(state, turns=turns, data=past.data, left=budgets)

    def _own(self, live: Any) -> Any:
        return live.session if isinstance(live, Live) else live


def with_tools(
    environment: Environment,
    sources: Sequence[ToolSource],
    settings: ToolsSettings,
    syntax: Tags | NativeCalls,
) -> Environment:
    """Return the environment with tools. Its ``turn_metrics(turns)``, if any, adds metrics of turns with calls."""
    if environment.syntax is not None:
        raise UserError(
            f"the environment {environment.name} has tools of its own", "leave out tools"
        )
    # Forwarded attributes, such as ``answer_to``, let the wrapper satisfy the same protocols.
    attributes = {
        name: _forward(name)
        for name in dir(environment)
        if not name.startswith("_") and not hasattr(WithTools, name) and name not in OWN
    }
    wrapper_type = type(f"{type(environment).__name__}WithTools", (WithTools,), attributes)
    wrapper: Environment = wrapper_type(environment, sources, settings, syntax)
    return wrapper


OWN = ("environment", "sources", "settings", "syntax", "offered", "name", "metric", "needs", "pure", "max_sessions",
       "version", "session_sources")  # fmt: skip


def _forward(name: str) -> property:
    return property(lambda self: getattr(self.environment, name))


def _past_calls(state: State) -> PastCalls:
    return state.data if isinstance(state.data, PastCalls) else PastCalls(state.data)


def _speaker(actor: str) -> Speaker:
    return Speaker("tool", f"tools of {actor}")


def _of_tools(speaker: Speaker) -> bool:
    return speaker.kind == "tool" and speaker.name.startswith("tools of ")


def _left_out(message: Message) -> Message:
    """Return a message without its results. A ``tool`` message keeps its turn, because templates pair it with calls."""
    turn = message.turn if message.role == "tool" else None
    return replace(message, parts=(Part(LEFT_OUT),), turn=turn)


def _key(call: ToolCall) -> tuple[str, str]:
    # Equal arguments in another order or spacing are the same call.
    return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)
