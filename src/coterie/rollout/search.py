"""How Optima's trees grow: the values of nodes, the choice of one, and which turns are one.

Optima (arXiv 2410.08115), section 3.3: the value of an utterance is the mean reward of the rollouts
through it; one of the best is drawn by softmax, leaving out those that say nearly what was chosen before.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from rapidfuzz.distance import Levenshtein

from coterie.config.settings import Settings, key
from coterie.rollout.grower import Rollout
from coterie.rollout.tree_search import GrowthRule
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn


class SearchSettings(Settings):
    """How one task's tree grows."""

    searches: int = key(8, "Searches of a task: each chooses a node to go on from.",
                        source="Optima's code: 8", ge=1)  # fmt: skip
    rollouts: int = key(3, "Dialogues played to the end from a chosen node.",
                        source="Optima's code: 3", ge=1)  # fmt: skip
    best: int = key(10, "A node is drawn among so many of the highest value.",
                    source="Optima section 3.3 (10)", ge=1)  # fmt: skip
    softmax_temperature: float = key(
        1.0, "Of the draw: the lower, the more often the best.", source="Optima section 3.3", gt=0
    )
    choice_distance: float = key(
        0.25,
        "A node is not chosen if its edit distance to one that was, over the longer text plus 1, is "
        "below this.",
        source="Optima section 3.3 (0.25)",
        ge=0,
        le=1,
    )
    merge_distance: float = key(
        0.1,
        "An utterance is taken for a sibling of it if their edit distance, over its length plus 1, is "
        "below this; 0 merges equal ones only.",
        source="Optima's code: 0.1",
        ge=0,
        le=1,
    )


@dataclass(frozen=True, slots=True)
class Value:
    """What the rollouts through a node came to."""

    mean: float
    visits: int
    """How many rollouts went through it."""


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
    chosen = [rollout.start for rollout in rollouts]
    values = {n: value for n, value in node_values(tree, rollouts).items() if n in nodes}
    return choose(tree, values, chosen, settings, rng)


def _near_sibling(distance: float, turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
    """The first sibling that says nearly the same; what was cut off is never the same."""
    if turn.truncated:
        return None
    near = (s for s in siblings if not s.truncated and _same(turn.text, s.text, distance))
    return next(near, None)


def _same(new: str, old: str, distance: float) -> bool:
    return Levenshtein.distance(new, old) / (len(new) + 1) < distance


def node_values(tree: Tree, rollouts: Iterable[Rollout]) -> dict[str, Value]:
    """Values of all nodes that a finished rollout went through, the root included."""
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.leaf is not None and rollout.reward is not None:
            for node in (tree.root, *(turn.id for turn in tree.path(rollout.leaf))):
                rewards.setdefault(node, []).append(rollout.reward)
    return {
        node: Value(math.fsum(found) / len(found), len(found)) for node, found in rewards.items()
    }


def choose(
    tree: Tree,
    values: Mapping[str, Value],
    chosen: Sequence[str],
    settings: SearchSettings,
    rng: Random,
) -> str:
    """The node that the next search begins at.

    Candidates are the root and utterances that at least two more followed; those that say nearly
    what a ``chosen`` one says are left out. Where none is left, and at first, it is the root.
    """
    texts = [_text(tree, node) for node in dict.fromkeys(chosen)]
    eligible = [
        node
        for node in values
        if _has_grandchild(tree, node) and not _near(_text(tree, node), texts, settings)
    ]
    if not eligible or not chosen:
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
