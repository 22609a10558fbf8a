"""Preference pairs for DPO: two ways to say the next utterance, of which one led to more reward.

Optima (arXiv 2410.08115), section 3.3 and algorithm 5: siblings of a dialogue tree make a pair if the
better one's value is above theta_filter and better by more than theta_diff; of a task's pairs the top
share by the better one's value is kept. The paper pairs all siblings, the released code each parent's
best with its worst; both are here. Values are those of the finished tree (the code keeps pointers that
go stale while the tree grows).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, Protocol

from coterie.config.settings import Settings, key
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn


class Valued(Protocol):
    """What the dialogues through a node came to."""

    @property
    def mean(self) -> float:
        """The node's value: their mean reward."""
        ...


class PairSettings(Settings):
    """Which siblings make a pair, and how many pairs of a task are kept."""

    rule: Literal["all", "best_worst"] = key(
        "all",
        "Pairs of one parent: any two of its children, or the best with the worst.",
        source="Optima algorithm 5: all; its code: best_worst",
    )
    theta_filter: float = key(
        0.4, "Least value of a chosen utterance (exclusive).", source="Optima table 8"
    )
    theta_diff: float = key(
        0.2, "Least difference of the two values (exclusive).", source="Optima table 8", ge=0
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
        "Gate: least mean task score of the rollouts through a chosen utterance. 0 is the paper's "
        "rule, by which only the reward counts.",
        ge=0,
        le=1,
    )


@dataclass(frozen=True, slots=True)
class Preference:
    """One utterance over a sibling of it."""

    chosen: Turn
    rejected: Turn
    value: float
    difference: float
    """Of the two values, above 0."""


def sibling_pairs(
    tree: Tree,
    values: Mapping[str, Valued],
    settings: PairSettings,
    score: Callable[[str], float] = lambda _: 1.0,
) -> list[Preference]:
    """The pairs of a task's tree, the chosen one of the highest value first.

    ``score(node)`` is the mean task score of the rollouts through a node, for the gate. Siblings
    without a value make no pair.
    """
    found: list[Preference] = []
    for parent in (tree.root, *tree.turns):
        children = [turn for turn in tree.children(parent) if turn.id in values]
        found += [
            pair
            for pair in _pairs(children, values, settings)
            if pair.value > settings.theta_filter
            and pair.difference > settings.theta_diff
            and (not settings.min_score or score(pair.chosen.id) >= settings.min_score)
        ]
    found.sort(key=lambda pair: (-pair.value, -pair.difference, pair.chosen.id, pair.rejected.id))
    return found[: max(int(len(found) * settings.top_share), 1)]


def _pairs(
    children: list[Turn], values: Mapping[str, Valued], settings: PairSettings
) -> list[Preference]:
    if settings.rule == "all":
        return [_pair(a, b, values) for a, b in permutations(children, 2)]
    if len(children) < 2:
        return []
    order = sorted(children, key=lambda turn: (-values[turn.id].mean, turn.id))
    return [_pair(order[0], order[-1], values)]


def _pair(chosen: Turn, rejected: Turn, values: Mapping[str, Valued]) -> Preference:
    value = values[chosen.id].mean
    return Preference(chosen, rejected, value, value - values[rejected.id].mean)
