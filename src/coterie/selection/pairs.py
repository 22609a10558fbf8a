"""Preference pairs for DPO from the siblings of a dialogue tree.

Optima (arXiv 2410.08115), section 3.3 and algorithm 5: siblings are a pair if the better value is above theta_filter
and exceeds the other by more than theta_diff; a task keeps the top share of its pairs by the better value. The paper
pairs all siblings, the released code the best with the worst child of each parent; both rules are available. Values are
from the finished tree (the released code uses outdated values of the growing tree).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, Protocol

from coterie.config.settings import Settings, key
from coterie.record.tree import Tree
from coterie.record.turn import Turn


class Value(Protocol):
    """Value of a node, from the rollouts through it."""

    @property
    def mean(self) -> float: ...


class PairSettings(Settings):
    """Conditions of a preference pair, and the share of a task's pairs to keep."""

    rule: Literal["all", "best_worst"] = key(
        "all",
        "Pairs of one parent: any two of its children, or the best and the worst.",
        source="Optima algorithm 5: all; its code: best_worst",
    )
    theta_filter: float = key(
        0.4, "Minimum value of a chosen utterance (exclusive).", source="Optima table 8"
    )
    theta_diff: float = key(
        0.2, "Minimum difference of the two values (exclusive).", source="Optima table 8", ge=0
    )
    top_share: float = key(
        0.5,
        "Share of a task's pairs to keep, by the chosen one's value; at least one.",
        source="Optima section 3.3",
        gt=0,
        le=1,
    )
    min_score: float = key(
        0.0,
        "Minimum mean task score of the rollouts through a chosen utterance. 0: only the reward counts, as in the "
        "paper.",
        ge=0,
        le=1,
    )


@dataclass(frozen=True, slots=True)
class Preference:
    """An utterance preferred to its sibling."""

    chosen: Turn
    rejected: Turn
    value: float
    difference: float
    """Difference of the two values, above 0."""


def sibling_pairs(
    tree: Tree,
    values: Mapping[str, Value],
    settings: PairSettings,
    score: Callable[[str], float] = lambda _: 1.0,
) -> list[Preference]:
    """Return the pairs of a tree, the highest chosen value first. Siblings without a value make no pair.

    ``score(node)`` is the mean task score of the rollouts through a node, for ``min_score``.
    """
    pairs: list[Preference] = []
    for parent in (tree.root, *tree.turns):
        children = [turn for turn in tree.children(parent) if turn.id in values]
        pairs += [
            pair
            for pair in _pairs(children, values, settings)
            if pair.value > settings.theta_filter
            and pair.difference > settings.theta_diff
            and (not settings.min_score or score(pair.chosen.id) >= settings.min_score)
        ]
    pairs.sort(key=lambda pair: (-pair.value, -pair.difference, pair.chosen.id, pair.rejected.id))
    return pairs[: max(int(len(pairs) * settings.top_share), 1)]


def _pairs(
    children: list[Turn], values: Mapping[str, Value], settings: PairSettings
) -> list[Preference]:
    if settings.rule == "all":
        return [_pair(a, b, values) for a, b in permutations(children, 2)]
    if len(children) < 2:
        return []
    order = sorted(children, key=lambda turn: (-values[turn.id].mean, turn.id))
    return [_pair(order[0], order[-1], values)]


def _pair(chosen: Turn, rejected: Turn, values: Mapping[str, Value]) -> Preference:
    value = values[chosen.id].mean
    return Preference(chosen, rejected, value, value - values[rejected.id].mean)
