"""Selection by hand: demonstrations, pairs of trajectories, of candidates and of siblings, budgets over tasks."""

from typing import Any

import pytest

from coterie.record.tree import Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rewards.dialogue_reward import Reward
from coterie.rollout.dense_search import NodeValue
from coterie.rollout.tree_search import Value
from coterie.selection import (
    BudgetSettings,
    DensePairSettings,
    PairSettings,
    RankedPairSettings,
    SelectSettings,
    best_demonstrations,
    count_pairs,
    dense_pairs,
    densest,
    difference_pairs,
    first_differences,
    needed_visits,
    ranked_pairs,
    sibling_pairs,
    trajectory_pairs,
)


def reward(task: str, sample: int, total: float) -> Reward:
    return Reward(f"{task}/{sample}", sample, {"task": total, "tokens": 0.0, "loss": 0.0})


TOTALS = {"a": (0.2, 0.9), "b": (0.7, 0.7), "c": (0.4,), "d": (1.5, -1.0), "e": ()}
REWARDS = {task: [reward(task, *one) for one in enumerate(some)] for task, some in TOTALS.items()}


@pytest.mark.parametrize(
    ("settings", "leaves"),
    [
        ({"threshold": 0.5, "top_share": 1.0}, ["d/0", "a/1", "b/0"]),
        ({"threshold": 0.7, "top_share": 1.0}, ["d/0", "a/1", "b/0"]),  # the threshold is enough
        ({"threshold": 0.5, "top_share": 0.7}, ["d/0", "a/1"]),
        ({"top_share": 1.0, "skip_share": 0.34}, ["a/1", "b/0"]),  # without the easiest
    ],
)
def test_the_best_of_each_task_above_the_threshold_then_the_top_share(
    settings: dict[str, Any], leaves: list[str]
) -> None:
    chosen = best_demonstrations(REWARDS, SelectSettings(**settings))
    assert [r.leaf for _, r in chosen] == leaves


def test_the_gate_keeps_wrong_trajectories_out_whatever_their_reward() -> None:
    fluent = Reward("w", 0, {"task": 0.0, "tokens": -0.1, "loss": 5.0})
    right = Reward("r", 1, {"task": 1.0, "tokens": -0.6, "loss": 0.2})
    for settings, leaf in ((SelectSettings(), "w"), (SelectSettings(min_score=1.0), "r")):
        ((_, best),) = best_demonstrations({"a": [fluent, right]}, settings)
        assert best.leaf == leaf
    assert best_demonstrations({"a": [fluent]}, SelectSettings(min_score=1.0)) == []


# -- trees ------------------------------------------------------------------------------------

AGENT, GAME = Speaker("agent", "agent"), Speaker("environment", "environment")


def tree(*paths: str) -> tuple[Tree, dict[str, str]]:
    """The agent's turns, each path written as words with blanks between, after each of which the game speaks."""
    grown, ids = Tree("task", "rollout", 0), {}
    for path in paths:
        parent, words = grown.root, ""
        for word in path.split():
            turn = make_turn(parent, AGENT, [Part(word)])
            answer = make_turn(turn.id, GAME, [Part(f"after {word}")])
            grown.add(turn)
            grown.add(answer)
            words = f"{words} {word}".strip()
            ids[words], parent = turn.id, answer.id
    return grown, ids


EXAMPLE = {"w": 0.9, "x": 0.75, "y": 0.45, "z": 0.3, "w p": 0.65, "w q": 0.35}


@pytest.mark.parametrize(
    ("settings", "values", "pairs"),
    [
        # not w over x (0.15), not y over z (0.15); z and q are not above 0.4
        ({"theta_filter": 0.4, "theta_diff": 0.2, "top_share": 1.0}, EXAMPLE, "wz wy xz xy pq"),
        ({"rule": "best_worst", "top_share": 1.0}, EXAMPLE, "wz pq"),  # one of each parent
        ({"top_share": 0.5}, EXAMPLE, "wz wy"),  # half of five, rounded down
        ({"top_share": 0.5}, {"w": 0.9, "z": 0.1}, "wz"),  # but one pair stays
        ({}, {"w": 0.9}, ""),
        # both bounds are exclusive
        ({"theta_filter": 0.5, "theta_diff": 0.25}, {"x": 0.5, "y": 0.0}, ""),
        ({"theta_filter": 0.5, "theta_diff": 0.25}, {"x": 0.75, "y": 0.5}, ""),
        ({"theta_filter": 0.5, "theta_diff": 0.25}, {"x": 0.75, "y": 0.25}, "xy"),
        ({"min_score": 1.0, "top_share": 1.0}, {"w": 0.9, "x": 0.8, "y": 0.1}, "xy"),
    ],
)
def test_siblings_that_differ_enough_are_pairs_the_best_first(
    settings: dict[str, Any], values: dict[str, float], pairs: str
) -> None:
    grown, ids = tree("w p", "w q", "x", "y", "z")
    by_id = {ids[path]: Value(one, 1) for path, one in values.items()}
    rule, right = PairSettings(**settings), ids["x"]
    preferences = sibling_pairs(grown, by_id, rule, lambda node: float(node == right))
    assert [one.chosen.text + one.rejected.text for one in preferences] == pairs.split()


# -- SWEET-RL ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "least", "pairs"),
    [
        ([1.0, 0.5, 1.0], 1.0, [("0", "1")]),
        ([0.9, 0.5, 0.0], 1.0, []),
        ([0.2, 1.0, 0.9], 1.0, [("1", "0"), ("1", "2")]),
        ([1.0, 1.0, 1.0], 1.0, []),
        ([], 1.0, []),
        ([0.6, 0.8, 0.2], 0.8, [("1", "0"), ("1", "2")]),
    ],
)
def test_repeats_make_pairs_of_a_full_success_and_what_is_worse(
    rewards: list[float], least: float, pairs: list[tuple[str, str]]
) -> None:
    assert trajectory_pairs([(str(i), one) for i, one in enumerate(rewards)], least) == pairs


def test_pairs_of_trajectories_have_a_gap() -> None:
    rewards = [("a", 0.5), ("b", 0.75), ("c", 0.25), ("d", 0.5)]
    assert difference_pairs(rewards, 0.25) == [
        ("a", "c"),
        ("b", "a"),
        ("b", "c"),
        ("b", "d"),
        ("d", "c"),
    ]
    assert (
        difference_pairs(rewards, 0.5) == [("b", "c")] and difference_pairs(rewards[:1], 0.1) == []
    )


def test_pairs_are_drawn_from_the_best_and_the_worst_and_never_inverted() -> None:
    scores, many = {str(i): float(i % 5) for i in range(16)}, RankedPairSettings(count=200)
    pairs = ranked_pairs(scores, many, "seed")
    ranked = sorted(scores, key=lambda node: -scores[node])
    assert {chosen for chosen, _ in pairs} <= set(ranked[:8])
    assert {rejected for _, rejected in pairs} <= set(ranked[8:])
    assert all(scores[chosen] > scores[rejected] for chosen, rejected in pairs)
    assert pairs == ranked_pairs(scores, many, "seed") != ranked_pairs(scores, many, "other")
    quarter = RankedPairSettings(count=100, top_share=0.25)
    pairs = ranked_pairs({str(i): float(i) for i in range(16)}, quarter, "seed")
    assert {chosen for chosen, _ in pairs} == {"12", "13", "14", "15"}
    assert {rejected for _, rejected in pairs} == {"0", "1", "2", "3"}
    two = RankedPairSettings(count=2)
    assert ranked_pairs({"a": 1.0}, two, "seed") == []
    assert ranked_pairs({"a": 1.0, "b": 1.0}, two, "seed") == []
    # The one in the middle belongs to neither half.
    assert ranked_pairs({"a": 3.0, "b": 2.0, "c": 1.0}, two, "seed") == [("a", "c")] * 2


# -- dense trees ------------------------------------------------------------------------------


def value(mean: float, visits: int = 8, distance: float = 0.0) -> NodeValue:
    return NodeValue(mean, visits, distance)


@pytest.mark.parametrize(
    ("values", "pairs"),
    [
        ({"a": value(0.75), "b": value(0.25), "c": value(0.5)}, {"ab"}),
        ({"a": value(0.75), "b": value(0.26)}, set()),
        ({"a": value(0.0), "b": value(1.0), "c": value(0.5)}, {"ba", "bc", "ca"}),
        # Nodes that are not siblings make none.
        ({"b": value(1.0), "a d": value(0.0)}, set()),
        ({"a d": value(1.0), "a e": value(0.0)}, {"de"}),
        # A node far from the end needs more visits; both sides do.
        ({"a": value(1.0, 3, 2.0), "b": value(0.0)}, set()),
        ({"a": value(1.0, 4, 2.0), "b": value(0.0)}, {"ab"}),
        ({"a": value(1.0), "b": value(0.0, 3, 2.0)}, set()),
        # Equal texts make none.
        ({"a": value(1.0), "A": value(0.0), "b": value(0.0)}, {"ab"}),
    ],
)
def test_siblings_make_a_pair_from_the_margin_and_the_visits_on(
    values: dict[str, NodeValue], pairs: set[str]
) -> None:
    grown, ids = tree("a d", "a e", "b", "c")
    again = make_turn(grown.root, AGENT, [Part(" a ")])
    grown.add(again)
    by_id = {(ids | {"A": again.id})[path]: one for path, one in values.items()}
    preferences = dense_pairs(grown, by_id, DensePairSettings(margin=0.5, max_visits=8))
    for one in preferences:
        assert one.difference == by_id[one.chosen.id].mean - by_id[one.rejected.id].mean
    assert {one.chosen.text + one.rejected.text for one in preferences} == pairs


def test_visits_are_needed_up_to_a_bound_and_pairs_are_counted_as_they_are_found() -> None:
    assert [needed_visits(d, 8) for d in (0.0, 0.9, 1.0, 1.6, 2.0, 2.9, 3.0, 9.0, 5000.0)] == [
        1, 1, 2, 3, 4, 7, 8, 8, 8,
    ]  # fmt: skip
    values = [value(1.0), value(0.5), value(0.4), value(0.0), value(1.0, visits=1, distance=3.0)]
    # 1.0 over 0.5, 0.4 and 0.0; 0.5 over 0.0
    assert count_pairs(values, DensePairSettings(margin=0.5, max_visits=8)) == 4
    assert count_pairs(values, DensePairSettings(margin=0.6, max_visits=8)) == 2


def test_whole_runs_are_paired_where_they_first_differ() -> None:
    grown, ids = tree("a d", "a e", "b", "c")
    leaf = {path: grown.children(id_)[0].id for path, id_ in ids.items()}
    rewards = {leaf["a d"]: 1.0, leaf["a e"]: 0.0, leaf["b"]: 1.0, leaf["c"]: 0.0}
    pairs = first_differences(grown, rewards, "agent", DensePairSettings(margin=0.5))
    assert len(pairs) == 2
    better = {one.chosen.text for one in pairs}
    assert "b" in better and better & {"a", "d"}, "each run is in one pair"
    texts = {one.chosen.text + one.rejected.text for one in pairs}
    assert texts <= {"ac", "de", "bc", "ba"}
    assert {one.chosen.parent for one in pairs} == {one.rejected.parent for one in pairs}
    alike = dict.fromkeys(rewards, 1.0)
    assert first_differences(grown, alike, "agent", DensePairSettings()) == []


# -- budgets ----------------------------------------------------------------------------------

COUNTS = {"a": 40, "b": 30, "c": 20, "d": 10, "e": 0}


def kept(counts: dict[str, int], **budget: int) -> dict[str, int]:
    chosen = densest(counts, BudgetSettings.model_validate(budget), 0)
    for task, places in chosen.items():
        assert places == sorted(set(places)) and set(places) <= set(range(counts[task]))
    return {task: len(places) for task, places in chosen.items()}


def test_the_tasks_with_the_most_pairs_give_the_same_share_and_the_total_is_exact() -> None:
    assert kept(COUNTS, tasks=2) == {"a": 40, "b": 30}
    assert kept(COUNTS, pairs=50) == {"a": 20, "b": 15, "c": 10, "d": 5}
    assert kept(COUNTS, tasks=2, pairs=50) == {"a": 29, "b": 21}  # 28.6 and 21.4
    assert kept(COUNTS, tasks=2, pairs=51) == {"a": 29, "b": 22}  # 29.1 and 21.9
    assert kept({"a": 30, "b": 40}, pairs=50) == {"a": 21, "b": 29}
    for most in range(1, 101):
        assert sum(kept(COUNTS, pairs=most).values()) == most
    assert sum(kept(COUNTS, pairs=1000).values()) == 100, "there are no more"
    budget = BudgetSettings(pairs=50)
    assert densest(COUNTS, budget, 1) == densest(COUNTS, budget, 1) != densest(COUNTS, budget, 2)
