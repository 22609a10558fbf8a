"""How DensePolicy's trees grow: children by label, rollouts where values differ, and no work done twice.

Each step of the agent has a label in [0, B); a label says how it is sampled, so a path is an index of labels. The first
search plays one rollout for each label of the first step, greedily afterwards. Each later one begins where it expects
most (:meth:`DenseSearch.best_first`) and plays a window of random indices that are new. A node's child with a label is
sampled once. In the released code no rollout after the first ones is ever accepted; the rule here is the one that it
describes.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from coterie.config.settings import Settings, key
from coterie.rollout.branches import Branches
from coterie.rollout.grower import Rollout
from coterie.rollout.samplers import CandidateSampler
from coterie.rollout.transitions import Position
from coterie.rollout.tree_search import PathJudge, Search
from coterie.rollout.tree_values import NodeValue, TreeValues, ValueRule
from coterie.trajectories.credit import Credit
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn

CONTRAST, DEPTH, NOVELTY = 0.8, 0.2, 2.0
"""Weights of what makes a node worth going on from (DensePolicy's code)."""
Children = Literal[
    "temperature", "sampling", "fixed_instruct", "contrast_instruct", "meta_instruct"
]
PairsAmong = Callable[[Sequence[NodeValue]], int]
"""How many pairs the children of one node make, by their values."""


class DenseSearchSettings(Settings):
    """How one task's tree grows."""

    base: int = key(
        10, "Children that a node may have (B).", source="DensePolicy: MATH 10, AlfWorld 8", ge=2
    )
    children: Children = key(
        "temperature",
        "How children differ. `temperature`: the first is greedy, the others take `temperatures` in turn. `sampling`: "
        "all are sampled at temperature 1. With the others the first is greedy, and the rest are asked for a worse "
        "step (`fixed_instruct`), for a better or a worse one than the greedy one (`contrast_instruct`), or to follow "
        "a principle that the model writes first (`meta_instruct`); what was asked is not trained on.",
        source="DensePolicy: temperature",
    )
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = key(
        (1.0, 0.5, 0.7),
        "Of the children after the first one, in turn.",
        source="DensePolicy's code: 1.0, 0.5, 0.7",
        min_length=1,
    )
    window: int = key(
        8,
        "Rollouts of a search after the first one.",
        source="DensePolicy: 8; GSM8K 16, BabyAI 15, M3ToolEval 5",
        ge=1,
    )
    pairs: int = key(
        512,
        "A tree that has so many pairs is done.",
        source="DensePolicy: 512; GSM8K, BabyAI and M3ToolEval 256",
        ge=1,
    )
    runs: int = key(
        1000, "A tree that has so many rollouts is done.", source="DensePolicy's code: 1000", ge=2
    )
    value: ValueRule = key(
        "rollouts",
        "A node's value: the mean reward of the `rollouts` through it, or the mean of the values of its `children`.",
        source="DensePolicy's code: children",
    )

    def temperature(self, label: int) -> float:
        if self.children == "sampling":
            return 1.0
        if self.children == "temperature" and label:
            return self.temperatures[(label - 1) % len(self.temperatures)]
        return float(label > 0)


class DenseSearch(Search):
    """The search of one task's tree by one agent, whose path takes at most ``steps`` steps.

    ``speakers`` are the samplers of the agent by label, ``agent`` is its name.
    """

    def __init__(
        self,
        branches: Branches,
        agent: str,
        speakers: Sequence[CandidateSampler],
        judge: PathJudge,
        settings: DenseSearchSettings,
        pairs_among: PairsAmong,
        rollouts: Sequence[Rollout] = (),
        *,
        steps: int,
        seed: int = 0,
    ) -> None:
        super().__init__(branches, judge, settings.runs, rollouts, seed=seed)
        self.agent, self.speakers, self.steps = agent, speakers, steps
        self.settings, self.pairs_among = settings, pairs_among
        self.values = TreeValues(self.tree.root, settings.value)
        self.pairs: dict[str, int] = {}
        """By node, how many pairs its children make."""
        self._labels: dict[str, tuple[int, ...]] = {self.tree.root: ()}
        """By node, the index that first led to it."""
        self._child: dict[tuple[str, int], str] = {}
        self._ended: set[str] = set()
        self._chosen: dict[str, int] = {}
        """By node, how many searches began at it."""
        self._played: set[tuple[int, ...]] = set()
        """The indices of rollouts, as far as they went."""
        self._take_in(self.rollouts)

    # -- what is played next ------------------------------------------------------------------

    def begin(self, search: int, rng: random.Random) -> list[Rollout]:
        """The first search varies the first step, or plays whole runs where all children are sampled; others go on
        from the best node that has something new."""
        if not self.rollouts:
            indices = [self._first(label) for label in range(self.settings.base)]
            return self._rollouts(search, self.tree.root, indices)
        if self.enough():
            return []
        known = self.branches.nodes()
        for node in self.best_first(rng):
            if node in known and (indices := self.new_indices(node, rng)):
                return self._rollouts(search, node, indices)
        return []

    def enough(self) -> bool:
        s = self.settings
        return sum(self.pairs.values()) >= s.pairs or len(self.rollouts) >= s.runs

    def best_first(self, rng: random.Random) -> list[str]:
        """Nodes that have not ended, those that promise most first; ties are broken at random."""
        going = (node for node in self.values.nodes() if node not in self._ended)
        order = [(-self.promise(node), rng.random(), node) for node in going]
        return [node for *_, node in sorted(order)]

    def promise(self, node: str) -> float:
        """0.8 C^(1/4) + 0.2 D/L + 2 sqrt(1 + N) / (2 + N).

        C is the largest difference of its value from a sibling's, D its mean distance to the end, L the most steps, N
        how often it was visited or chosen.
        """
        own = self.values[node]
        contrast = max((abs(own.mean - o.mean) for o in self.values.siblings(node)), default=0.0)
        seen = own.visits + self._chosen.get(node, 0)
        return (
            CONTRAST * contrast**0.25
            + DEPTH * own.distance / self.steps
            + NOVELTY * math.sqrt(1 + seen) / (2 + seen)
        )

    def new_indices(self, node: str, rng: random.Random) -> list[tuple[int, ...]]:
        """Up to a window of random indices below a node, none of which leads only where rollouts went before."""
        begun = self._labels[node]
        drawn = {
            (*begun, *rng.choices(range(self.settings.base), k=self.steps - len(begun))): None
            for _ in range(2 * self.settings.window)
        }
        new = [index for index in drawn if not self.covered(node, index)]
        return new[: min(self.settings.window, self.settings.runs - len(self.rollouts))]

    def covered(self, node: str, index: Sequence[int]) -> bool:
        for label in index[len(self._labels[node]) :]:
            child = self._child.get((node, label))
            if child is None:
                return False
            if child in self._ended:
                return True
            node = child
        return True

    # -- what the grower asks -----------------------------------------------------------------

    def samplers_of(self, rollout: Rollout, at: Position) -> Mapping[str, CandidateSampler]:
        """The sampler of the label that comes next."""
        return {self.agent: self.speakers[self._label(rollout, at)]}

    def seed_of(self, rollout: Rollout, at: Position, place: int) -> int:
        """One for each node and label, whichever rollout comes there."""
        return int(self.key("dense", self._node(at), self._label(rollout, at))[:15], 16)

    def known_to(self, rollout: Rollout, at: Position) -> Turn | None:
        """The node's child with the label that comes next, if it has one."""
        child = self._child.get((self._node(at), self._label(rollout, at)))
        return None if child is None else self.tree.turns.get(child)

    # -- what was played ----------------------------------------------------------------------

    async def search(self, search: int) -> tuple[list[Rollout], list[Credit]]:
        found, credit = await super().search(search)
        self._take_in(found)
        return found, credit

    def _take_in(self, rollouts: Sequence[Rollout]) -> None:
        changed: dict[str, None] = {}
        for node in {one.search: one.start for one in rollouts}.values():
            self._chosen[node] = self._chosen.get(node, 0) + (node != self.tree.root)
        for path, one in distinct(self.tree, rollouts, self._played):
            nodes = (self.tree.root, *path)
            for step, (parent, node) in enumerate(zip(nodes, path, strict=False)):
                self._child[parent, one.labels[step]] = node
                self._labels.setdefault(node, one.labels[: step + 1])
            self._ended.add(nodes[-1])
            self.values.add(path, one.reward or 0.0)
            changed |= dict.fromkeys(nodes[:-1])
        for node in changed:
            below = [self.values[child] for child in self.values.children[node]]
            self.pairs[node] = self.pairs_among(below)

    def _first(self, label: int) -> tuple[int, ...]:
        """The index of a rollout of the first search: greedy after the first step, or a run of its own."""
        rest = label if self.settings.children == "sampling" else 0
        return (label, *(rest,) * (self.steps - 1))

    def _rollouts(
        self, search: int, node: str, indices: Sequence[tuple[int, ...]]
    ) -> list[Rollout]:
        return [Rollout(search, number, node, labels=index) for number, index in enumerate(indices)]

    def _node(self, at: Position) -> str:
        said = (turn.id for turn in reversed(at.state.turns) if turn.speaker.kind == "agent")
        return next(said, self.tree.root)

    def _label(self, rollout: Rollout, at: Position) -> int:
        return rollout.labels[sum(turn.speaker.kind == "agent" for turn in at.state.turns)]


def distinct(
    tree: Tree, rollouts: Sequence[Rollout], played: set[tuple[int, ...]]
) -> Iterator[tuple[list[str], Rollout]]:
    """Rollouts that ended, each with the agent's turns on its path, but for those that went the way of an earlier one.

    Two indices of one search may be one way, if it ends before they part. ``played`` is what came before; it grows.
    """
    for one in rollouts:
        if one.leaf is None:
            continue
        path = agent_path(tree, one.leaf)
        index = one.labels[: len(path)]
        if index not in played:
            played.add(index)
            yield path, one


def agent_path(tree: Tree, leaf: str) -> list[str]:
    """The agent's turns on the way to a leaf."""
    return [turn.id for turn in tree.path(leaf) if turn.speaker.kind == "agent"]
