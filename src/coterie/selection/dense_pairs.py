"""Preference pairs of siblings in a dense tree.

DensePolicy (its code; we found no paper): two siblings with different texts are a pair if their values differ by at
least a margin and both have enough visits (distinct leaves below them) for a reliable value. A node far from the end
needs more visits: min(floor(2^d), M), where d is the mean distance to the end.

``first_difference`` is the baseline without trees: two whole rollouts with different outcomes, paired where they first
differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, Protocol

from coterie.config.settings import Settings, key
from coterie.record.tree import Tree
from coterie.record.turn import Turn


class NodeValue(Protocol):
    """Value of a node, from the rollouts through it."""

    @property
    def mean(self) -> float: ...

    @property
    def visits(self) -> int: ...

    @property
    def distance(self) -> float:
        """Mean number of agent turns to the end."""
        ...


class DensePairSettings(Settings):
    """Conditions of a preference pair."""

    rule: Literal["siblings", "first_difference"] = key(
        "siblings",
        "`siblings`: children of one node, by their values. `first_difference`: two whole rollouts with different "
        "outcomes, where they first differ (the sparse baseline).",
        source="DensePolicy: siblings; its older contrast_pair is like first_difference",
    )
    margin: float = key(
        0.5, "Minimum difference of the two values.", source="DensePolicy's code: 0.5", gt=0
    )
    max_visits: int = key(
        8,
        "Both siblings need min(2^d, this) visits (distinct leaves below them); d is the mean distance to the end.",
        source="DensePolicy's code: 8",
        ge=1,
    )


@dataclass(frozen=True, slots=True)
class SiblingPair:
    """A turn preferred to its sibling."""

    chosen: Turn
    rejected: Turn
    difference: float
    """Difference of the two values, above 0."""


def needed_visits(distance: float, limit: int) -> int:
    """Return the number of visits that make a node's value reliable."""
    return min(int(2.0 ** min(distance, 62.0)), limit)


def qualify(one: NodeValue, other: NodeValue, settings: DensePairSettings) -> bool:
    """Return True if siblings with these values, the better one first, are a pair."""
    return one.mean - other.mean >= settings.margin and all(
        node.visits >= needed_visits(node.distance, settings.max_visits) for node in (one, other)
    )


def count_pairs(values: Sequence[NodeValue], settings: DensePairSettings) -> int:
    """Count the pairs among a node's children, if all their texts differ."""
    order = sorted(values, key=lambda node: -node.mean)
    return sum(qualify(better, worse, settings) for better, worse in combinations(order, 2))


def dense_pairs(
    tree: Tree, values: Mapping[str, NodeValue], settings: DensePairSettings
) -> list[SiblingPair]:
    pairs: list[SiblingPair] = []
    for parent in (tree.root, *tree.turns):
        children = [turn for turn in tree.children(parent) if turn.id in values]
        order = sorted(children, key=lambda turn: -values[turn.id].mean)
        for better, worse in combinations(order, 2):
            one, other = values[better.id], values[worse.id]
            if qualify(one, other, settings) and not _same_text(better, worse):
                pairs.append(SiblingPair(better, worse, one.mean - other.mean))
    return pairs


def first_differences(
    tree: Tree, rewards: Mapping[str, float], agent: str, settings: DensePairSettings
) -> list[SiblingPair]:
    """Pair rollouts with different rewards at the turn where the agent first differs.

    ``rewards`` are by leaf. The best rollout is paired with the worst, the second best with the second worst, and so
    on, while their rewards differ by the margin.
    """
    order = sorted(rewards, key=lambda leaf: (-rewards[leaf], leaf))
    pairs: list[SiblingPair] = []
    for better, worse in zip(order, reversed(order), strict=True):
        difference = rewards[better] - rewards[worse]
        if difference < settings.margin:
            break
        turns = _first_difference(tree, better, worse, agent)
        if turns is not None and not _same_text(*turns):
            pairs.append(SiblingPair(*turns, difference))
    return pairs


def _first_difference(tree: Tree, leaf: str, other: str, agent: str) -> tuple[Turn, Turn] | None:
    for one, two in zip(tree.path(leaf), tree.path(other), strict=False):
        if one.id != two.id:
            both = one.speaker.name == two.speaker.name == agent
            return (one, two) if both else None
    return None


def _same_text(one: Turn, other: Turn) -> bool:
    return one.text.strip() == other.text.strip()
