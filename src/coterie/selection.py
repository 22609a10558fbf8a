"""Selection: which nodes of the trees are trained on, as references to them.

Optima (arXiv 2410.08115), algorithms 1 (demonstrations; the released code takes the top share before the threshold) and
5 (siblings); SWEET-RL (arXiv 2503.15478), sections 4.2 (trajectories) and 4.3 (candidates); DensePolicy's code.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.record.tree import LeftOut, Tree
from coterie.record.turn import Turn

# Recipes have different classes for these; only the named attributes are read.
Rewarded = Any
"""A trajectory with its ``sample`` number, ``total`` reward and ``score``."""
NodeValue = Any
"""Value of a node: ``mean`` reward, ``visits``, and ``distance`` (mean number of agent turns to the end)."""


class SelectSettings(Settings):
    """Selection of trajectories to train on."""

    top_share: float = key(
        0.7,
        "Share of the selected tasks to keep, by reward.",
        source="Optima section 3.2",
        gt=0,
        le=1,
    )
    skip_share: float = key(
        0.0,
        "Share of the selected tasks with the highest rewards to exclude as too easy.",
        source="Optima's code: 0.1 on MATH",
        ge=0,
        lt=1,
    )
    threshold: float = key(
        0.5, "Minimum reward of a selected trajectory (theta_sft).", source="Optima table 8"
    )
    min_score: float = key(
        0.0,
        "Minimum task score of a selected trajectory, whatever its reward. 0: only the reward counts, as in the "
        "paper; 1: no wrong trajectory is selected.",
        ge=0,
        le=1,
    )

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.skip_share >= self.top_share:
            raise ValueError("select.skip_share must be below select.top_share")
        return self


def best_demonstrations(
    rewards: Mapping[str, Sequence[Rewarded]], settings: SelectSettings
) -> list[tuple[str, Rewarded]]:
    """Return the selected (task, trajectory), highest reward first; ties to the earlier sample and smaller task id."""
    # Optima, algorithm 1: the best trajectory of each task, if its reward reaches theta_sft.
    # Sorting by task id after the reward makes the selection independent of the order of the tasks.
    eligible = {
        task: [r for r in rs if r.score >= settings.min_score] for task, rs in rewards.items()
    }
    best = {
        task: min(rs, key=lambda r: (-r.total, r.sample)) for task, rs in eligible.items() if rs
    }
    passed = [(task, r) for task, r in best.items() if r.total >= settings.threshold]
    passed.sort(key=lambda item: (-item[1].total, item[0]))
    # The shares are of the tasks that passed the threshold; the released code takes them of all.
    start, stop = (round(len(passed) * s) for s in (settings.skip_share, settings.top_share))
    return passed[start:stop]


def without_demonstration(
    rewards: Mapping[str, Sequence[Rewarded]],
    selected: Sequence[tuple[str, Rewarded]],
    settings: SelectSettings,
) -> list[LeftOut]:
    """Return the trajectories that :func:`best_demonstrations` did not select, with their rewards."""
    best, left_out = dict(selected), list[LeftOut]()
    for task, trajectories in rewards.items():
        for trajectory in trajectories:
            reason = "not_best" if task in best else "outside_share"
            if trajectory.score < settings.min_score:
                reason = "below_min_score"
            elif trajectory.total < settings.threshold:
                reason = "below_threshold"
            if trajectory is not best.get(task):
                left_out.append(LeftOut(task, trajectory.leaf, reason, number=trajectory.total))
    return left_out


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
    values: Mapping[str, NodeValue],
    settings: PairSettings,
    score: Callable[[str], float] = lambda _: 1.0,
) -> list[Preference]:
    """Return the pairs of a tree, the highest chosen value first; ``score`` is a node's mean task score."""
    pairs: list[Preference] = []
    for parent in (tree.root, *tree.turns):
        # Siblings have the same context, so they differ in one utterance only. Nodes without a
        # value were never rolled out.
        children = [turn for turn in tree.children(parent) if turn.id in values]
        order = sorted(children, key=lambda turn: (-values[turn.id].mean, turn.id))
        best_worst = [(order[0], order[-1])] if len(order) > 1 else []
        # Both orders of each pair: the condition of the difference below keeps at most one.
        sides = permutations(children, 2) if settings.rule == "all" else best_worst
        for chosen, rejected in sides:
            value = values[chosen.id].mean
            difference = value - values[rejected.id].mean
            # Optima, algorithm 5: the better one is good, and clearly better.
            differ = value > settings.theta_filter and difference > settings.theta_diff
            if differ and (not settings.min_score or score(chosen.id) >= settings.min_score):
                pairs.append(Preference(chosen, rejected, value, difference))
    pairs.sort(key=lambda pair: (-pair.value, -pair.difference, pair.chosen.id, pair.rejected.id))
    # The top share is of one tree, so that easy tasks do not supply all pairs.
    return pairs[: max(int(len(pairs) * settings.top_share), 1)]


def unpaired(
    tree: Tree,
    values: Mapping[str, NodeValue],
    pairs: Sequence[Preference],
    reason_of: Callable[[Preference], tuple[str, float | None]],
) -> list[LeftOut]:
    """Return the turns with siblings that are in no pair.

    ``reason_of`` returns why a turn is no pair with its most different sibling, and the number that decided.
    """
    paired = {turn.id for pair in pairs for turn in (pair.chosen, pair.rejected)}
    left_out = list[LeftOut]()
    for parent in (tree.root, *tree.turns):
        siblings = [turn for turn in tree.children(parent) if turn.id in values]
        siblings.sort(key=lambda turn: -values[turn.id].mean)
        for turn in siblings if len(siblings) > 1 else ():
            sides = [(siblings[0], turn), (turn, siblings[-1])]
            means = [(values[better.id].mean, values[worse.id].mean) for better, worse in sides]
            candidates = [
                Preference(*turns, value, value - other)
                for turns, (value, other) in zip(sides, means, strict=True)
            ]
            if turn.id not in paired:
                reason, number = reason_of(max(candidates, key=lambda pair: pair.difference))
                left_out.append(LeftOut(tree.task, turn.id, reason, turn.speaker.name, number))
    return left_out


def sibling_reason(
    settings: PairSettings, score: Callable[[str], float], pair: Preference
) -> tuple[str, float | None]:
    """Return why two siblings are no pair of :func:`sibling_pairs`."""
    if pair.value <= settings.theta_filter:
        return "below_filter", pair.value
    if pair.difference <= settings.theta_diff:
        return "small_difference", pair.difference
    if settings.min_score and score(pair.chosen.id) < settings.min_score:
        return "below_min_score", score(pair.chosen.id)
    return ("outside_share" if settings.rule == "all" else "not_best_or_worst"), None


class RankedPairSettings(Settings):
    """Pairs of a turn's candidates."""

    count: int = key(
        4,
        "Number of pairs of a turn, drawn with replacement.",
        source="SWEET-RL's commands: 4 (code: 8)",
        ge=1,
    )
    top_share: float = key(
        0.5,
        "Share of the best candidates to draw chosen ones from; rejected ones are drawn from the same share of the "
        "worst.",
        source="SWEET-RL section 4.3: 0.5",
        gt=0,
        le=0.5,
    )


def trajectory_pairs(
    rewards: Sequence[tuple[str, float]], min_reward: float = 1.0
) -> list[tuple[str, str]]:
    """Return (chosen, rejected) leaves of a task's trajectories, given (leaf, reward in [0, 1]) in order.

    Chosen is the first trajectory of the highest reward, if it is at least ``min_reward`` (1: full success). Each
    trajectory with a lower reward is rejected once.
    """
    if not rewards:
        return []
    best = max(reward for _, reward in rewards)
    if best < min_reward:
        return []
    # One chosen side for all pairs of a task, the first of equally good ones.
    chosen = next(leaf for leaf, reward in rewards if reward == best)
    return [(chosen, leaf) for leaf, reward in rewards if reward < best]


def difference_pairs(
    rewards: Sequence[tuple[str, float]], min_difference: float
) -> list[tuple[str, str]]:
    """Return all (chosen, rejected) leaves of a task whose rewards differ by at least ``min_difference``."""
    return [
        (chosen, rejected)
        for (chosen, best), (rejected, worse) in permutations(rewards, 2)
        if best - worse >= min_difference
    ]


def ranked_pairs(
    scores: Mapping[str, float], settings: RankedPairSettings, seed: str
) -> list[tuple[str, str]]:
    """Draw (chosen, rejected) candidates of one turn from the best and the worst ones, without equal scores."""
    ranking = sorted(scores, key=lambda node: -scores[node])
    # With two or three candidates, a share of one half is one candidate.
    share = max(1, int(len(ranking) * settings.top_share))
    if len(ranking) < 2:
        return []
    best, worst = ranking[:share], ranking[-share:]
    # Seeded by the turn, so that its pairs do not depend on other turns.
    rng = random.Random(seed)
    pairs = [(rng.choice(best), rng.choice(worst)) for _ in range(settings.count)]
    # Candidates of equal score may be in both halves.
    return [(chosen, rejected) for chosen, rejected in pairs if scores[chosen] > scores[rejected]]


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


def needed_visits(distance: float, limit: int) -> int:
    """Return the number of visits that make a node's value reliable."""
    # A node far from the end has more possible continuations, so its mean needs more rollouts. The
    # inner minimum avoids an overflow for long paths.
    return min(int(2.0 ** min(distance, 62.0)), limit)


def qualify(better: NodeValue, worse: NodeValue, settings: DensePairSettings) -> bool:
    """Return True if siblings with these values, the better one first, are a pair."""
    return better.mean - worse.mean >= settings.margin and all(
        node.visits >= needed_visits(node.distance, settings.max_visits) for node in (better, worse)
    )


def count_pairs(values: Sequence[NodeValue], settings: DensePairSettings) -> int:
    """Count the pairs among a node's children, if all their texts differ."""
    # `combinations` keeps the order, so the better one of a pair comes first.
    order = sorted(values, key=lambda node: -node.mean)
    return sum(qualify(better, worse, settings) for better, worse in combinations(order, 2))


def dense_pairs(
    tree: Tree, values: Mapping[str, NodeValue], settings: DensePairSettings
) -> list[Preference]:
    """Return all pairs of siblings of a tree that qualify, in the order of their parents."""
    pairs: list[Preference] = []
    for parent in (tree.root, *tree.turns):
        children = [turn for turn in tree.children(parent) if turn.id in values]
        order = sorted(children, key=lambda turn: -values[turn.id].mean)
        for better, worse in combinations(order, 2):
            better_value, worse_value = values[better.id], values[worse.id]
            # Two draws of the same text may have different values by chance; they would teach nothing.
            if qualify(better_value, worse_value, settings) and not _same_text(better, worse):
                pairs.append(
                    Preference(
                        better, worse, better_value.mean, better_value.mean - worse_value.mean
                    )
                )
    return pairs


def dense_reason(
    values: Mapping[str, NodeValue], settings: DensePairSettings, pair: Preference
) -> tuple[str, float | None]:
    """Return why two siblings are no pair of :func:`dense_pairs`."""
    better, worse = values[pair.chosen.id], values[pair.rejected.id]
    if pair.difference < settings.margin:
        return "small_margin", pair.difference
    if not qualify(better, worse, settings):
        return "few_visits", min(better.visits, worse.visits)
    return "equal_text", None


def first_differences(
    tree: Tree, rewards: Mapping[str, float], agent: str, settings: DensePairSettings
) -> list[Preference]:
    """Pair the best rollout with the worst, the second best with the second worst, ..., where the agent first differs.

    ``rewards`` are by leaf. The rewards of a pair differ by the margin.
    """
    order = sorted(rewards, key=lambda leaf: (-rewards[leaf], leaf))
    pairs: list[Preference] = []
    # Differences become smaller from pair to pair, and negative in the second half.
    for better, worse in zip(order, reversed(order), strict=True):
        difference = rewards[better] - rewards[worse]
        if difference < settings.margin:
            break
        turns = _first_difference(tree, better, worse, agent)
        if turns is not None and not _same_text(*turns):
            pairs.append(Preference(*turns, rewards[better], difference))
    return pairs


def _first_difference(
    tree: Tree, leaf: str, other_leaf: str, agent: str
) -> tuple[Turn, Turn] | None:
    for turn, other_turn in zip(tree.path(leaf), tree.path(other_leaf), strict=False):
        if turn.id != other_turn.id:
            # After a different observation the contexts differ, so later turns are no alternatives.
            by_agent = turn.speaker.name == other_turn.speaker.name == agent
            return (turn, other_turn) if by_agent else None
    return None


def _same_text(turn: Turn, other_turn: Turn) -> bool:
    return turn.text.strip() == other_turn.text.strip()


class BudgetSettings(Settings):
    """Numbers of pairs and tasks to train on."""

    tasks: int | None = key(
        None,
        "Number of tasks to take pairs from, those with the most pairs. None: all.",
        source="DensePolicy: MATH 347, AlfWorld cool 20 and put 24, BabyAI 19",
        ge=1,
    )
    pairs: int | None = key(
        None,
        "Total number of pairs; each task keeps the same share of its own. None: all.",
        source="DensePolicy: MATH 22331, AlfWorld cool 665 and put 1170, BabyAI 908",
        ge=1,
    )


def densest(counts: Mapping[str, int], settings: BudgetSettings, seed: int) -> dict[str, list[int]]:
    """Return the indices of the pairs to keep for each task, given the number of pairs of each."""
    # Tasks with the most pairs first; ties by id.
    order = sorted((task for task in counts if counts[task]), key=lambda t: (-counts[t], t))
    available = {task: counts[task] for task in order[: settings.tasks]}
    total = sum(available.values())
    budget = total if settings.pairs is None else min(settings.pairs, total)
    return {
        # Seeded by task, so that the choice for a task does not depend on the others.
        task: sorted(random.Random(f"budget/{seed}/{task}").sample(range(available[task]), share))
        for task, share in _shares(available, budget).items()
    }


def _shares(counts: Mapping[str, int], budget: int) -> dict[str, int]:
    """Divide the budget in proportion to the counts, rounding up the largest remainders."""
    total = sum(counts.values())
    if budget == total:
        return dict(counts)
    # Integers, so that the shares add up to the budget exactly.
    shares = {task: count * budget // total for task, count in counts.items()}
    remainder = budget - sum(shares.values())
    for task in sorted(counts, key=lambda t: (-(counts[t] * budget % total), t))[:remainder]:
        shares[task] += 1
    return {task: share for task, share in shares.items() if share}
