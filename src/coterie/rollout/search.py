"""Growth rule of Optima's trees: node values, choice of a start node, and merging of similar turns.

Optima (arXiv 2410.08115), section 3.3: the value of an utterance is the mean reward of the rollouts through it. A start
node is drawn by softmax from the best ones, without those similar to earlier start nodes.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from rapidfuzz.distance import Levenshtein

from coterie.config.settings import Settings, key
from coterie.record.tree import Tree
from coterie.record.turn import Turn
from coterie.rollout.grower import Rollout
from coterie.rollout.tree_search import GrowthRule


class SearchSettings(Settings):
    """Growth of one task's tree."""

    searches: int = key(8, "Searches of a task; each chooses a start node.",
                        source="Optima's code: 8", ge=1)  # fmt: skip
    rollouts: int = key(3, "Rollouts of a search, from its start node to the end.",
                        source="Optima's code: 3", ge=1)  # fmt: skip
    best: int = key(10, "Number of nodes of the highest value to draw from.",
                    source="Optima section 3.3 (10)", ge=1)  # fmt: skip
    softmax_temperature: float = key(
        1.0,
        "Temperature of the draw; lower values prefer the best node.",
        source="Optima section 3.3",
        gt=0,
    )
    choice_distance: float = key(
        0.25,
        "Minimum edit distance of a start node to earlier ones, divided by the length of the longer text plus 1.",
        source="Optima section 3.3 (0.25)",
        ge=0,
        le=1,
    )
    merge_distance: float = key(
        0.1,
        "An utterance is merged with a sibling if their edit distance, divided by its length plus 1, is below this. "
        "0: only equal ones.",
        source="Optima's code: 0.1",
        ge=0,
        le=1,
    )


@dataclass(frozen=True, slots=True)
class Value:
    """Value of a node, from the rollouts through it."""

    mean: float
    visits: int
    """Number of rollouts through it."""


def growth(settings: SearchSettings) -> GrowthRule:
    return GrowthRule(
        settings.searches,
        settings.rollouts,
        partial(_choose, settings),
        partial(_near_sibling, settings.merge_distance),
    )


def _choose(
    settings: SearchSettings,
    tree: Tree,
    rollouts: Sequence[Rollout],
    nodes: Container[str],
    rng: Random,
) -> str:
    starts = [rollout.start for rollout in rollouts]
    values = {n: value for n, value in node_values(tree, rollouts).items() if n in nodes}
    return choose(tree, values, starts, settings, rng)


def _near_sibling(distance: float, turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
    """Return the first sibling with similar text. Truncated turns are never similar."""
    if turn.truncated:
        return None
    near = (s for s in siblings if not s.truncated and _same(turn.text, s.text, distance))
    return next(near, None)


def _same(new: str, old: str, distance: float) -> bool:
    return Levenshtein.distance(new, old) / (len(new) + 1) < distance


def node_values(tree: Tree, rollouts: Iterable[Rollout]) -> dict[str, Value]:
    """Return the values of all nodes on finished rollouts, including the root."""
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.leaf is not None and rollout.reward is not None:
            for node in (tree.root, *(turn.id for turn in tree.path(rollout.leaf))):
                rewards.setdefault(node, []).append(rollout.reward)
    return {node: Value(math.fsum(own) / len(own), len(own)) for node, own in rewards.items()}


def choose(
    tree: Tree,
    values: Mapping[str, Value],
    starts: Sequence[str],
    settings: SearchSettings,
    rng: Random,
) -> str:
    """Choose the start node of the next search.

    Candidates are nodes with a grandchild whose text is not similar to an earlier start node's. The first search, and
    a search without candidates, starts at the root.
    """
    texts = [_text(tree, node) for node in dict.fromkeys(starts)]
    eligible = [
        node
        for node in values
        if _has_grandchild(tree, node) and not _near(_text(tree, node), texts, settings)
    ]
    if not eligible or not starts:
        return tree.root
    best = sorted(eligible, key=lambda node: (-values[node].mean, node))[: settings.best]
    highest = values[best[0]].mean
    weights = [
        math.exp((values[node].mean - highest) / settings.softmax_temperature) for node in best
    ]
    return rng.choices(best, weights)[0]


def _has_grandchild(tree: Tree, node: str) -> bool:
    return any(tree.children(child.id) for child in tree.children(node))


def _near(text: str, others: Sequence[str], settings: SearchSettings) -> bool:
    return any(
        Levenshtein.distance(text, other) / (max(len(text), len(other)) + 1)
        < settings.choice_distance
        for other in others
    )


def _text(tree: Tree, node: str) -> str:
    return "" if node == tree.root else tree.turns[node].text
