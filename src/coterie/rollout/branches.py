"""The branches of one task's tree: where each stands, how it goes on, and what it is worth.

The environment says who acts, what each sees and what an act does; this makes turns of it, asks the samplers, counts
limits, and has a session at hand where the environment needs one. A branch whose session is gone is **replayed**: a new
session is fed what was recorded, nobody is asked again, and what the environment says must be what it said then. A
replay that differs fails its branch alone.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from coterie.engines.protocol import EngineError
from coterie.environments.faults import faults_of
from coterie.environments.protocol import Environment, Grade, Shared
from coterie.rollout.checked_environment import CheckedEnvironment
from coterie.rollout.fitting import asked
from coterie.rollout.samplers import OutOfContext, Prompt, Response, Sampler
from coterie.rollout.sessions import OwnedSession, Place, Sessions
from coterie.rollout.taken import chain, context_at, contexts_after
from coterie.rollout.transitions import Arrival, Position, environment_seed
from coterie.tools.native import template_tools
from coterie.trajectories.task import Task
from coterie.trajectories.tree import CONTEXT, Tree
from coterie.trajectories.turn import Turn


class Diverged(EngineError):
    """A replayed environment said something else than it did when the branch was played."""


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
        variant: str | None = None,
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
        self._checked = CheckedEnvironment(environment, task, self.seed, seconds, variant)
        self.rewards: dict[tuple[str, str], float] = {}
        """By the last of the turns taken at a time, and by actor: what the environment gave."""
        self.replayed = 0
        """How many sessions were brought to a node by replay."""
        self._positions: dict[str, Position] = {}
        self._cut: set[str] = set()
        """Nodes after which there was no room in a context."""
        self._after: dict[str, Arrival] = {}
        """By turn, and the root: what the environment answered, and where that ends."""
        self._arriving: dict[str, asyncio.Lock] = {}

    # -- going on -----------------------------------------------------------------------------

    async def start(self) -> Position:
        async def begin() -> Arrival:
            known = set(self.tree.turns)
            async with self._live() as (live, stand):
                found = await self._checked.begin(live, self.tree.root)
                if known and not known.issuperset(turn.id for turn in found.seen):
                    raise self._diverged(found.position)
                return stand(found)

        return await self._arrive(self.tree.root, begin)

    async def position(self, node: str) -> Position:
        """Where the branch stands after a node of the tree and what the environment said then.

        It is worked out anew for a tree that was read from the store. Raises :class:`Diverged` if the environment now
        says something else than it did.
        """
        here = await self._stands(node)
        outcome = self.tree.outcomes.get(here.node)
        if here.node in self._cut or (outcome is not None and outcome.ending == CONTEXT):
            here = self._cut_off(here)
        if outcome is not None and outcome.ending != here.state.end:
            raise self._diverged(here)
        return here

    async def _stands(self, node: str) -> Position:
        if node in self._after:
            return self._after[node].position
        if node in self._positions:
            return self._positions[node]
        if node == self.tree.root:
            return await self.start()
        path = [turn.id for turn in self.tree.path(node)]
        here = self._on(path, await self.start())
        while here.node != node:
            taken = self._next(path, here)
            here = await self._follow(path, here, taken)
            if taken[-1].id == node:
                break
        return here

    def cut(self, at: Position, error: OutOfContext) -> Position:
        """A branch that ends where it stands, since what comes next has no room: what was said stays.

        Where no agent has spoken yet there is nothing to keep: that raises the error.
        """
        if not any(turn.speaker.kind == "agent" for turn in at.state.turns):
            raise error
        self._cut.add(at.node)
        return self._cut_off(at)

    def _cut_off(self, at: Position) -> Position:
        end = CONTEXT if at.state.end is None else at.state.end
        return replace(at, state=replace(at.state, end=end))

    def nodes(self) -> set[str]:
        """Where branches are known to stand: not in the middle of what was said at the same time."""
        return {self.tree.root, *self._after, *self._positions}

    def acting(self, at: Position) -> tuple[str, ...]:
        """Who acts now, in the order in which it is recorded; somebody, in a state that has not ended."""
        return self._checked.acting(at.state)

    def prompt(self, at: Position, actor: str, seed: int, draw: int) -> Prompt:
        """What a sampler needs to know to speak as ``actor``."""
        shown, tools = self._checked.shown(at.state, actor)
        syntax = self.environment.syntax
        stop = syntax.stop if syntax is not None and tools else ()
        offered = template_tools(syntax, tools)
        return Prompt(self.tree, at.node, actor, shown, seed, draw, offered, stop, self.task)

    async def respond(
        self, at: Position, seeds: Mapping[str, int], draw: int
    ) -> tuple[Response, ...]:
        """What all who act now say, asked at the same time; ``seeds`` are theirs."""
        prompts = [self.prompt(at, actor, seeds[actor], draw) for actor in self.acting(at)]
        responding = [self._responding(at, prompt) for prompt in prompts]
        if len(responding) == 1:  # as a task of its own it costs as much as all else here
            return (await responding[0],)
        tasks = [asyncio.ensure_future(one) for one in responding]
        try:
            return tuple(await asyncio.gather(*tasks))
        except BaseException:  # none goes on when another one has failed
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _responding(self, at: Position, prompt: Prompt) -> Response:
        sampler, context = self.samplers[prompt.agent], context_at(at, prompt.agent)
        return await asked(
            self.environment, at.state, prompt, lambda shown: sampler.respond(shown, context)
        )

    async def advance(
        self, at: Position, responses: Sequence[Response], *, others_follow: bool = False
    ) -> Position:
        """Where the branch stands after what was said by those who act, in their order.

        ``others_follow``: more branches will go on from ``at``, so a session that stands there is copied,
        if it can be. Work that was done before is not done again.
        """
        taken = chain(self.environment, at, responses)
        for turn, one in zip(taken, responses, strict=True):
            self.tree.add(turn, one.request)

        async def act() -> Arrival:
            async with self._live(at, others_follow=others_follow) as (live, stand):
                return stand(await self._act(at, taken, live))

        return await self._arrive(taken[-1].id, act)

    async def grade(self, at: Position) -> Grade:
        async with self._live(at) as (live, stand):
            grade = await self._checked.grade(at.state, live)
            stand(Arrival(at, (), {}))
        return grade

    async def prune(self, tree: Tree) -> None:
        """Go on with a part of the tree; what stands elsewhere is dropped.

        What the environment said after a turn that is kept stays, and so does its beginning.
        """
        self._after = {
            node: after
            for node, after in self._after.items()
            if node == tree.root or node in tree.turns
        }
        for after in self._after.values():
            for turn in after.seen:
                tree.add(turn)
        self._cut &= tree.turns.keys()
        gone = self._positions.keys() - tree.turns.keys() - {tree.root}
        await self._close(gone)
        for node in gone:
            del self._positions[node]
        self.tree = tree

    async def close(self) -> None:
        """Close the sessions that wait at its nodes."""
        await self._close(self._positions)

    async def _close(self, nodes: Iterable[str]) -> None:
        for node in list(nodes):
            if (session := self.sessions.take(self._place(node))) is not None:
                await self.sessions.drop(session)

    # -- transitions --------------------------------------------------------------------------

    async def _arrive(self, node: str, transition: Callable[[], Awaitable[Arrival]]) -> Position:
        """Where the environment's answer to a node ends; it is asked once, also when several wait for it."""
        if node not in self._after:
            async with self._arriving.setdefault(node, asyncio.Lock()):
                if node not in self._after:
                    self._note(node, await transition())
            self._arriving.pop(node, None)
        return self._after[node].position

    async def _act(
        self, at: Position, taken: tuple[Turn, ...], live: Any, recorded: tuple[Turn, ...] = ()
    ) -> Arrival:
        contexts = contexts_after(self.tree, at, taken)
        return await self._checked.act(at.state, taken, live, contexts, recorded)

    def _note(self, node: str, arrival: Arrival) -> None:
        for turn in arrival.seen:
            self.tree.add(turn)
        self.rewards |= arrival.rewards
        self._positions[arrival.position.node] = arrival.position
        self._after[node] = arrival

    # -- what was recorded --------------------------------------------------------------------

    def _next(self, path: Sequence[str], here: Position) -> tuple[Turn, ...]:
        if here.state.end is not None:
            raise self._diverged(here)
        at, names = path.index(here.node) + 1 if here.node in path else 0, self.acting(here)
        taken = tuple(self.tree.turns[node] for node in path[at : at + len(names)])
        if tuple(turn.speaker.name for turn in taken) != names:
            raise self._diverged(here)
        return taken

    async def _follow(
        self, path: Sequence[str], here: Position, taken: tuple[Turn, ...]
    ) -> Position:
        """Where turns of a tree lead, which the environment may have answered before this run."""

        async def act() -> Arrival:
            async with self._live(here) as (live, stand):
                found = await self._act(here, taken, live)
                if taken[-1].id == path[-1]:
                    self._check_said(path[-1], found)
                else:
                    self._on(path, found.position)
                return stand(found)

        return await self._arrive(taken[-1].id, act)

    def _on(self, path: Sequence[str], found: Position) -> Position:
        if found.node not in (self.tree.root, *path):
            raise self._diverged(found)
        return found

    def _check_said(self, node: str, found: Arrival) -> None:
        """What follows a node of the tree, if anything does, is what was said when the tree grew."""
        before = {turn.id for turn in self.tree.children(node)}
        if before and found.seen and found.seen[0].id not in before:
            raise self._diverged(found.position)

    def _diverged(self, found: Position) -> Diverged:
        said = found.state.turns[-1].text if found.state.turns else ""
        return Diverged(
            f"{self.environment.name} did not do in a replay of task {self.task.id} what it did when the task was "
            f"played; the replay is at: {said[:200]!r}"
        )

    async def _replay(self, at: Position) -> OwnedSession:
        session = await self._open()
        try:
            live = await session.live(self.seconds)
            path = [turn.id for turn in self.tree.path(at.node)]
            found, then = (
                await self._checked.begin(live, self.tree.root),
                self._after[self.tree.root],
            )
            while found.same(then) and found.position.node != at.node:
                taken = self._next(path, found.position)
                then = self._after[taken[-1].id]
                found = await self._act(found.position, taken, live, then.seen)
            if not found.same(then):
                raise self._diverged(found.position)
        except BaseException:
            await self.sessions.drop(session)
            raise
        self.replayed += 1
        return session

    # -- sessions -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _live(
        self, at: Position | None = None, *, others_follow: bool = False
    ) -> AsyncIterator[tuple[Any, Callable[[Arrival], Arrival]]]:
        """What the environment acts on at ``at`` (``None``: before the beginning), and how to say where it stands
        then. A session that met an error is closed.
        """
        if self.environment.pure:
            yield self.shared, lambda arrival: arrival
            return
        session = await self._session(at, others_follow)
        stands: list[str] = []

        def stand(arrival: Arrival) -> Arrival:
            stands.append(arrival.position.node)
            return arrival

        try:
            yield await session.live(self.seconds), stand
        except BaseException:
            await self.sessions.drop(session)
            raise
        await self.sessions.keep(self._place(stands[-1]), session)

    async def _session(self, at: Position | None, others_follow: bool) -> OwnedSession:
        if at is None:
            return await self._open()
        place = self._place(at.node)
        with faults_of(self.environment):
            here = await self.sessions.fork(place) if others_follow else self.sessions.take(place)
        return here or await self._replay(at)

    async def _open(self) -> OwnedSession:
        with faults_of(self.environment):
            opening = self.environment.open(self.task, self.seed, self.shared)
        return await self.sessions.open(opening)

    def _place(self, node: str) -> Place:
        """A session's place, which is nobody else's: the beginning of a task is the same node in all its trees."""
        return self, node
