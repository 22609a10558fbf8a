"""Any environment, with tools that its agents may call before each of their answers.

Nothing changes for the environment: it sees only answers, and its limits count only answers. A message that calls
is answered with results, and its agent acts again; no other agent sees either.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.environments.faults import messages_of
from coterie.environments.passing import OthersPlay
from coterie.environments.protocol import (
    ActorKind,
    Environment,
    Grade,
    Observation,
    Session,
    Shared,
    State,
    Syntax,
    Transition,
)
from coterie.environments.traits import Openers, openers_of
from coterie.errors import UserError
from coterie.tools.native import NativeCalls
from coterie.tools.run import Function
from coterie.tools.source import SessionSource, ToolSource
from coterie.tools.tags import Tags
from coterie.tools.toolbox import Toolbox, ToolsSettings, open_toolbox
from coterie.trajectories.calls import Tool, ToolCall, ToolResult
from coterie.trajectories.task import Task
from coterie.trajectories.tree import TURNS
from coterie.trajectories.turn import Message, Part, Speaker, Turn, digest


@dataclass(frozen=True, slots=True)
class Live:
    """The environment's own session, and tools, of which some may belong to the branch."""

    session: Any
    """What is shared, where the environment is pure."""
    toolbox: Toolbox
    forks: bool
    """Whether it can be copied: no tool keeps a state for the branch."""

    def fork(self) -> "AbstractAsyncContextManager[Session] | None":
        copy = self.session.fork() if self.forks else None
        return None if copy is None else _copied(copy, self.toolbox)


@asynccontextmanager
async def _copied(
    opening: AbstractAsyncContextManager[Any], toolbox: Toolbox
) -> AsyncIterator[Live]:
    async with opening as session:
        yield Live(session, toolbox, True)


LAST = "These were your last calls for this answer. Answer now, without another call."
REPEATED = "not run: this call was made before, and its result is above; ask for something else"
LEFT_OUT = "[This result was left out: the dialogue has become too long.]"
SPENT = "not run: no calls are left"


@dataclass(frozen=True, slots=True)
class Held:
    """The environment's own data, and what was called on the path."""

    data: object = None
    hidden: tuple[str, ...] = ()
    """Turns that called: their ids."""
    asked: frozenset[tuple[str, str]] = frozenset()
    """Calls that gave a result: tool and arguments. One that failed may be made again."""
    calls: int = 0
    rounds: int = 0
    """Messages that called since the last answer."""


class WithTools(OthersPlay):
    """An environment whose agents may call tools. :func:`with_tools` makes it, with the traits of the other."""

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
        self.of_branches = [one for one in sources if isinstance(one, SessionSource)]
        needs = (need for one in self.of_branches for need in one.needs)
        self.needs = tuple(dict.fromkeys((*environment.needs, Toolbox, *needs)))
        self.pure = environment.pure and not self.of_branches
        own = [] if environment.pure else [environment.max_sessions]
        most = (one.max_sessions for one in self.of_branches)
        self.max_sessions = min([*own, *most], default=1)
        identity = digest([source.identity for source in sources], settings.identity())
        self.version = f"{environment.version} tools {identity}"

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return self.environment.actors

    @property
    def limits(self) -> Mapping[str, int]:
        """The environment's own, with room for messages that call; it is held to its own by :meth:`act`."""
        return {
            name: count * (self.settings.rounds + 1)
            for name, count in self.environment.limits.items()
        }

    def openers(self, logs: Path) -> Openers:
        own = openers_of(self.environment, logs)
        return {**own, Toolbox: lambda: open_toolbox(self.sources, self.settings)}

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """The environment's own session, if it has one, beside the tools."""
        return self._open(task, seed, shared)

    @asynccontextmanager
    async def _open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[Live]:
        if Toolbox not in shared:  # a first prompt is looked at, and nothing is called
            async with self.environment.open(task, seed, shared) as alone:
                yield Live(alone, Toolbox({}, self.settings), True)
            return
        async with AsyncExitStack() as stack:
            own: dict[str, Function] = {}
            for source in self.of_branches:
                own |= await stack.enter_async_context(source.open_session(seed, shared))
            session: Any = shared
            if not self.environment.pure:
                opening = self.environment.open(task, seed, shared)
                session = await stack.enter_async_context(opening)
            yield Live(session, shared[Toolbox].beside(own), not own)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return self.offered if self.actors[actor] == "agent" else ()

    # -- as the environment's own, of a state without calls -----------------------------------

    async def begin(self, task: Task, live: Any) -> Transition:
        found = await self.environment.begin(task, self._own(live))
        return replace(found, data=Held(found.data))

    def acting(self, state: State) -> tuple[str, ...]:
        """Who acts in the environment; an agent that called acts again."""
        return self.environment.acting(self._inner(state))

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """What the environment shows, with the agent's own calls and their results where they were made."""
        shown = messages_of(self.environment, self._inner(state), actor)
        if self.actors[actor] != "agent":
            return shown
        before, now = self._exchanges(state, actor)
        with_calls = (
            message
            for own in self._calls.with_tools(shown, self.offered)
            for message in (*before.get(own.turn or "", ()), own)
        )
        return (*with_calls, *now)

    def shorter(self, state: State, actor: str) -> Iterator[tuple[Message, ...]]:
        """Without the oldest results of the actor's calls, ever more of them; what it said itself stays."""
        shown = self.see(state, actor)
        told = {turn.id for turn in state.turns if _of_tools(turn.speaker)}
        places = [place for place, message in enumerate(shown) if message.turn in told]
        for count in _doubling(len(places) - 1):
            gone = set(places[:count])
            yield tuple(
                _left_out(message) if place in gone else message
                for place, message in enumerate(shown)
            )

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """Results of calls; or, where nobody called, what the environment says."""
        held = _held(state)
        if any(turn.calls for turn in taken) and held.rounds < self.settings.rounds:
            return await self._called(held, taken, live, recorded)
        inner = self._inner(state)
        found = await self.environment.act(inner, taken, self._own(live), recorded=recorded)
        now = replace(held, data=found.data, rounds=0)
        over = TURNS if any(count <= 0 for count in inner.left.values()) else None
        return replace(found, data=now, end=found.end or over)

    async def grade(self, state: State, live: Any) -> Grade:
        """What the environment's own path is worth, and how many calls were made."""
        found = await self.environment.grade(self._inner(state), self._own(live))
        results = [one for turn in state.turns for one in turn.results]
        counts = {
            "calls": len(results),
            "call_errors": sum(one.error for one in results),
            "rounds": len(_held(state).hidden),
        }
        return replace(found, metrics={**counts, **found.metrics})

    # -- calls --------------------------------------------------------------------------------

    async def _called(
        self, held: Held, taken: tuple[Turn, ...], live: Any, recorded: tuple[Turn, ...]
    ) -> Transition:
        if len(taken) > 1:
            raise ValueError("agents who act at the same time can't call tools here")
        (turn,) = taken
        calls = tuple(self._allowed(held, turn))
        toolbox: Toolbox = live.toolbox if isinstance(live, Live) else live[Toolbox]
        if recorded and not any(self.changes(call) for call in calls):
            results: tuple[ToolResult, ...] = recorded[0].results
        else:
            results = await self.results(toolbox, calls, turn)
        ran = [call for call in calls if not call.error]
        failed = {result.call_id for result in results if result.error}
        now = Held(
            held.data,
            (*held.hidden, turn.id),
            held.asked | {_key(call) for call in ran if call.id not in failed},
            held.calls + min(len(ran), self.settings.max_calls),  # those beyond were not run
            held.rounds + 1,
        )
        return Transition(
            data=now, seen=(Observation(_speaker(turn.speaker.name), results=results),)
        )

    async def results(
        self, toolbox: Toolbox, calls: Sequence[ToolCall], turn: Turn
    ) -> tuple[ToolResult, ...]:
        return await toolbox.run(calls, self.offered, turn.whole_text)

    def refuses_repeats(self, turn: Turn) -> bool:
        """Whether calls of a turn that were made before are not run."""
        return self.settings.repeats == "refuse"

    def _allowed(self, held: Held, turn: Turn) -> Iterator[ToolCall]:
        """A turn's calls, with an error on each that is not run: repeated ones, and those over the limit."""
        asked, count, once = set(held.asked), held.calls, self.refuses_repeats(turn)
        for call in turn.calls:
            if call.error:
                yield call
            elif once and not self.changes(call) and _key(call) in asked:
                yield replace(call, error=REPEATED)
            elif count >= self.settings.total:
                yield replace(call, error=SPENT)
            else:
                asked.add(_key(call))
                count += 1
                yield call

    def changes(self, call: ToolCall) -> bool:
        """Whether it changes something, so that the same call may give something else."""
        return any(tool.alone for tool in self.offered if tool.name == call.name)

    def _exchanges(
        self, state: State, actor: str
    ) -> tuple[dict[str, tuple[Message, ...]], tuple[Message, ...]]:
        """An agent's calls and their results: by the answer that they came before, and those after its last answer."""
        hidden, before = set(_held(state).hidden), dict[str, tuple[Message, ...]]()
        now: list[Message] = []
        for turn in state.turns:
            if turn.id in hidden and turn.speaker.name == actor:
                now.append(Message("assistant", turn=turn.id))
            elif turn.speaker == _speaker(actor):
                now.append(Message(self._calls.role, turn=turn.id))
                if len(now) == 2 * self.settings.rounds:
                    now.append(Message.of("user", LAST))
            elif turn.speaker.name == actor:
                before[turn.id], now = tuple(now), []
        return before, tuple(now)

    def _inner(self, state: State) -> State:
        held = _held(state)
        hidden = set(held.hidden)
        turns = tuple(t for t in state.turns if t.id not in hidden and not _of_tools(t.speaker))
        said = [turn.speaker.name for turn in turns if turn.speaker.name in self.actors]
        left = {
            name: count - (said.count(name.partition(":")[2]) if ":" in name else len(said))
            for name, count in self.environment.limits.items()
        }
        return replace(state, turns=turns, data=held.data, left=left)

    def _own(self, live: Any) -> Any:
        return live.session if isinstance(live, Live) else live


def with_tools(
    environment: Environment,
    sources: Sequence[ToolSource],
    settings: ToolsSettings,
    syntax: Tags | NativeCalls,
    base: type[WithTools] = WithTools,
) -> Environment:
    """The environment with tools, whose calls are written so; ``base`` says how they are run.

    Raises ``UserError`` for an environment that has tools of its own.
    """
    if environment.syntax is not None:
        raise UserError(
            f"the environment {environment.name} has tools of its own",
            "leave out tools=...",
        )
    lent = {
        name: _lent(name)
        for name in dir(environment)
        if not name.startswith("_") and not hasattr(base, name) and name not in OWN
    }
    kind = type(f"{type(environment).__name__}WithTools", (base,), lent)
    made: Environment = kind(environment, sources, settings, syntax)
    return made


OWN = ("environment", "sources", "settings", "syntax", "offered", "name", "metric", "needs", "pure", "max_sessions",
       "version", "of_branches")  # fmt: skip


def _lent(name: str) -> property:
    return property(lambda self: getattr(self.environment, name))


def _held(state: State) -> Held:
    return state.data if isinstance(state.data, Held) else Held(state.data)


def _speaker(actor: str) -> Speaker:
    return Speaker("tool", f"tools of {actor}")


def _of_tools(speaker: Speaker) -> bool:
    return speaker.kind == "tool" and speaker.name.startswith("tools of ")


def _left_out(message: Message) -> Message:
    """A message of results without them; one of the template's own kind stays that, since calls have results."""
    turn = message.turn if message.role == "tool" else None
    return replace(message, parts=(Part(LEFT_OUT),), turn=turn)


def _key(call: ToolCall) -> tuple[str, str]:
    return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)


def _doubling(most: int) -> Iterator[int]:
    """1, 2, 4, ... and ``most``; so that the next prompts leave out the same, and few views are tried."""
    count = 1
    while count < most:
        yield count
        count *= 2
    if most > 0:
        yield most
