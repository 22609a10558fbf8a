"""Rewards, against values worked out by hand (the worked example of Optima's equation 1)."""

import pytest

from coterie.rewards.combined import RewardSettings, rewards
from coterie.trajectories.tree import Outcome


def outcome(sample: int, score: float) -> Outcome:
    return Outcome(f"leaf-{sample}", sample, "agreed", "x", score)


def test_reward_is_task_minus_tokens_plus_inverse_loss() -> None:
    samples = [(outcome(0, 1.0), 80, 2.0), (outcome(1, 1.0), 160, 1.25), (outcome(2, 0.0), 50, 1.0)]
    found = rewards(samples, RewardSettings(lambda_token=0.6, lambda_loss=1.0))
    assert [r.total for r in found] == pytest.approx([1.2, 1.2, 0.8125])
    assert [r.tokens for r in found] == pytest.approx([-0.3, -0.6, -0.1875])


def test_a_weight_of_zero_removes_its_term() -> None:
    found = rewards([(outcome(0, 1.0), 10, 0.5)], RewardSettings(lambda_token=0, lambda_loss=0))
    assert found[0].total == 1.0


def test_a_loss_of_zero_gives_a_finite_reward() -> None:
    found = rewards([(outcome(0, 0.0), 10, 0.0)], RewardSettings())
    assert found[0].loss == pytest.approx(1e6)
