"""Pairs of siblings of a dialogue tree (Optima): examples worked out by hand."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from coterie.record.tree import Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.tree_search import Value
from coterie.selection import PairSettings, sibling_pairs

ALICE = Speaker("agent", "Alice")
VALUES = {"a": 0.9, "b": 0.5, "c": 0.1, "a1": 1.0, "a2": 0.6, "only": 2.0}
PAPER = {"theta_filter": 0.4, "theta_diff": 0.2}


def a_tree() -> tuple[Tree, dict[str, str]]:
    """Three ways to begin, two ways to go on after the best of them, one after the second; ids by text."""
    tree, ids = Tree("t", "rollout", 0), {}
    for text, parent in (
        ("b", ""),
        ("a", ""),
        ("c", ""),
        ("none", ""),
        ("a2", "a"),
        ("a1", "a"),
        ("only", "b"),
    ):
        turn = make_turn(ids[parent] if parent else tree.root, ALICE, [Part(text)])
        tree.add(turn)
        ids[text] = turn.id
    return tree, ids


def pairs(score: Callable[[str], float] | None = None, **settings: object) -> list[tuple[str, str]]:
    """(chosen, rejected) of that tree."""
    tree, ids = a_tree()
    values = {ids[text]: Value(value, 1) for text, value in VALUES.items()}
    text = {id_: text for text, id_ in ids.items()}
    chosen = PairSettings(**settings)
    scores = () if score is None else (lambda id_: score(text[id_]),)
    found = sibling_pairs(tree, values, chosen, *scores)
    for pair in found:
        assert pair.value == VALUES[pair.chosen.text]
        assert pair.difference == pytest.approx(pair.value - VALUES[pair.rejected.text])
    return [(pair.chosen.text, pair.rejected.text) for pair in found]


def test_any_two_siblings_are_a_pair_and_the_best_come_first() -> None:
    whole = [("a1", "a2"), ("a", "c"), ("a", "b"), ("b", "c")]
    assert pairs(**PAPER, top_share=1.0) == whole
    assert pairs(**PAPER, top_share=0.5) == whole[:2]
    assert pairs(**PAPER, top_share=0.6) == whole[:2]
    assert pairs(**PAPER, top_share=0.1) == whole[:1], "at least one"


def test_the_code_of_the_paper_pairs_the_best_child_with_the_worst() -> None:
    found = pairs(**PAPER, rule="best_worst", top_share=1.0)
    assert found == [("a1", "a2"), ("a", "c")]


def test_thresholds_are_exclusive() -> None:
    assert pairs(theta_filter=0.9, theta_diff=0.0, top_share=1.0) == [("a1", "a2")]
    assert pairs(theta_filter=0.0, theta_diff=0.4, top_share=1.0) == [("a", "c")]
    assert pairs(theta_filter=1.0, theta_diff=0.0, top_share=1.0) == []


def test_the_gate_asks_for_the_score_of_the_chosen_one() -> None:
    asked = []

    def score(text: str) -> float:
        asked.append(text)
        return 0.5 if text == "a" else 0.0

    settings = {**PAPER, "top_share": 1.0}
    assert pairs(score, **settings, min_score=0.5) == [("a", "c"), ("a", "b")]
    assert set(asked) == {"a1", "a", "b"}
    asked.clear()
    assert len(pairs(score, **settings)) == 4
    assert asked == [], "without a gate only rewards count"


def test_the_settings_are_those_of_the_paper_and_within_bounds() -> None:
    settings = PairSettings()
    assert (settings.rule, settings.top_share) == ("all", 0.5)
    assert (settings.theta_filter, settings.theta_diff, settings.min_score) == (0.4, 0.2, 0.0)
    for bad in (
        {"rule": "best"}, {"theta_diff": -0.1}, {"top_share": 0}, {"top_share": 1.1},
        {"min_score": -0.1}, {"min_score": 1.1},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            PairSettings(**bad)
