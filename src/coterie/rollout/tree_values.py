"""What the nodes of a growing tree are worth: kept up to date, rollout by rollout.

A rollout changes its own path only, so taking it in costs as much as the path is long. The value of a node is the mean
reward of the rollouts through it, each counted once, or the unweighted mean of its children (DensePolicy).
Visits are the distinct leaves below a node: labels that led to the same words are one way to go on, however often it
was gone. (DensePolicy's counter counts passes, every one but the first twice.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ValueRule = Literal["rollouts", "children"]


@dataclass(frozen=True, slots=True)
class NodeValue:
    """What the rollouts through a node came to."""

    mean: float
    """The node's value, in units of reward."""
    visits: int
    """Distinct leaves that the rollouts through it reached."""
    distance: float
    """Mean number of the agent's turns from it to the end."""


@dataclass(slots=True)
class _Sums:
    reward: float = 0.0
    rollouts: int = 0
    leaves: int = 0
    distance: int = 0
    value: float = 0.0


@dataclass(slots=True)
class TreeValues:
    """Values of the nodes of one tree; a node is a turn of the agent, or the root."""

    root: str
    rule: ValueRule = "rollouts"
    children: dict[str, list[str]] = field(default_factory=dict)
    """By node, those that a rollout went through."""
    parents: dict[str, str] = field(default_factory=dict)
    _sums: dict[str, _Sums] = field(default_factory=dict)
    _leaves: set[str] = field(default_factory=set)

    def add(self, path: Sequence[str], reward: float) -> None:
        """Take in a rollout: the agent's turns from the beginning to the end."""
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
        """The values of the other children of a node's parent."""
        if node not in self.parents:
            return []
        return [self[one] for one in self.children[self.parents[node]] if one != node]

    def values(self) -> Mapping[str, NodeValue]:
        return {node: self[node] for node in self._sums}
