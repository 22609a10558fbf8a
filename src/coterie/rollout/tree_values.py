"""Values of the nodes of a growing tree, updated rollout by rollout.

A rollout updates only the nodes of its path. The value of a node is the mean reward of the rollouts through it, each
counted once, or the unweighted mean of its children's values (DensePolicy). Visits count the distinct leaves below a
node, so labels that led to equal turns count once. (DensePolicy's code counts passes, and all but the first one twice.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ValueRule = Literal["rollouts", "children"]


@dataclass(frozen=True, slots=True)
class NodeValue:
    """Value of a node, from the rollouts through it."""

    mean: float
    """Value, in units of reward."""
    visits: int
    """Number of distinct leaves below it."""
    distance: float
    """Mean number of agent turns from it to the end."""


@dataclass(slots=True)
class _Sums:
    reward: float = 0.0
    rollouts: int = 0
    leaves: int = 0
    distance: int = 0
    value: float = 0.0


@dataclass(slots=True)
class TreeValues:
    """Values of a tree's nodes: turns of the agent, and the root."""

    root: str
    rule: ValueRule = "rollouts"
    children: dict[str, list[str]] = field(default_factory=dict)
    """Children of each node on a rollout."""
    parents: dict[str, str] = field(default_factory=dict)
    _sums: dict[str, _Sums] = field(default_factory=dict)
    _leaves: set[str] = field(default_factory=set)

    def add(self, path: Sequence[str], reward: float) -> None:
        """Add a rollout: ids of the agent's turns, from first to last."""
        for parent, node in zip((self.root, *path), path, strict=False):
            if node not in self.parents:
                self.parents[node] = parent
                self.children.setdefault(parent, []).append(node)
        leaf = path[-1] if path else self.root
        new = leaf not in self._leaves
        self._leaves.add(leaf)
        for distance, node in enumerate((*reversed(path), self.root)):
            sums = self._sums.setdefault(node, _Sums())
            sums.reward += reward
            sums.rollouts += 1
            sums.leaves += new
            sums.distance += distance
            below = self.children.get(node, [])
            if self.rule == "children" and below:
                sums.value = sum(self._sums[child].value for child in below) / len(below)
            else:
                sums.value = sums.reward / sums.rollouts

    def __contains__(self, node: str) -> bool:
        return node in self._sums

    def __getitem__(self, node: str) -> NodeValue:
        sums = self._sums[node]
        return NodeValue(sums.value, sums.leaves, sums.distance / sums.rollouts)

    def nodes(self) -> Iterable[str]:
        return self._sums

    def siblings(self, node: str) -> list[NodeValue]:
        """Return the values of a node's siblings."""
        if node not in self.parents:
            return []
        return [self[one] for one in self.children[self.parents[node]] if one != node]

    def values(self) -> Mapping[str, NodeValue]:
        return {node: self[node] for node in self._sums}
