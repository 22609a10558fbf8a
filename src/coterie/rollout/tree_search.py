"""Search of one task's tree, as in Optima (arXiv 2410.08115), section 3.3 and algorithm 4.

A search chooses a node (first the root), plays rollouts from it to the end, and adds their rewards to the values of all
nodes on their paths. The next search chooses by these values. Samples depend only on the task's key and the tree, so an
interrupted search is repeated exactly.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.engines.protocol import EngineError, EngineGone
from coterie.record.tree import Credit, Outcome, Tree
from coterie.record.turn import Turn, digest
from coterie.rollout.branches import Branches
from coterie.rollout.grower import Merge, Rollout, TreeGrower, never_merge
from coterie.rollout.samplers import CandidateSampler
from coterie.rollout.transitions import Position


@dataclass(frozen=True, slots=True)
class Judgment:
    """Reward of a path."""

    reward: float
    credit: tuple[Credit, ...] = ()
    """Credit to store: the reward's terms on the leaf, losses on the turns."""


PathJudge = Callable[[Tree, Sequence[Outcome]], Awaitable[list[Judgment]]]
"""(tree, finished paths) -> their rewards, in order; raises ``EngineError``."""
OnSearch = Callable[[Tree, Sequence[Rollout], Sequence[Credit]], None]
"""Callback after each search: (tree, new rollouts, their credit)."""
Choose = Callable[[Tree, Sequence[Rollout], Container[str], random.Random], str]
"""(tree, all rollouts so far, nodes to branch from, rng) -> start node of the next search."""


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """Number of searches, rollouts of a search, choice of its start node, and merging of turns."""

    searches: int
    rollouts: int
    choose: Choose
    merge: Merge = never_merge


class Search(ABC):
    """Search of one task's tree, which may continue an earlier search.

    A subclass decides where rollouts begin, and their samplers and seeds.

    Args:
        rollouts: Rollouts of finished searches, whose paths are in the tree.
    """

    def __init__(
        self,
        branches: Branches,
        judge: PathJudge,
        searches: int,
        rollouts: Sequence[Rollout] = (),
        merge: Merge = never_merge,
        *,
        seed: int = 0,
    ) -> None:
        self.branches = branches
        self.judge = judge
        self.searches = searches
        self.rollouts = list(rollouts)
        self.seed = seed
        self.grower = TreeGrower(branches, self.samplers_of, self.seed_of, merge, self.known_turn)
        self.judgments: dict[str, Judgment] = {}
        """Rewards by leaf."""

    @abstractmethod
    def plan(self, search: int, rng: random.Random) -> list[Rollout]:
        """Return the rollouts of a search, all from one node; empty when the tree is complete."""

    @abstractmethod
    def samplers_of(self, rollout: Rollout, at: Position) -> Mapping[str, CandidateSampler]:
        """Return the samplers of a rollout at a position, by actor."""

    @abstractmethod
    def seed_of(self, rollout: Rollout, at: Position, index: int) -> int:
        """Return the seed of a rollout's next turn; ``index`` is the actor's among the acting ones."""

    def known_turn(self, rollout: Rollout, at: Position) -> Turn | None:
        """Return the existing turn that a rollout takes at a position, if any."""
        return None

    @property
    def tree(self) -> Tree:
        return self.branches.tree

    async def grow(self, record: OnSearch) -> None:
        """Run the remaining searches; ``record`` is called after each.

        Rollouts that fail are recorded with the reason.

        Raises:
            EngineGone: The engine failed for good.
        """
        for leaf, reward in {(r.leaf, r.reward) for r in self.rollouts if r.leaf is not None}:
            assert reward is not None, "a rollout with a leaf has a reward"
            self.judgments[leaf] = Judgment(reward)
        done = max((rollout.search for rollout in self.rollouts), default=-1) + 1
        try:
            await self._restore_positions()
            for search in range(done, self.searches):
                new, credit = await self.search(search)
                if not new:
                    break
                record(self.tree, new, credit)
        finally:
            await self.branches.close()

    async def _restore_positions(self) -> None:
        """Compute the positions of a tree that was read from the store."""
        for leaf in self.judgments:
            try:
                await self.branches.position(leaf)
            except EngineGone:
                raise
            except EngineError:  # the environment has changed: no search begins on that path
                continue

    async def search(self, search: int) -> tuple[list[Rollout], list[Credit]]:
        """Run one search: choose a node, play rollouts from it, add their rewards."""
        planned = self.plan(search, random.Random(self.key("choose", search)))
        if not planned:
            return [], []
        played = await self.grower.play(planned[0].start, planned)
        rollouts, credit = await self._reward(sorted(played, key=lambda r: r.number))
        self.rollouts += rollouts
        if any(rollout.leaf is None for rollout in rollouts):
            await self._prune()
        return rollouts, credit

    async def _reward(self, rollouts: Sequence[Rollout]) -> tuple[list[Rollout], list[Credit]]:
        """Return the rollouts with rewards, and the credit of new leaves.

        A path that can't be graded fails alone. Rewards are computed in one call, and fail together.
        """
        new, failures = await self._grade(rollouts)
        try:
            judgments = await self.judge(self.tree, list(new.values())) if new else []
        except EngineGone:
            raise
        except EngineError as error:
            failures |= dict.fromkeys(new, f"no reward: {error}")
            new, judgments = {}, []
        self.judgments |= zip(new, judgments, strict=True)
        for outcome in new.values():
            self.tree.end(outcome)
        rollouts = [self._with_reward(rollout, failures) for rollout in rollouts]
        return rollouts, [credit for one in judgments for credit in one.credit]

    async def _grade(
        self, rollouts: Sequence[Rollout]
    ) -> tuple[dict[str, Outcome], dict[str, str]]:
        outcomes, failures = dict[str, Outcome](), dict[str, str]()
        for rollout in rollouts:
            leaf = rollout.leaf
            if leaf is None or leaf in self.judgments or leaf in outcomes or leaf in failures:
                continue
            try:
                outcomes[leaf] = await self._outcome(leaf, rollout)
            except EngineGone:
                raise
            except EngineError as error:
                failures[leaf] = f"no reward: {error}"
        return outcomes, failures

    def _with_reward(self, rollout: Rollout, failures: Mapping[str, str]) -> Rollout:
        if rollout.leaf is None:
            return rollout
        if rollout.leaf in failures:
            return replace(rollout, leaf=None, failure=failures[rollout.leaf])
        return replace(rollout, reward=self.judgments[rollout.leaf].reward)

    async def _outcome(self, leaf: str, rollout: Rollout) -> Outcome:
        at = await self.branches.position(leaf)
        assert at.state.end is not None, "a rollout is played to the end"
        score = (await self.branches.grade(at)).score
        if score is None:
            raise EngineError("the dialogue could not be graded")
        sample = len(self.rollouts) + rollout.number
        return Outcome(leaf, sample, at.state.end, at.state.answer, score)

    async def _prune(self) -> None:
        """Drop the turns of failed rollouts, so that the tree equals its record."""
        leaves = [r.leaf for r in self.rollouts if r.leaf is not None]
        await self.branches.prune(path_tree(self.tree, leaves))

    def key(self, *parts: object) -> str:
        """Return a hash of the tree's key and of ``parts``."""
        tree = self.tree
        return digest("tree", self.seed, tree.iteration, tree.stage, tree.task, *parts)


class TreeSearch(Search):
    """Search by a rule, with the same samplers for all rollouts and a separate seed for each turn of each."""

    def __init__(
        self,
        branches: Branches,
        samplers: Mapping[str, CandidateSampler],
        judge: PathJudge,
        rule: GrowthRule,
        rollouts: Sequence[Rollout] = (),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(branches, judge, rule.searches, rollouts, rule.merge, seed=seed)
        self.samplers = samplers
        self.rule = rule

    def plan(self, search: int, rng: random.Random) -> list[Rollout]:
        node = self.rule.choose(self.tree, self.rollouts, self.branches.nodes(), rng)
        return [Rollout(search, number, node) for number in range(self.rule.rollouts)]

    def samplers_of(self, rollout: Rollout, at: Position) -> Mapping[str, CandidateSampler]:
        return self.samplers

    def seed_of(self, rollout: Rollout, at: Position, index: int) -> int:
        depth = len(at.state.turns) + index
        return int(self.key("seed", rollout.search, rollout.number, depth)[:15], 16)


def path_tree(tree: Tree, leaves: Sequence[str]) -> Tree:
    """Return the part of a tree with the paths to some leaves."""
    result = Tree(tree.task, tree.stage, tree.iteration)
    for leaf in leaves:
        for turn in tree.path(leaf):
            result.add(turn, None if turn.prompt is None else tree.requests[turn.prompt])
        if leaf in tree.outcomes:
            result.end(tree.outcomes[leaf])
    return result
