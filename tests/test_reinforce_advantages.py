"""From a step's paths to the advantages of their tokens: by a critic's values, and with a divergence in the reward."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from coterie.models.adapters import add_head
from coterie.models.loading import load
from coterie.record.rows import Row, Target
from coterie.record.tree import LENGTH, Ending, Outcome
from coterie.rewards.advantages import SampledPath
from coterie.rewards.dialogue_reward import PathRewardSettings
from coterie.runs.reinforce_batch import (
    AgentPath,
    StepSamples,
    critic_batch,
    group_batch,
    prepare,
)
from coterie.runs.reinforce_settings import AdvantageSettings, ReinforceSettings
from coterie.training.settings import PolicyLossSettings, TrainingSettings

ENDED = Ending("answered")


def path(
    leaf: str,
    reward: float | None,
    ending: Ending = ENDED,
    *,
    steps: Any = (),
    seen: int = 3,
    short: bool = False,
) -> AgentPath:
    """Two rows of an agent (one, of a short path), with 2 and 1 tokens of its own behind so much that it was shown."""
    shown = tuple(range(10, 10 + seen))
    first = Row((*shown, 5, 6), (Target(seen, seen + 2, "policy@0", "one"),), logprobs=(-1.0, -2.0))
    second = Row((*shown, 7), (Target(seen, seen + 1, "policy@0", "two"),), logprobs=(-3.0,))
    own = (first,) if short else (first, second)
    rows = tuple(replace(row, path_tokens=2 if short else 3) for row in own)
    sampled = SampledPath("task", leaf, reward, steps, "Ann")
    return AgentPath("task", "Ann", Outcome(leaf, 0, ending, None, reward), 2, rows, sampled)


@pytest.fixture(scope="module")
def critic() -> Any:
    """A model whose head says 0.5 of every state."""
    model = load("tiny-exchange").model
    with torch.no_grad():
        add_head(model).bias.fill_(0.5)
    return model


TRAINING = TrainingSettings(max_length=64, tokens_per_microbatch=4096)
PLAIN = AdvantageSettings(baseline="values", whiten=False)


def numbers(found: Sequence[float] | None) -> list[float]:
    assert found is not None
    return [round(value, 6) for value in found]


def test_a_critics_values_are_what_was_expected_and_a_path_that_was_cut_off_goes_on_in_them(
    critic: Any,
) -> None:
    """One reward at the end; nothing is discounted. What comes after a cut is worth what the critic says there."""
    paths = [path("ended", 1.0), path("cut", 1.0, LENGTH), path("act", 0.0, steps=((1, 2.0),))]
    found = critic_batch(
        [*paths, path("lost", None), path("long", 1.0, seen=64)], critic, TRAINING, PLAIN
    )
    assert [one.outcome.leaf for one in found.paths] == ["ended", "cut", "act"]
    advantages = [[numbers(row.advantages) for row in one.rows] for one in found.paths]
    assert advantages == [
        [[0.5, 0.5], [0.5]],
        [[1.0, 1.0], [1.0]],
        [[1.5, 1.5], [-0.5]],
    ], "a reward of an act stands at its turn, and not after it"
    returns = [[numbers(row.returns) for row in one.rows] for one in found.paths]
    assert returns == [[[1.0, 1.0], [1.0]], [[1.5, 1.5], [1.5]], [[2.0, 2.0], [0.0]]]
    assert found.counts == {"paths_failed": 1, "paths_too_long": 1}


def test_whitening_is_over_the_tokens_of_all_paths_of_the_step(critic: Any) -> None:
    settings = PLAIN.model_copy(update={"whiten": True})
    found = critic_batch([path("a", 1.0), path("b", 0.0)], critic, TRAINING, settings)
    tokens = [value for one in found.paths for row in one.rows for value in row.advantages or ()]
    assert sum(tokens) == pytest.approx(0, abs=1e-6)
    assert tokens[0] == pytest.approx((5 / 6) ** 0.5), "of six equally far from their mean"


def test_an_advantage_of_a_path_stands_on_all_its_segments_and_counts_them_once() -> None:
    found = group_batch([path("a", 1.0), path("b", 0.0)], AdvantageSettings())
    assert [[row.advantages for row in one.rows] for one in found.paths] == [
        [(0.5, 0.5), (0.5,)],
        [(-0.5, -0.5), (-0.5,)],
    ]
    assert found.counts["groups"] == 1


class Policy:
    """A learner whose reference gives each token -1.5."""

    role, version, has_moved = "policy", "0", True
    config = SimpleNamespace(agents=("Ann",))

    def with_reference(self, rows: Sequence[Row], temperature: float) -> list[Row]:
        return [replace(row, reference=(-1.5,) * row.target_count) for row in rows]


def test_a_divergence_in_the_reward_costs_each_token_what_it_is_likelier_than_the_reference_said() -> (
    None
):
    policy: Any = Policy()
    drawn = StepSamples(1, paths=[path("a", 1.0), path("b", 1.0)])
    rules = ReinforceSettings(reward=PathRewardSettings(kl=0.1))
    found = prepare(drawn, [policy], None, rules)
    costs = tuple(pytest.approx(-0.1 * (own + 1.5)) for own in (-1.0, -2.0, -3.0))
    for one in found.paths:
        assert one.sampled.steps == tuple(enumerate(costs))
        assert one.sampled.total == pytest.approx(1.0 + 0.1 * (6 - 4.5))
    assert not prepare(drawn, [policy], None, ReinforceSettings()).informative


def test_costs_make_no_group_tell_something_of_which_all_rewards_are_equal() -> None:
    policy: Any = Policy()
    rules = ReinforceSettings(reward=PathRewardSettings(kl=0.1))
    equal = [path("a", 1.0), path("b", 1.0, short=True)]
    found = prepare(StepSamples(1, paths=equal), [policy], None, rules)
    first, second = (one.rows[0].advantages for one in found.paths)
    assert first != second, "what they cost is learned from"
    assert not found.informative and found.counts["groups_flat"] == 1
    policy.has_moved = False
    found = prepare(StepSamples(1, paths=equal), [policy], None, rules)
    assert [any(one.rows[0].advantages) for one in found.paths] == [False, False], "rounding alone"
    policy.has_moved = True
    other = [path("a", 1.0), path("b", 0.0)]
    found = prepare(StepSamples(1, paths=other), [policy], None, rules)
    assert found.informative == {"task"} and found.counts["groups_flat"] == 0


def test_each_method_says_which_mean_it_takes_and_no_divergence_is_there_unless_it_is_said() -> (
    None
):
    for method in ("grpo", "dapo", "ppo"):
        text = resources.files("coterie").joinpath(f"recipes/presets/rl/{method}.yaml").read_text()
        assert yaml.safe_load(text)["common"]["loss"]["mean"] == "token"
    assert (PolicyLossSettings().kl, PathRewardSettings().kl) == (0, 0)
