"""The branches of one task's tree: where each stands, how it goes on, and what it is worth.

The environment says who acts, what each sees and what an act does; this makes turns of it, asks the samplers, counts
limits, and has a session at hand where the environment needs one. A branch whose session is gone is **replayed**: a new
session is fed what was recorded, nobody is asked again, and what the environment says must be what it said then. A
replay that differs fails its branch alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from coterie.engines.protocol import EngineError
from coterie.environments.faults import faults_of
from coterie.environments.protocol import (
    Environment,
    Grade,
    Observation,
    Shared,
    State,
    Syntax,
    Transition,
)
from coterie.rollout.samplers import AgentContext, Prompt, Response, Sampler
from coterie.rollout.sessions import OwnedSession, SessionError, Sessions
from coterie.tools.checking import checked
from coterie.trajectories.calls import in_order
from coterie.trajectories.task import Task
from coterie.trajectories.tree import TURNS, Ending, Tree
from coterie.trajectories.turn import Part, Turn, digest, make_turn

T = TypeVar("T")
CALLS = Ending("calls", truncated=True)
"""No calls are left."""
MAX_CALLS = 16
"""Calls of one turn that are run."""


class Diverged(EngineError):
    """A replayed environment said something else than it did when the branch was played."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a branch stands after a whole transition."""

    node: str
    """The last turn's id, or the tree's root."""
    state: State
    contexts: Mapping[str, AgentContext] = field(default_factory=dict)
    """By actor: what it has seen and said, for storing its next request as a delta."""


Arrival = tuple[Position, tuple[Turn, ...]]
"""Where a transition leads, and the turns that the environment says on the way."""


class Branches:
    """All branches of one tree. ``samplers`` plays each actor; ``sessions`` are shared with other trees."""

    def __init__(
        self,
        environment: Environment,
        samplers: Mapping[str, Sampler],
        task: Task,
        tree: Tree,
        *,
        seed: int,
        shared: Shared,
        sessions: Sessions,
        seconds: float,
    ) -> None:
        self.environment = environment
        self.samplers = samplers
        self.tree = tree
        self.task = task
        self.seed = environment_seed(seed, task)
        self.shared = shared
        self.sessions = sessions
        self.seconds = seconds
        """Time limit of what the environment does at a time."""
        self.rewards: dict[str, float] = {}
        """By turn of an actor: what the environment gave for it."""
        self.replayed = 0
        """How many sessions were brought to a node by replay."""
        self._positions: dict[str, Position] = {}
        self._after: dict[str, str] = {}
        """The node at which the environment's answer to a turn ends."""

    # -- going on -----------------------------------------------------------------------------

    async def start(self) -> Position:
        """The beginning; the same for all branches."""
        if self.tree.root not in self._after:
            async with self._live() as (live, stand):
                stand(self._note(self.tree.root, *await self._begin(live)))
        return self._positions[self._after[self.tree.root]]

    async def position(self, node: str) -> Position:
        """Where the branch to a node of the tree stands; worked out anew for a tree that was read from the store.

        Raises :class:`Diverged` if the environment now says something else than it did.
        """
        if node in self._positions:
            return self._positions[node]
        path = [turn.id for turn in self.tree.path(node)]
        here = self._on(path, await self.start())
        while here.node != node:
            taken = self._next(path, here)
            if taken[-1].id not in self._after:
                async with self._live(here) as (live, stand):
                    found, seen = await self._act(here, taken, live)
                    self._on(path, found)
                    stand(self._note(taken[-1].id, found, seen))
            here = self._positions[self._after[taken[-1].id]]
        return here

    def acting(self, at: Position) -> tuple[str, ...]:
        """Who acts now; somebody, in a state that has not ended."""
        with faults_of(self.environment):
            names = self.environment.acting(at.state)
            if not names or not set(names) <= self.environment.actors.keys():
                known = ", ".join(self.environment.actors)
                raise ValueError(f"acting() gave {names}; the actors are {known}")
        return names

    def prompt(self, at: Position, actor: str, seed: int, draw: int) -> Prompt:
        """What a sampler needs to know to speak as ``actor``."""
        with faults_of(self.environment):
            shown = self.environment.see(at.state, actor)
            tools = self.environment.tools(at.state, actor)
        syntax = self.environment.syntax
        stop = syntax.stop if syntax is not None and tools else ()
        return Prompt(self.tree, at.node, actor, shown, seed, draw, tools, stop)

    def context(self, at: Position, actor: str) -> AgentContext:
        """A copy of what an actor has seen and said."""
        return replace(at.contexts[actor]) if actor in at.contexts else AgentContext()

    async def respond(
        self, at: Position, seeds: Mapping[str, int], draw: int
    ) -> tuple[Response, ...]:
        """What all who act now say, asked at the same time; ``seeds`` are theirs."""
        prompts = [self.prompt(at, actor, seeds[actor], draw) for actor in self.acting(at)]
        responding = [self.samplers[p.agent].respond(p, self.context(at, p.agent)) for p in prompts]
        if len(responding) == 1:  # as a task of its own it costs as much as all else here
            return (await responding[0],)
        return tuple(await asyncio.gather(*responding))

    async def advance(
        self, at: Position, responses: Sequence[Response], *, others_follow: bool = False
    ) -> Position:
        """Where the branch stands after what was said by those who act, in their order.

        ``others_follow``: more branches will go on from ``at``, so a session that stands there is copied,
        if it can be. Work that was done before is not done again.
        """
        taken = self._chain(at, responses)
        for turn, one in zip(taken, responses, strict=True):
            self.tree.add(turn, one.request)
        last = taken[-1].id
        if last not in self._after:
            async with self._live(at, others_follow=others_follow) as (live, stand):
                stand(self._note(last, *await self._act(at, taken, live)))
        return self._positions[self._after[last]]

    async def grade(self, at: Position) -> Grade:
        """What a branch that has ended is worth."""
        async with self._live(at) as (live, stand):
            grade: Grade = await self._timed(self.environment.grade(at.state, live), "grading")
            stand(at)
        return grade

    async def close(self) -> None:
        """Close the sessions that wait at its nodes."""
        for node in self._positions:
            if (session := self.sessions.take(self._place(node))) is not None:
                await self.sessions.drop(session)

    # -- transitions --------------------------------------------------------------------------

    async def _begin(self, live: Any) -> Arrival:
        found: Transition = await self._timed(
            self.environment.begin(self.task, live), "the beginning"
        )
        before = State(self.task, self.seed, left=dict(self.environment.limits))
        return self._arrive(self.tree.root, before, found, {})

    async def _act(
        self, at: Position, taken: tuple[Turn, ...], live: Any, recorded: tuple[Turn, ...] = ()
    ) -> Arrival:
        """The transition that turns bring about."""
        left = _left(at.state.left, taken)
        now = replace(at.state, turns=(*at.state.turns, *taken), left=left)
        acting = self.environment.act(now, taken, live, recorded=recorded)
        found: Transition = await self._timed(acting, "an act")
        if found.end is None:
            found = replace(found, end=_limit(left))
        for turn in taken:
            if turn.speaker.name in found.rewards:
                self.rewards[turn.id] = float(found.rewards[turn.speaker.name])
        return self._arrive(taken[-1].id, now, found, self._contexts(at, taken))

    def _arrive(
        self, node: str, now: State, found: Transition, contexts: Mapping[str, AgentContext]
    ) -> Arrival:
        """The position after a transition, and what the environment said, not yet in the tree."""
        seen = _observed(node, found.seen, self.environment.syntax)
        answer = now.answer if found.answer is None else found.answer
        state = replace(
            now, turns=(*now.turns, *seen), data=found.data, answer=answer, end=found.end
        )
        return Position(seen[-1].id if seen else node, state, contexts), seen

    def _note(self, node: str, position: Position, seen: tuple[Turn, ...]) -> Position:
        """Keep what came after a node."""
        for turn in seen:
            self.tree.add(turn)
        self._positions[position.node] = position
        self._after[node] = position.node
        return position

    def _contexts(self, at: Position, taken: tuple[Turn, ...]) -> dict[str, AgentContext]:
        """What actors have seen and said after these turns."""
        contexts = dict(at.contexts)
        for turn in taken:
            if turn.prompt is not None:
                request = self.tree.requests[turn.prompt]
                context = self.context(at, turn.speaker.name)
                context.add(
                    Response(turn, request, False, len(turn.ids)), self.tree.messages(request)
                )
                contexts[turn.speaker.name] = context
        return contexts

    def _chain(self, at: Position, responses: Sequence[Response]) -> tuple[Turn, ...]:
        """Turns taken at the same time, one after the other in the tree, with the calls that they make."""
        taken: list[Turn] = []
        parent = at.node
        for one in responses:
            turn = one.turn if one.turn.parent == parent else moved(one.turn, parent)
            taken.append(self._with_calls(at, turn, one))
            parent = turn.id
        return tuple(taken)

    def _with_calls(self, at: Position, turn: Turn, response: Response) -> Turn:
        syntax = self.environment.syntax
        if syntax is None or not (tools := self.environment.tools(at.state, turn.speaker.name)):
            return turn
        finish = "length" if response.truncated else turn.sample.finish if turn.sample else "end"
        calls = syntax.parse(turn.text, finish)
        return replace(turn, calls=checked(calls, tools, max_calls=MAX_CALLS))

    # -- what was recorded --------------------------------------------------------------------

    def _next(self, path: Sequence[str], here: Position) -> tuple[Turn, ...]:
        """The turns on a path that were taken at a position."""
        at, names = path.index(here.node) + 1 if here.node in path else 0, self.acting(here)
        taken = tuple(self.tree.turns[node] for node in path[at : at + len(names)])
        if tuple(turn.speaker.name for turn in taken) != names:
            raise self._diverged(here)
        return taken

    def _on(self, path: Sequence[str], found: Position) -> Position:
        """A position that is on a path; :class:`Diverged` for another one."""
        if found.node not in (self.tree.root, *path):
            raise self._diverged(found)
        return found

    def _diverged(self, found: Position) -> Diverged:
        said = found.state.turns[-1].text if found.state.turns else ""
        return Diverged(
            f"{self.environment.name} did not do in a replay of task {self.task.id} what it did when the task was "
            f"played; the replay is at: {said[:200]!r}"
        )

    async def _replay(self, at: Position) -> OwnedSession:
        """A new session, brought to where a branch stands by what was recorded."""
        session = await self._open()
        try:
            live = await session.live(self.seconds)
            path = [turn.id for turn in self.tree.path(at.node)]
            here = self._on(path, (await self._begin(live))[0])
            while here.node != at.node:
                taken = self._next(path, here)
                then = self._positions[self._after[taken[-1].id]]
                recorded = then.state.turns[len(here.state.turns) + len(taken) :]
                here, _ = await self._act(here, taken, live, recorded)
                if here.node != then.node:
                    raise self._diverged(here)
        except BaseException:
            await self.sessions.drop(session)
            raise
        self.replayed += 1
        return session

    # -- sessions -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _live(
        self, at: Position | None = None, *, others_follow: bool = False
    ) -> AsyncIterator[tuple[Any, Callable[[Position], None]]]:
        """What the environment acts on at ``at`` (``None``: before the beginning), and how to say where it stands
        then. A session that met an error is closed.
        """
        if self.environment.pure:
            yield self.shared, lambda _: None
            return
        session = await self._session(at, others_follow)
        stands: list[str] = []
        try:
            yield await session.live(self.seconds), lambda position: stands.append(position.node)
        except BaseException:
            await self.sessions.drop(session)
            raise
        await self.sessions.keep(self._place(stands[-1]), session)

    async def _session(self, at: Position | None, others_follow: bool) -> OwnedSession:
        if at is None:
            return await self._open()
        place = self._place(at.node)
        here = await self.sessions.fork(place) if others_follow else self.sessions.take(place)
        return here or await self._replay(at)

    async def _open(self) -> OwnedSession:
        with faults_of(self.environment):
            opening = self.environment.open(self.task, self.seed, self.shared)
        return await self.sessions.open(opening)

    def _place(self, node: str) -> str:
        """A session's place. With the tree in it, for the beginning of a task is the same in all its trees."""
        return f"{self.tree.root} {node}"

    async def _timed(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """What the environment does, which ends in time or fails its branch."""
        with faults_of(self.environment):
            try:
                async with asyncio.timeout(self.seconds):
                    return await work
            except TimeoutError as error:
                raise SessionError(
                    f"{self.environment.name}: {what} did not end within {self.seconds:g} seconds"
                ) from error


def environment_seed(seed: int, task: Task) -> int:
    """The environment's seed: of the run and the task, whatever the sample and the branch."""
    return int(digest("environment", seed, task.id)[:15], 16)


def moved(turn: Turn, parent: str) -> Turn:
    """A turn after another one; what it answers stays what it was."""
    again = make_turn(
        parent,
        turn.speaker,
        turn.parts,
        ids=turn.ids,
        sample=turn.sample,
        calls=turn.calls,
        results=turn.results,
        author=turn.author,
        draw=turn.draw,
        request=turn.request,
    )
    return again


def _observed(parent: str, seen: Iterable[Observation], syntax: Syntax | None) -> tuple[Turn, ...]:
    """What the environment says, as turns. Their results are shown as the syntax shows them."""
    turns: list[Turn] = []
    for one in seen:
        parts, results = one.parts, in_order(one.results)
        if results and not parts and syntax is not None and (text := syntax.show(results)):
            parts = (Part(text, source="results"),)
        turn = make_turn(parent, one.speaker, parts, results=results, author="environment")
        turns.append(turn)
        parent = turn.id
    return tuple(turns)


def _left(left: Mapping[str, int], taken: Sequence[Turn]) -> dict[str, int]:
    """What is left of each limit after these turns."""
    now = dict(left)
    for turn in taken:
        for key in ("turns", f"turns:{turn.speaker.name}"):
            if key in now:
                now[key] -= 1
        if "calls" in now:
            now["calls"] -= len(turn.calls)
    return now


def _limit(left: Mapping[str, int]) -> Ending | None:
    """The ending of a path that has met a limit."""
    met = [key for key, count in left.items() if count <= 0]
    if not met:
        return None
    return CALLS if met == ["calls"] else TURNS
