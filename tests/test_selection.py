"""Which trajectories are selected."""

import pytest
from pydantic import ValidationError

from coterie.rewards.dialogue_reward import Reward
from coterie.selection import SelectSettings, best_demonstrations, random_demonstrations


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


def test_random_takes_as_many_as_asked_one_a_task_and_repeats() -> None:
    chosen = random_demonstrations(REWARDS, 3, seed=1)
    assert chosen == random_demonstrations(REWARDS, 3, seed=1)
    assert len({task for task, _ in chosen}) == 3
    assert len(random_demonstrations(REWARDS, 99, seed=1)) == 4


def test_counts_go_with_random_only() -> None:
    with pytest.raises(ValidationError, match="counts"):
        SelectSettings(rule="random")
    with pytest.raises(ValidationError, match="counts"):
        SelectSettings(rule="best", counts=(3,))
