"""Pairs of siblings of a dense tree: what the agent might have done next, one of which did better.

DensePolicy (its code; no paper was found): two siblings with different texts are a pair if their values differ by at
least a margin and each was visited often enough (distinct leaves below it) for its value to mean something. A node that
is far from the end needs more visits: min(floor(2^d), M), where d is the mean distance to the end.

``first_difference`` is what one has without a tree: two whole runs with different outcomes, paired where they first
differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, Protocol

from coterie.config.settings import Settings, key
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn


class Visited(Protocol):
    """What the rollouts through a node came to."""

    @property
    def mean(self) -> float:
        """The node's value."""
        ...

    @property
    def visits(self) -> int: ...

    @property
    def distance(self) -> float:
        """Mean number of the agent's turns to the end."""
        ...


class DensePairSettings(Settings):
    """Which two ways to go on are a pair."""

    rule: Literal["siblings", "first_difference"] = key(
        "siblings",
        "`siblings`: children of one node, by their values. `first_difference`: two whole runs with different "
        "outcomes, where they first differ (the sparse baseline).",
        source="DensePolicy: siblings; its older contrast_pair is like first_difference",
    )
    margin: float = key(
        0.5, "Least difference of the two values.", source="DensePolicy's code: 0.5", gt=0
    )
    max_visits: int = key(
        8,
        "A sibling must have min(2^d, this) visits (distinct leaves below it); d is its mean distance to the end.",
        source="DensePolicy's code: 8",
        ge=1,
    )


@dataclass(frozen=True, slots=True)
class SiblingPair:
    """One turn over a sibling of it."""

    chosen: Turn
    rejected: Turn
    difference: float
    """Of the two values, above 0."""


def needed_visits(distance: float, most: int) -> int:
    """How often a node must have been visited for its value to count."""
    return min(int(2.0 ** min(distance, 62.0)), most)


def qualify(one: Visited, other: Visited, settings: DensePairSettings) -> bool:
    """Whether siblings with these values, the better one first, make a pair."""
    return one.mean - other.mean >= settings.margin and all(
        node.visits >= needed_visits(node.distance, settings.max_visits) for node in (one, other)
    )


def count_pairs(values: Sequence[Visited], settings: DensePairSettings) -> int:
    """How many pairs the children of one node make, if all their texts differ."""
    order = sorted(values, key=lambda node: -node.mean)
    return sum(qualify(better, worse, settings) for better, worse in combinations(order, 2))


def dense_pairs(
    tree: Tree, values: Mapping[str, Visited], settings: DensePairSettings
) -> list[SiblingPair]:
    found: list[SiblingPair] = []
    for parent in (tree.root, *tree.turns):
        children = [turn for turn in tree.children(parent) if turn.id in values]
        order = sorted(children, key=lambda turn: -values[turn.id].mean)
        for better, worse in combinations(order, 2):
            one, other = values[better.id], values[worse.id]
            if qualify(one, other, settings) and not _same_text(better, worse):
                found.append(SiblingPair(better, worse, one.mean - other.mean))
    return found


def first_differences(
    tree: Tree, rewards: Mapping[str, float], agent: str, settings: DensePairSettings
) -> list[SiblingPair]:
    """Runs with different outcomes, each in one pair at most, where the agent first said something else.

    ``rewards`` are those of leaves. The best is paired with the worst, the second best with the second worst, and so
    on, as long as their rewards differ by the margin.
    """
    order = sorted(rewards, key=lambda leaf: (-rewards[leaf], leaf))
    found: list[SiblingPair] = []
    for better, worse in zip(order, reversed(order), strict=True):
        difference = rewards[better] - rewards[worse]
        if difference < settings.margin:
            break
        turns = _parting(tree, better, worse, agent)
        if turns is not None and not _same_text(*turns):
            found.append(SiblingPair(*turns, difference))
    return found


def _parting(tree: Tree, leaf: str, other: str, agent: str) -> tuple[Turn, Turn] | None:
    for one, two in zip(tree.path(leaf), tree.path(other), strict=False):
        if one.id != two.id:
            both = one.speaker.name == two.speaker.name == agent
            return (one, two) if both else None
    return None


def _same_text(one: Turn, other: Turn) -> bool:
    return one.text.strip() == other.text.strip()
