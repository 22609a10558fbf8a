"""Searches the tree of one task: from promising nodes, new rollouts to the end, whose rewards give the nodes values.

Optima (arXiv 2410.08115), section 3.3 and algorithm 4. A search picks a node (the task's beginning first), plays a few
rollouts from it to the end, and adds their rewards to the values of all that they went through. The next search picks
by these values. What is sampled depends on the task's key and on the tree alone, so a search that was cut off is done
again alike.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.engines.protocol import EngineError, EngineGone
from coterie.rollout.branches import Branches
from coterie.rollout.grower import Merge, Rollout, TreeGrower, never_merge
from coterie.rollout.samplers import CandidateSampler
from coterie.rollout.transitions import Position
from coterie.trajectories.credit import Credit
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Turn, digest


@dataclass(frozen=True, slots=True)
class Judged:
    """What a path came to."""

    reward: float
    credit: tuple[Credit, ...] = ()
    """What is to be kept of it: the reward's parts at its leaf, losses at its turns."""


PathJudge = Callable[[Tree, Sequence[Outcome]], Awaitable[list[Judged]]]
"""Rewards of finished paths of a tree, in order; raises ``EngineError``."""
OnSearch = Callable[[Tree, Sequence[Rollout], Sequence[Credit]], None]
"""Is told of each finished search: the tree as it is now, the new rollouts, and their credit."""
Choose = Callable[[Tree, Sequence[Rollout], Container[str], random.Random], str]
"""The node that the next search begins at, given all rollouts so far, and the nodes after which a branch can go on."""


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """How a tree grows: how often, where, and which turns are one."""

    searches: int
    rollouts: int
    choose: Choose
    merge: Merge = never_merge


class Search(ABC):
    """A search of one task's tree, from the beginning or from what its branches have already.

    ``rollouts`` are those of the finished searches, of which the tree has the paths. Kinds of searches say where
    rollouts begin, who speaks in them and with which random numbers.
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
        self.grower = TreeGrower(branches, self.samplers_of, self.seed_of, merge, self.known_to)
        self.judged: dict[str, Judged] = {}
        """By leaf, of the rollouts of this process."""

    # -- what a kind of search says -----------------------------------------------------------

    @abstractmethod
    def begin(self, search: int, rng: random.Random) -> list[Rollout]:
        """The rollouts of a search, all from one node; none if there is nothing left to play."""

    @abstractmethod
    def samplers_of(self, rollout: Rollout, at: Position) -> Mapping[str, CandidateSampler]:
        """By actor, who speaks for a rollout where it stands."""

    @abstractmethod
    def seed_of(self, rollout: Rollout, at: Position, place: int) -> int:
        """The seed of a rollout's next turn; ``place`` is that of its actor among those who act."""

    def known_to(self, rollout: Rollout, at: Position) -> Turn | None:
        """The turn that a rollout takes where it stands, if that was sampled before."""
        return None

    # -- how it goes --------------------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        return self.branches.tree

    async def grow(self, record: OnSearch) -> None:
        """Do the searches that are left; ``record`` is called after each.

        A rollout whose engine fails is recorded with the reason. Raises ``EngineGone``.
        """
        for leaf, reward in {(r.leaf, r.reward) for r in self.rollouts if r.leaf is not None}:
            assert reward is not None, "a rollout with a leaf has a reward"
            self.judged[leaf] = Judged(reward)
        done = max((rollout.search for rollout in self.rollouts), default=-1) + 1
        try:
            await self._stand()
            for search in range(done, self.searches):
                new, credit = await self.search(search)
                if not new:
                    break
                record(self.tree, new, credit)
        finally:
            await self.branches.close()

    async def _stand(self) -> None:
        """Work out where the branches of a tree that was read from the store stand."""
        for leaf in self.judged:
            try:
                await self.branches.position(leaf)
            except EngineGone:
                raise
            except EngineError:  # of a drifted environment: no search begins on that path
                continue

    async def search(self, search: int) -> tuple[list[Rollout], list[Credit]]:
        """One search: choose a node, play rollouts from it, value what they went through."""
        blank = self.begin(search, random.Random(self.key("choose", search)))
        if not blank:
            return [], []
        played = await self.grower.roll(blank[0].start, blank)
        found, credit = await self._valued(sorted(played, key=lambda r: r.number))
        self.rollouts += found
        if any(rollout.leaf is None for rollout in found):
            await self._prune()
        return found, credit

    # -- values -------------------------------------------------------------------------------

    async def _valued(self, played: Sequence[Rollout]) -> tuple[list[Rollout], list[Credit]]:
        """The rollouts with their rewards, and the credit of leaves that are new.

        A path that can't be graded fails alone. Rewards are computed together, and fail together.
        """
        new, failures = await self._graded(played)
        try:
            judged = await self.judge(self.tree, list(new.values())) if new else []
        except EngineGone:
            raise
        except EngineError as error:
            failures |= dict.fromkeys(new, f"no reward: {error}")
            new, judged = {}, []
        self.judged |= zip(new, judged, strict=True)
        for outcome in new.values():
            self.tree.end(outcome)
        found = [self._rewarded(rollout, failures) for rollout in played]
        return found, [credit for one in judged for credit in one.credit]

    async def _graded(self, played: Sequence[Rollout]) -> tuple[dict[str, Outcome], dict[str, str]]:
        graded, failures = dict[str, Outcome](), dict[str, str]()
        for rollout in played:
            leaf = rollout.leaf
            if leaf is None or leaf in self.judged or leaf in graded or leaf in failures:
                continue
            try:
                graded[leaf] = await self._outcome(leaf, rollout)
            except EngineGone:
                raise
            except EngineError as error:
                failures[leaf] = f"no reward: {error}"
        return graded, failures

    def _rewarded(self, rollout: Rollout, failures: Mapping[str, str]) -> Rollout:
        if rollout.leaf is None:
            return rollout
        if rollout.leaf in failures:
            return replace(rollout, leaf=None, failure=failures[rollout.leaf])
        return replace(rollout, reward=self.judged[rollout.leaf].reward)

    async def _outcome(self, leaf: str, rollout: Rollout) -> Outcome:
        at = await self.branches.position(leaf)
        assert at.state.end is not None, "a rollout is played to the end"
        score = (await self.branches.grade(at)).score
        if score is None:
            raise EngineError("the dialogue could not be graded")
        sample = len(self.rollouts) + rollout.number
        return Outcome(leaf, sample, at.state.end, at.state.answer, score)

    async def _prune(self) -> None:
        """Drop the turns of rollouts that failed, so that a tree is what the record has of it."""
        leaves = [r.leaf for r in self.rollouts if r.leaf is not None]
        await self.branches.prune(path_tree(self.tree, leaves))

    def key(self, *what: object) -> str:
        """A digest of the tree and of what of it is meant."""
        tree = self.tree
        return digest("tree", self.seed, tree.iteration, tree.stage, tree.task, *what)


class TreeSearch(Search):
    """A search by a rule, in which every rollout speaks with the same samplers and random numbers of its own."""

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

    def begin(self, search: int, rng: random.Random) -> list[Rollout]:
        """As many rollouts as the rule says, from the node that it chooses."""
        node = self.rule.choose(self.tree, self.rollouts, self.branches.nodes(), rng)
        return [Rollout(search, number, node) for number in range(self.rule.rollouts)]

    def samplers_of(self, rollout: Rollout, at: Position) -> Mapping[str, CandidateSampler]:
        return self.samplers

    def seed_of(self, rollout: Rollout, at: Position, place: int) -> int:
        depth = len(at.state.turns) + place
        return int(self.key("seed", rollout.search, rollout.number, depth)[:15], 16)


def path_tree(tree: Tree, leaves: Sequence[str]) -> Tree:
    found = Tree(tree.task, tree.stage, tree.iteration)
    for leaf in leaves:
        for turn in tree.path(leaf):
            found.add(turn, None if turn.prompt is None else tree.requests[turn.prompt])
        if leaf in tree.outcomes:
            found.end(tree.outcomes[leaf])
    return found
