"""Trees of groups: alternatives of a turn, all sampled from one state, and most of them played to the end.

The first search plays K rollouts of a task. Each later one takes a rollout of an earlier group and a later state on its
path at which an agent acts, and plays K - 1 alternatives from there; with the rollout itself they are a group of K
siblings. A *spine* branches at the states of the first rollout (C3, arXiv 2603.06859; VinePPO, arXiv 2410.01679, with
turns as steps), a *full* tree at the states of every rollout (MAGRPO, arXiv 2508.04652).

States in which no trained agent acts begin no group: the rollout is their one continuation.

If only the reward of the turn itself counts, the alternatives of a spine *stop* after their turn: K T sampled turns in
all. A stopped alternative that the spine follows is continued by a new group of K, whose first rollout is played to the
end.

Groups whose states are known are sampled at the same time: all of a spine, those of one depth of a full tree.

A rollout of T turns and K siblings costs K + (K - 1) (T - t - 1) sampled turns at turn t of a spine, and K^t of its
groups in a full tree. All rollouts follow the policy: which state a group begins in never depends on rewards.

Agents that act at the same time choose *jointly*: alternative k takes the k-th turn of each (``aligned``), or all
combinations of K turns of each agent are played (``crossed``, K^n rollouts for n agents).
"""

import random
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.environments.protocol import agents_of
from coterie.record.turn import Turn
from coterie.rollout.positions import Position
from coterie.rollout.samplers import CandidateSampler
from coterie.rollout.tree_search import Rollout, Search

SEARCHES = 16
"""Maximum number of groups of one tree that are sampled at the same time."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts whose turns at one state are compared."""

    search: int
    start: str
    """Node of the state."""
    actors: int
    """Number of actors that act in the state."""
    branch_of: tuple[int, int] | None
    """Search and number of the rollout that the group branches from; ``None`` for the first group."""
    members: tuple[Rollout, ...]
    """That rollout unless it was stopped, then its alternatives. Failed ones have no leaf."""


def groups_of(rollouts: Sequence[Rollout]) -> list[Group]:
    """Return the groups of a tree, in the order of its searches."""
    by_name = {(rollout.search, rollout.number): rollout for rollout in rollouts}
    searches: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        searches.setdefault(rollout.search, []).append(rollout)
    return [_group(new, by_name) for _, new in sorted(searches.items())]


def _group(new: Sequence[Rollout], by_name: Mapping[tuple[int, int], Rollout]) -> Group:
    """Return the group of the rollouts of a search."""
    first = new[0]
    # Numbers from 0 on are whole groups; number 0 of others is the rollout that they branch from.
    continued = [] if first.branch_of is None or not first.number else [by_name[first.branch_of]]
    members = (*continued, *new)
    return Group(first.search, first.start, first.actors, first.branch_of, members)


def draw_of(number: int, index: int, size: int) -> int:
    """Return which of its ``size`` turns the ``index``-th agent takes in rollout ``number`` of a crossed group."""
    return number // size**index % size


@dataclass(eq=False)
class GroupSearch(Search):
    """Search of a tree of groups of ``size`` siblings."""

    samplers: Mapping[str, CandidateSampler]
    trained: Collection[str]
    """Agents whose turns are compared. A group of the turns of others would teach nothing."""
    size: int
    full: bool = False
    """Branch at the states of all rollouts, not only of the first."""
    depth: int | None = None
    """Maximum number of states of a path at which the tree branches; ``None`` for all of trained agents."""
    from_best: bool = False
    """Continue a spine with the alternative of the highest immediate reward (AT-GRPO), not with the first one. Later
    states then depend on rewards, so their turns are no sample of what the policy plays."""
    crossed: bool = False
    """Play all combinations of the turns of agents that act at the same time."""
    immediate: bool = False
    """Stop the alternatives of a spine after their turn, because only its own reward counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # The plan is empty when all states have a group.
        self.searches = sys.maxsize
        self.agents = frozenset(agents_of(self.branches.environment))
        # Leaves of earlier searches are not graded again, so their metrics come from the record.
        self._measures = {rollout.leaf: rollout.measures for rollout in self.rollouts}
        self._by_name: dict[tuple[int, int], Rollout] = {}
        self._begun: set[tuple[tuple[int, int] | None, str]] = set()
        self._groups: deque[Group] = deque()
        self._open: deque[tuple[Group, Rollout]] = deque()
        for group in groups_of(self.rollouts):
            self._add_group([member for member in group.members if member.search == group.search])

    async def plans(self, search: int) -> list[list[Rollout]]:
        self._first, rng = await self.branches.start(), random.Random()
        # Branches of other environments need a session each, and replays where there are too few.
        limit, planned = SEARCHES if self.branches.environment.pure else 1, list[list[Rollout]]()
        while len(planned) < limit and (rollouts := self.plan(search + len(planned), rng)):
            planned.append(rollouts)
        return planned

    def add(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        for rollout in rollouts:
            if rollout.leaf in self.grades:
                self._measures[rollout.leaf] = self.grades[rollout.leaf].metrics
        graded = [replace(r, measures=self._measures.get(r.leaf, {})) for r in rollouts]
        self._add_group(graded)
        return graded

    def plan(self, search: int, rng: random.Random) -> list[Rollout]:
        if not search:
            return self._rollouts(search, self._first, None)
        # Breadth first, by earlier groups.
        while self._open or self._groups:
            if not self._open:
                group = self._groups.popleft()
                self._open += [(group, member) for member in self._continued(group)]
                continue
            group, member = self._open.popleft()
            name, position = (member.search, member.number), self._next_state(group, member)
            # In a resumed search the next state may have its group already.
            if position is not None and (name, position.node) not in self._begun:
                rollouts = self._rollouts(search, position, name)
                self._begun.add((name, position.node))
                # The rollout that a spine follows has ended, so its next state needs no results.
                if rollouts and rollouts[0].number and not (self.full or self.from_best):
                    self._open.append((_group(rollouts, self._by_name), member))
                return rollouts
        return []

    def _add_group(self, rollouts: Sequence[Rollout]) -> None:
        """Queue a new group, whose members may continue to states that begin groups."""
        self._by_name |= {(rollout.search, rollout.number): rollout for rollout in rollouts}
        group = _group(rollouts, self._by_name)
        self._begun.add((group.branch_of, group.start))
        self._groups.append(group)

    def _continued(self, group: Group) -> list[Rollout]:
        """Return the members of a group whose later states the tree branches at."""
        # A turn may not fit the context after a stopped alternative.
        finished = [m for m in group.members if m.leaf not in (None, group.start)]
        if self.from_best and finished:
            # Of equal rewards the first counts.
            return [max(finished, key=lambda member: self._reward_at(group, member))]
        return finished if self.full else finished[:1]

    def _rollouts(
        self, search: int, position: Position, branch_of: tuple[int, int] | None
    ) -> list[Rollout]:
        acting = self.branches.next_actors(position)
        agents = sum(actor in self.agents for actor in acting)
        count = self.size**agents if self.crossed else self.size
        # The first search, and the next one of a stopped rollout, can begin without a trained agent.
        if not self._is_trained(position):
            count = 1
        # The rollout that the group branches from is its first member already, unless it stopped here.
        whole = branch_of is None or self._by_name[branch_of].leaf == position.node
        numbers = range(0 if whole else 1, count)
        return [
            Rollout(search, n, position.node, branch_of=branch_of, actors=len(acting))
            for n in numbers
        ]

    def _next_state(self, group: Group, member: Rollout) -> Position | None:
        """Return the state after a group's own that a member is continued from, if the tree may branch that deep."""
        assert member.leaf is not None, "only finished rollouts are continued"
        positions = self.branches.positions_on(member.leaf)
        nodes = [position.node for position in positions]
        # The environment has changed since the path was recorded.
        if group.start not in nodes:
            return None
        index = nodes.index(group.start) + 1
        if self.depth is not None and sum(map(self._is_trained, positions[:index])) >= self.depth:
            return None
        for position in positions[index:]:
            # A path that the model's context cut off has not ended by its environment.
            is_open = position.state.end is None and position.node != member.leaf
            # A stopped rollout is continued from its end, for any next actor.
            if member.reward is None or (is_open and self._is_trained(position)):
                return position
        return None

    def _reward_at(self, group: Group, member: Rollout) -> float:
        """Return the agents' rewards for their turns in the state of a group."""
        ids = [turn.id for turn in self.tree.path(str(member.leaf))]
        first = ids.index(group.start) + 1 if group.start in ids else 0
        # Rewards of simultaneous turns are on the last of them.
        node = ids[first + group.actors - 1]
        return sum(self.branches.rewards.get((node, agent), 0.0) for agent in self.agents)

    def _is_trained(self, position: Position) -> bool:
        return any(actor in self.trained for actor in self.branches.next_actors(position))

    def samplers_of(self, rollout: Rollout, position: Position) -> Mapping[str, CandidateSampler]:
        return self.samplers

    def seed_of(self, rollout: Rollout, position: Position, index: int) -> int:
        depth = len(position.state.turns) + index
        if (draw := self._draw(rollout, position, index)) is not None:
            # Rollouts in which an agent takes the same turn share its seed, so it is sampled once.
            return int(self.key("crossed", rollout.search, draw, depth)[:15], 16)
        # The first continuation of a stopped rollout samples what that would have sampled.
        continues = rollout.branch_of is not None and not rollout.number
        name = rollout.branch_of if continues else (rollout.search, rollout.number)
        return int(self.key("seed", *(name or ()), depth)[:15], 16)

    def known_turn(self, rollout: Rollout, position: Position, index: int) -> Turn | None:
        # In a crossed group the turns of the continued rollout are combined with new ones.
        if rollout.branch_of is None or self._draw(rollout, position, index) != 0:
            return None
        actor = self.branches.next_actors(position)[index]
        continued = self._by_name[rollout.branch_of]
        assert continued.leaf is not None, "only finished rollouts are continued"
        path = self.tree.path(continued.leaf)
        ids = [turn.id for turn in path]
        after = ids.index(position.node) + 1 if position.node in ids else 0
        # A stopped rollout has no turn after its last state.
        return next((turn for turn in path[after:] if turn.speaker.name == actor), None)

    def stops(self, rollout: Rollout, position: Position) -> bool:
        return self.immediate and rollout.number > 0 and position.node != rollout.start

    def _draw(self, rollout: Rollout, position: Position, index: int) -> int | None:
        """Return which of its turns an agent takes at the start of a crossed group; ``None`` elsewhere."""
        if not self.crossed or position.node != rollout.start:
            return None
        acting = self.branches.next_actors(position)
        agents = [actor for actor in acting if actor in self.agents]
        if acting[index] not in agents:
            return 0
        return draw_of(rollout.number, agents.index(acting[index]), self.size)
