"""Pairs of repeats and of ranked candidates (SWEET-RL): examples worked out by hand."""

import pytest
from pydantic import ValidationError

from coterie.selection import RankedPairSettings, ranked_pairs, trajectory_pairs


@pytest.mark.parametrize(
    ("rewards", "pairs"),
    [
        ([1.0, 0.5, 1.0], [("0", "1")]),
        ([0.9, 0.5, 0.0], []),
        ([0.2, 1.0, 0.9], [("1", "0"), ("1", "2")]),
        ([1.0, 1.0, 1.0], []),
        ([], []),
    ],
)
def test_repeats_make_pairs_of_a_full_success_and_what_is_worse(
    rewards: list[float], pairs: list[tuple[str, str]]
) -> None:
    assert trajectory_pairs([(str(i), reward) for i, reward in enumerate(rewards)]) == pairs


def test_a_lower_bar_takes_a_best_that_is_no_full_success() -> None:
    rewards = [(str(i), reward) for i, reward in enumerate([0.6, 0.8, 0.2])]
    assert trajectory_pairs(rewards, 0.5) == trajectory_pairs(rewards, 0.8)
    assert trajectory_pairs(rewards, 0.5) == [("1", "0"), ("1", "2")]
    assert trajectory_pairs(rewards, 0.9) == []


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
    with pytest.raises(ValidationError):
        RankedPairSettings(top_share=0.6)
