"""Selection by hand: demonstrations, pairs of trajectories, of candidates and of siblings, budgets over tasks."""

import pytest
from pydantic import ValidationError

from coterie.record.tree import Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rewards.dialogue_reward import Reward
from coterie.rollout.dense_search import NodeValue
from coterie.selection import (
    BudgetSettings,
    DensePairSettings,
    RankedPairSettings,
    SelectSettings,
    best_demonstrations,
    count_pairs,
    dense_pairs,
    densest,
    first_differences,
    needed_visits,
    ranked_pairs,
    trajectory_pairs,
)


def reward(task: str, sample: int, total: float) -> Reward:
    return Reward(f"{task}/{sample}", sample, {"task": total, "tokens": 0.0, "loss": 0.0})


REWARDS = {
    "a": [reward("a", 0, 0.2), reward("a", 1, 0.9)],
    "b": [reward("b", 0, 0.7), reward("b", 1, 0.7)],
    "c": [reward("c", 0, 0.4)],
    "d": [reward("d", 0, 1.5), reward("d", 1, -1.0)],
    "e": [],
}


def test_best_of_each_task_above_the_threshold_then_the_top_share() -> None:
    chosen = best_demonstrations(REWARDS, SelectSettings(threshold=0.5, top_share=1.0))
    assert [r.leaf for _, r in chosen] == ["d/0", "a/1", "b/0"]
    chosen = best_demonstrations(REWARDS, SelectSettings(threshold=0.5, top_share=0.7))
    assert [r.leaf for _, r in chosen] == ["d/0", "a/1"]
    chosen = best_demonstrations(REWARDS, SelectSettings(threshold=0.7, top_share=1.0))
    assert [r.leaf for _, r in chosen] == ["d/0", "a/1", "b/0"], "the threshold is enough"


def test_the_easiest_can_be_left_out() -> None:
    chosen = best_demonstrations(REWARDS, SelectSettings(top_share=1.0, skip_share=0.34))
    assert [r.leaf for _, r in chosen] == ["a/1", "b/0"]
    with pytest.raises(ValidationError, match="skip_share"):
        SelectSettings(top_share=0.5, skip_share=0.5)


def test_the_gate_keeps_wrong_trajectories_out_whatever_their_reward() -> None:
    fluent = Reward("w", 0, {"task": 0.0, "tokens": -0.1, "loss": 5.0})
    right = Reward("r", 1, {"task": 1.0, "tokens": -0.6, "loss": 0.2})
    paper = best_demonstrations({"a": [fluent, right]}, SelectSettings())
    assert [r.leaf for _, r in paper] == ["w"]
    gated = best_demonstrations({"a": [fluent, right]}, SelectSettings(min_score=1.0))
    assert [r.leaf for _, r in gated] == ["r"]
    assert best_demonstrations({"a": [fluent]}, SelectSettings(min_score=1.0)) == []


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
        ([0.6, 0.8, 0.2], 0.9, []),
    ],
)
def test_repeats_make_pairs_of_a_full_success_and_what_is_worse(
    rewards: list[float], least: float, pairs: list[tuple[str, str]]
) -> None:
    assert trajectory_pairs([(str(i), one) for i, one in enumerate(rewards)], least) == pairs


def test_halves_never_invert_the_scores() -> None:
    scores = {str(i): float(i % 5) for i in range(16)}
    found = ranked_pairs(scores, RankedPairSettings(count=200), "seed")
    ranked = sorted(scores, key=lambda node: -scores[node])
    assert {chosen for chosen, _ in found} <= set(ranked[:8])
    assert {rejected for _, rejected in found} <= set(ranked[8:])
    assert all(scores[chosen] > scores[rejected] for chosen, rejected in found)
    assert found == ranked_pairs(scores, RankedPairSettings(count=200), "seed")
    assert found != ranked_pairs(scores, RankedPairSettings(count=200), "other")


def test_a_smaller_share_leaves_the_middle_out() -> None:
    scores = {str(i): float(i) for i in range(16)}
    found = ranked_pairs(scores, RankedPairSettings(count=100, top_share=0.25), "seed")
    assert {chosen for chosen, _ in found} == {"12", "13", "14", "15"}
    assert {rejected for _, rejected in found} == {"0", "1", "2", "3"}


def test_odd_numbers_one_candidate_and_equal_scores() -> None:
    assert ranked_pairs({"a": 1.0}, RankedPairSettings(), "seed") == []
    assert ranked_pairs({"a": 1.0, "b": 1.0}, RankedPairSettings(), "seed") == []
    two = ranked_pairs({"a": 1.0, "b": 2.0}, RankedPairSettings(count=2), "seed")
    assert two == [("b", "a"), ("b", "a")]
    odd = ranked_pairs({"a": 3.0, "b": 2.0, "c": 1.0}, RankedPairSettings(count=1), "seed")
    assert odd == [("a", "c")]  # the one in the middle belongs to neither half


# -- dense trees ------------------------------------------------------------------------------

AGENT, GAME = Speaker("agent", "agent"), Speaker("environment", "environment")


def tree(*paths: str) -> tuple[Tree, dict[str, str]]:
    """The agent's turns, each path written as words with blanks between, after each of which the game speaks."""
    found, ids = Tree("task", "rollout", 0), {}
    for path in paths:
        parent, said = found.root, ""
        for word in path.split():
            turn = make_turn(parent, AGENT, [Part(word)])
            answer = make_turn(turn.id, GAME, [Part(f"after {word}")])
            found.add(turn)
            found.add(answer)
            said = f"{said} {word}".strip()
            ids[said], parent = turn.id, answer.id
    return found, ids


def value(mean: float, visits: int = 8, distance: float = 0.0) -> NodeValue:
    return NodeValue(mean, visits, distance)


def pairs(settings: DensePairSettings, **values: NodeValue) -> set[tuple[str, str]]:
    """Pairs (chosen, rejected) of a tree whose first step is a, b or c, and whose a leads to d or e."""
    grown, ids = tree("a d", "a e", "b", "c")
    by_id = {ids[word.replace("_", " ")]: one for word, one in values.items()}
    found = dense_pairs(grown, by_id, settings)
    for one in found:
        assert one.difference == by_id[one.chosen.id].mean - by_id[one.rejected.id].mean
    return {(one.chosen.text, one.rejected.text) for one in found}


def test_siblings_make_a_pair_from_the_margin_on() -> None:
    rule = DensePairSettings(margin=0.5, max_visits=8)
    assert pairs(rule, a=value(0.75), b=value(0.25), c=value(0.5)) == {("a", "b")}
    assert pairs(rule, a=value(0.75), b=value(0.26)) == set()
    assert pairs(rule, a=value(0.0), b=value(1.0), c=value(0.5)) == {
        ("b", "a"), ("b", "c"), ("c", "a"),
    }  # fmt: skip


def test_nodes_that_are_not_siblings_make_none() -> None:
    rule = DensePairSettings(margin=0.5, max_visits=8)
    assert pairs(rule, b=value(1.0), a_d=value(0.0)) == set()
    assert pairs(rule, a_d=value(1.0), a_e=value(0.0)) == {("d", "e")}


def test_a_node_far_from_the_end_needs_more_visits_up_to_a_bound() -> None:
    assert [needed_visits(d, 8) for d in (0.0, 0.9, 1.0, 1.6, 2.0, 2.9, 3.0, 9.0)] == [
        1, 1, 2, 3, 4, 7, 8, 8,
    ]  # fmt: skip
    assert needed_visits(5000.0, 8) == 8
    rule = DensePairSettings(margin=0.5, max_visits=8)
    far = value(1.0, visits=3, distance=2.0)
    assert pairs(rule, a=far, b=value(0.0)) == set()
    assert pairs(rule, a=value(1.0, visits=4, distance=2.0), b=value(0.0)) == {("a", "b")}
    worse = value(0.0, visits=3, distance=2.0)
    assert pairs(rule, a=value(1.0), b=worse) == set(), "both sides need their visits"


def test_equal_texts_make_no_pair() -> None:
    grown, ids = tree("a", "b")
    again = make_turn(grown.root, AGENT, [Part(" a ")])
    grown.add(again)
    values = {ids["a"]: value(1.0), again.id: value(0.0), ids["b"]: value(0.0)}
    found = dense_pairs(grown, values, DensePairSettings())
    assert [(one.chosen.id, one.rejected.id) for one in found] == [(ids["a"], ids["b"])]
    assert found[0].difference == 1.0


def test_pairs_are_counted_as_they_are_found() -> None:
    values = [value(1.0), value(0.5), value(0.4), value(0.0), value(1.0, visits=1, distance=3.0)]
    rule = DensePairSettings(margin=0.5, max_visits=8)
    assert count_pairs(values, rule) == 4  # 1.0 over 0.5, 0.4 and 0.0; 0.5 over 0.0
    assert count_pairs(values, DensePairSettings(margin=0.6, max_visits=8)) == 2


def test_whole_runs_are_paired_where_they_first_differ() -> None:
    grown, ids = tree("a d", "a e", "b", "c")
    leaf = {path: grown.children(id_)[0].id for path, id_ in ids.items()}
    rewards = {leaf["a d"]: 1.0, leaf["a e"]: 0.0, leaf["b"]: 1.0, leaf["c"]: 0.0}
    found = first_differences(grown, rewards, "agent", DensePairSettings(margin=0.5))
    assert len(found) == 2
    better = {one.chosen.text for one in found}
    assert "b" in better and better & {"a", "d"}, "each run is in one pair"
    said = {(one.chosen.text, one.rejected.text) for one in found}
    assert said <= {("a", "c"), ("d", "e"), ("b", "c"), ("b", "a")}
    assert {one.chosen.parent for one in found} == {one.rejected.parent for one in found}
    alike = dict.fromkeys(rewards, 1.0)
    assert first_differences(grown, alike, "agent", DensePairSettings()) == []


# -- budgets ----------------------------------------------------------------------------------

COUNTS = {"a": 40, "b": 30, "c": 20, "d": 10, "e": 0}


def kept(seed: int = 0, **values: int) -> dict[str, int]:
    found = densest(COUNTS, BudgetSettings.model_validate(values), seed)
    for task, places in found.items():
        assert places == sorted(set(places)) and set(places) <= set(range(COUNTS[task]))
    return {task: len(places) for task, places in found.items()}


def test_the_tasks_with_the_most_pairs_are_kept() -> None:
    assert kept(tasks=2) == {"a": 40, "b": 30}
    assert set(densest({"a": 1, "b": 4, "c": 2, "d": 3}, BudgetSettings(tasks=2), 0)) == {"b", "d"}


def test_each_task_gives_the_same_share_and_the_total_is_exact() -> None:
    assert kept(pairs=50) == {"a": 20, "b": 15, "c": 10, "d": 5}
    assert kept(tasks=2, pairs=50) == {"a": 29, "b": 21}  # 28.6 and 21.4
    assert kept(tasks=2, pairs=51) == {"a": 29, "b": 22}  # 29.1 and 21.9
    turned = densest({"a": 30, "b": 40}, BudgetSettings(pairs=50), 0)
    assert {task: len(places) for task, places in turned.items()} == {"a": 21, "b": 29}
    for most in range(1, 101):
        assert sum(kept(pairs=most).values()) == most
    assert sum(kept(pairs=1000).values()) == 100, "there are no more"


def test_what_is_kept_depends_on_the_seed() -> None:
    budget = BudgetSettings(pairs=50)
    assert densest(COUNTS, budget, 1) == densest(COUNTS, budget, 1)
    assert densest(COUNTS, budget, 1) != densest(COUNTS, budget, 2)
