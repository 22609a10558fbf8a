"""Growth of one task's tree: rollouts that branch from a node and run to the end.

Continuations of a node are sampled as candidates of one prompt, with one pass over it. A new turn may be *merged* with
a sibling: the rollout then continues from that sibling. (Optima's released code continues from the new text under the
old node, so its sampled turns do not follow from their ancestors in the tree.) Rollouts advance as one group as long as
their turns are equal.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coterie.engines.protocol import EngineError, EngineGone
from coterie.record.turn import Turn
from coterie.rollout.branches import Branches, chain, context_at, sample_in_context
from coterie.rollout.samplers import CandidateSampler, OutOfContext, Response
from coterie.rollout.transitions import Position

T = TypeVar("T")
Merge = Callable[[Turn, Sequence[Turn]], Turn | None]
"""(new turn, siblings of the same speaker) -> the sibling to merge with, or ``None`` for a new node."""
Seed = Callable[["Rollout", Position, int], int]
"""(rollout, position, index of the actor among the acting ones) -> seed of the rollout's next turn."""
Samplers = Callable[["Rollout", Position], Mapping[str, CandidateSampler]]
Known = Callable[["Rollout", Position], Turn | None]
"""(rollout, position) -> the existing turn that the rollout takes there, if any."""
Responses = tuple[Response, ...]
"""Simultaneous responses of all acting actors."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A path of a search, from its start node to the end."""

    search: int
    number: int
    start: str
    """Start node: a turn's id, or the root."""
    leaf: str | None = None
    """Id of the last turn; ``None`` until the end, and after a failure."""
    reward: float | None = None
    failure: str | None = None
    sampled: int = 0
    """Number of sampled tokens, including merged turns."""
    labels: tuple[int, ...] = ()
    """Child label at each agent step from the root, in trees with labels."""


def never_merge(turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
    """Merge only turns with equal tokens, which are one node anyway."""
    return None


def no_known_turn(rollout: Rollout, at: Position) -> Turn | None:
    return None


class TreeGrower:
    """Grower of one tree. ``known`` requires that only one actor acts at a time."""

    def __init__(
        self,
        branches: Branches,
        samplers: Samplers,
        seed: Seed,
        merge: Merge = never_merge,
        known: Known = no_known_turn,
    ) -> None:
        self.branches = branches
        self.samplers = samplers
        self.seed = seed
        self.merge = merge
        self.known = known

    async def play(self, node: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Play rollouts from a node to the end; failed rollouts have a reason.

        Raises:
            EngineGone: The engine failed for good.
        """
        try:
            at = await self.branches.position(node)
        except EngineGone:
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        return await self._play(at, rollouts)

    async def sample(
        self, at: Position, rollouts: Sequence[Rollout], draws: Sequence[int] = ()
    ) -> list[Responses]:
        """Sample the next responses of each rollout in one batch, without adding them to the tree.

        Equal turns with different ``draws`` are separate nodes; without ``draws`` they are one node.
        """
        actors = enumerate(self.branches.acting(at))
        columns = await gather_all(
            [self._responses(at, rollouts, actor, index, draws) for index, actor in actors]
        )
        return list(zip(*columns, strict=True))

    async def _play(self, at: Position, rollouts: Sequence[Rollout]) -> list[Rollout]:
        if at.state.end is not None:
            return [replace(rollout, leaf=at.node) for rollout in rollouts]
        try:
            samples = await self.sample(at, rollouts)
            merged = [self._add(at, responses) for responses in samples]
        except OutOfContext as error:
            return self._cut(at, rollouts, error)
        except EngineGone:
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        groups: dict[str, tuple[Responses, list[Rollout]]] = {}
        for rollout, responses, nodes in zip(rollouts, samples, merged, strict=True):
            sampled = rollout.sampled + sum(response.tokens for response in responses)
            group = groups.setdefault(nodes[-1].turn.id, (nodes, []))[1]
            group.append(replace(rollout, sampled=sampled))
        branching = len(groups) > 1
        work = [self._advance(at, nodes, group, branching) for nodes, group in groups.values()]
        return [rollout for group in await gather_all(work) for rollout in group]

    def _cut(self, at: Position, rollouts: Sequence[Rollout], error: OutOfContext) -> list[Rollout]:
        """End rollouts without room for a turn; they fail if no agent has spoken."""
        try:
            leaf = self.branches.cut(at, error).node
        except OutOfContext:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        return [replace(rollout, leaf=leaf) for rollout in rollouts]

    async def _advance(
        self, at: Position, nodes: Responses, rollouts: Sequence[Rollout], others_follow: bool
    ) -> list[Rollout]:
        try:
            then = await self.branches.advance(at, nodes, others_follow=others_follow)
        except EngineGone:
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]
        return await self._play(then, rollouts)

    async def _responses(
        self,
        at: Position,
        rollouts: Sequence[Rollout],
        actor: str,
        index: int,
        draws: Sequence[int],
    ) -> list[Response]:
        """Return an actor's response in each rollout: a known turn, or a new sample.

        Rollouts with one sampler are sampled in one call, and equal seeds once.
        """
        responses: dict[int, Response] = {}
        groups: dict[int, tuple[CandidateSampler, dict[int, list[int]]]] = {}
        for number, rollout in enumerate(rollouts):
            if (turn := self.known(rollout, at)) is not None:
                responses[number] = self._response(turn, 0)
                continue
            sampler, seed = self.samplers(rollout, at)[actor], self.seed(rollout, at, index)
            seeds = groups.setdefault(id(sampler), (sampler, {}))[1]
            seeds.setdefault(seed, []).append(number)
        work = [self._candidates(at, actor, *group, draws) for group in groups.values()]
        for candidates in await gather_all(work):
            responses |= candidates
        return [responses[number] for number in range(len(rollouts))]

    async def _candidates(
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
        candidates = await sample_in_context(
            self.branches.environment,
            at.state,
            prompt,
            lambda shorter: sampler.candidates(shorter, context, list(seeds), own),
        )
        return {
            number: response if number == numbers[0] else replace(response, tokens=0)
            for numbers, response in zip(seeds.values(), candidates, strict=True)
            for number in numbers
        }

    def _response(self, turn: Turn, tokens: int) -> Response:
        request = None if turn.prompt is None else self.branches.tree.requests[turn.prompt]
        return Response(turn, request, tokens)

    def _add(self, at: Position, responses: Responses) -> Responses:
        """Add responses to the tree, or replace them by the siblings that they are merged with."""
        tree, nodes = self.branches.tree, tuple[Response, ...]()
        for response in responses:
            turn = chain(self.branches.environment, at, (*nodes, response))[-1]
            sibling = None
            if turn.id not in tree.turns:
                siblings = [t for t in tree.children(turn.parent) if t.speaker == turn.speaker]
                sibling = self.merge(turn, siblings)
            if sibling is None:
                tree.add(turn, response.request)
                nodes += (replace(response, turn=turn),)
            else:
                nodes += (self._response(sibling, len(sibling.ids)),)
        return nodes


async def gather_all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results; wait for all even if one fails."""
    if len(work) == 1:  # cheaper than a task
        return [await work[0]]
    results: list[T] = []
    for one in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results
