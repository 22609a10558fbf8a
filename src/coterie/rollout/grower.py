"""Grows the tree of one task: several ways to go on from a node, and rollouts that are played to the end.

Ways to go on are sampled as candidates of one prompt, which is read once. A new turn may be *merged* with a sibling: it
then is that sibling, and goes on from there (Optima's released code goes on from the new text under the old node; then
what was sampled does not follow from what the tree says came before). Rollouts go as one group for as long as they say
the same.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coterie.engines.protocol import EngineError, EngineGone
from coterie.rollout.branches import Branches
from coterie.rollout.fitting import asked
from coterie.rollout.samplers import CandidateSampler, OutOfContext, Response
from coterie.rollout.taken import chain, context_at
from coterie.rollout.transitions import Position
from coterie.trajectories.turn import Turn

T = TypeVar("T")
Merge = Callable[[Turn, Sequence[Turn]], Turn | None]
"""Of a new turn and its siblings, all by one speaker: the sibling that it is, or ``None`` if it is a new one."""
Seed = Callable[["Rollout", Position, int], int]
"""The seed of a rollout's next turn: where it stands, and the place of who speaks among those who act there."""
Samplers = Callable[["Rollout", Position], Mapping[str, CandidateSampler]]
Known = Callable[["Rollout", Position], Turn | None]
"""The turn that a rollout is to take where it stands, if that was sampled before."""
Way = tuple[Response, ...]
"""What all who act at a node say."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One path of a search, from the node it began at to its end."""

    search: int
    number: int
    start: str
    """The node that was chosen (a turn's id, or the root)."""
    leaf: str | None = None
    """Its last turn; ``None`` while it is played, and if it failed."""
    reward: float | None = None
    failure: str | None = None
    sampled: int = 0
    """Tokens that were sampled for it, those of turns that were merged included."""
    labels: tuple[int, ...] = ()
    """Which child it takes at each step of the agent from the beginning on, in trees whose children have labels."""


def never_merge(turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
    """Every turn is a node of its own, unless it is the same to the last token."""
    return None


def nothing_known(rollout: Rollout, at: Position) -> Turn | None:
    return None


class TreeGrower:
    """Grows the branches of one tree. Only one actor acts at a time where turns are ``known``."""

    def __init__(
        self,
        branches: Branches,
        samplers: Samplers,
        seed: Seed,
        merge: Merge = never_merge,
        known: Known = nothing_known,
    ) -> None:
        self.branches = branches
        self.samplers = samplers
        self.seed = seed
        self.merge = merge
        self.known = known

    async def roll(self, node: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Play rollouts from a node to the end; those that fail have the reason. Raises ``EngineGone``."""
        try:
            at = await self.branches.position(node)
        except EngineGone:
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        return await self._roll(at, rollouts)

    async def ways(
        self, at: Position, rollouts: Sequence[Rollout], draws: Sequence[int] = ()
    ) -> list[Way]:
        """A way to go on for each rollout, sampled together; none is in the tree yet.

        ``draws`` tell equal ones apart; without them they are one turn.
        """
        acting = self.branches.acting(at)
        found = await together(
            [self._turns(at, rollouts, actor, place, draws) for place, actor in enumerate(acting)]
        )
        return list(zip(*found, strict=True))

    async def _roll(self, at: Position, rollouts: Sequence[Rollout]) -> list[Rollout]:
        if at.state.end is not None:
            return [replace(rollout, leaf=at.node) for rollout in rollouts]
        try:
            ways = await self.ways(at, rollouts)
            placed = [self._place(at, way) for way in ways]
        except OutOfContext as error:
            return self._cut(at, rollouts, error)
        except EngineGone:
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        parts: dict[str, tuple[Way, list[Rollout]]] = {}
        for rollout, way, own in zip(rollouts, ways, placed, strict=True):
            sampled = rollout.sampled + sum(response.tokens for response in way)
            part = parts.setdefault(own[-1].turn.id, (own, []))[1]
            part.append(replace(rollout, sampled=sampled))
        several = len(parts) > 1
        going = [self._go(at, way, part, several) for way, part in parts.values()]
        return [rollout for part in await together(going) for rollout in part]

    def _cut(self, at: Position, rollouts: Sequence[Rollout], error: OutOfContext) -> list[Rollout]:
        """Rollouts that end where they stand, since nothing more has room; they fail where nothing was said."""
        try:
            leaf = self.branches.cut(at, error).node
        except OutOfContext:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        return [replace(rollout, leaf=leaf) for rollout in rollouts]

    async def _go(
        self, at: Position, way: Way, rollouts: Sequence[Rollout], others_follow: bool
    ) -> list[Rollout]:
        try:
            then = await self.branches.advance(at, way, others_follow=others_follow)
        except EngineGone:
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        return await self._roll(then, rollouts)

    async def _turns(
        self,
        at: Position,
        rollouts: Sequence[Rollout],
        actor: str,
        place: int,
        draws: Sequence[int],
    ) -> list[Response]:
        """What an actor says in each rollout: what is known, or a turn that is sampled now.

        Those that speak by the same sampler are asked together, and with the same seed once.
        """
        found: dict[int, Response] = {}
        groups: dict[int, tuple[CandidateSampler, dict[int, list[int]]]] = {}
        for number, rollout in enumerate(rollouts):
            if (turn := self.known(rollout, at)) is not None:
                found[number] = self._again(turn, 0)
                continue
            sampler, seed = self.samplers(rollout, at)[actor], self.seed(rollout, at, place)
            seeds = groups.setdefault(id(sampler), (sampler, {}))[1]
            seeds.setdefault(seed, []).append(number)
        asked = [self._asked(at, actor, *group, draws) for group in groups.values()]
        for said in await together(asked):
            found |= said
        return [found[number] for number in range(len(rollouts))]

    async def _asked(
        self,
        at: Position,
        actor: str,
        sampler: CandidateSampler,
        seeds: Mapping[int, Sequence[int]],
        draws: Sequence[int],
    ) -> dict[int, Response]:
        prompt = self.branches.prompt(at, actor, next(iter(seeds)), 0)
        own = [draws[numbers[0]] for numbers in seeds.values()] if draws else []
        context = context_at(at, actor)
        said = await asked(
            self.branches.environment,
            at.state,
            prompt,
            lambda shown: sampler.candidates(shown, context, list(seeds), own),
        )
        return {
            number: response if number == numbers[0] else replace(response, tokens=0)
            for numbers, response in zip(seeds.values(), said, strict=True)
            for number in numbers
        }

    def _again(self, turn: Turn, tokens: int) -> Response:
        request = None if turn.prompt is None else self.branches.tree.requests[turn.prompt]
        return Response(turn, request, tokens)

    def _place(self, at: Position, way: Way) -> Way:
        """What is said, as nodes of the tree: siblings that it is merged with, or new ones."""
        tree, placed = self.branches.tree, tuple[Response, ...]()
        for response in way:
            turn = chain(self.branches.environment, at, (*placed, response))[-1]
            same = None
            if turn.id not in tree.turns:
                siblings = [t for t in tree.children(turn.parent) if t.speaker == turn.speaker]
                same = self.merge(turn, siblings)
            if same is None:
                tree.add(turn, response.request)
                placed += (replace(response, turn=turn),)
            else:
                placed += (self._again(same, len(same.ids)),)
        return placed


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of coroutines that run side by side; all have ended when it ends, also if one fails."""
    if len(work) == 1:  # as a task of its own it costs more
        return [await work[0]]
    done = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for one in done:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results
