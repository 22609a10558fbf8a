"""From a step's paths to the advantages of their tokens, to minibatches, and what is left out of them and counted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.errors import UserError
from coterie.models.adapters import add_head
from coterie.models.loading import load
from coterie.recipes.rl import (
    critic_batch,
    critics_batch,
    group_batch,
    minibatches,
    prepare,
    update,
)
from coterie.record.rows import Row, Target
from coterie.record.tree import LENGTH, Ending, LeftOut, Outcome
from coterie.rewards.advantages import SampledPath
from coterie.rewards.dialogue_reward import PathRewardSettings
from coterie.runs.joint_critic import JointPath
from coterie.runs.reinforce_batch import (
    AgentPath,
    StepBatch,
    StepSamples,
    distribution_metrics,
    informative_tasks,
    role_metrics,
)
from coterie.runs.reinforce_record import LEFT_OUT
from coterie.runs.reinforce_settings import (
    AdvantageSettings,
    GroupSettings,
    ReinforceSettings,
    StepSettings,
)
from coterie.training.policy_gradient import PolicyGradient
from coterie.training.settings import PolicyLossSettings, TrainingSettings
from experiments.gap import EXPERT, tiny

TRAINING = TrainingSettings(max_length=64, tokens_per_microbatch=4096)
PLAIN = AdvantageSettings(baseline="values", normalize=False)
COSTS = ReinforceSettings(reward=PathRewardSettings(kl_coef=0.1))
ENDED = Ending("answered")


def path(
    leaf: str,
    reward: float | None,
    *writers: str,
    task: str = "task",
    agent: str = "Ann",
    ending: Ending = ENDED,
    steps: Any = (),
    seen: int = 3,
) -> AgentPath:
    """A row of each writer after ``seen`` observed tokens: two tokens in the first row, one in each other."""
    rows = []
    for number, writer in enumerate(writers or ("policy@0", "policy@0")):
        own, logprobs = ((7,), (-3.0,)) if number else ((5, 6), (-1.0, -2.0))
        target = Target(seen, seen + len(own), writer, f"{leaf}/{number}")
        rows.append(Row((*range(10, 10 + seen), *own), (target,), logprobs))
    tokens = sum(row.target_count for row in rows)
    sampled = SampledPath(task, leaf, reward, steps, agent)
    outcome, count = Outcome(leaf, 0, ending, None, reward), len(rows)
    own_rows = tuple(replace(row, path_tokens=tokens) for row in rows)
    return AgentPath(task, agent, outcome, count, own_rows, sampled)


class Policy:
    """A learner without a model, whose reference gives each token -1.5; notes what it is trained on."""

    longest, left_out, is_trained = 9, 0, True

    def __init__(
        self, version: str = "0", role: str = "policy", init_from: str | None = None
    ) -> None:
        self.version, self.role = version, role
        self.config = SimpleNamespace(
            agents=("Ann",), init_from=init_from, objective=PolicyGradient()
        )
        self.trainer = self
        self.steps: list[list[Row]] = []

    def with_reference(self, rows: Sequence[Row], temperature: float) -> list[Row]:
        return [replace(row, reference=(-1.5,) * row.target_count) for row in rows]

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        self.steps.append([*rows])
        return {"loss": 1.0}

    def leave_out(self, too_long: int, empty: int) -> None:
        self.left_out += too_long + empty


def prepared(
    paths: Sequence[AgentPath],
    rules: ReinforceSettings | None = None,
    version: str = "0",
    is_trained: bool = True,
) -> StepBatch:
    policy: Any = Policy(version)
    policy.is_trained = is_trained
    batch = prepare(StepSamples(1, paths=[*paths]), [policy], (), rules or ReinforceSettings())
    assert_named(batch)
    return batch


def assert_named(batch: StepBatch) -> None:
    """Check that everything that a metric counts is named under the name of the metric."""
    reasons = Counter(entry.reason for entry in batch.left_out)
    names = {*LEFT_OUT, "groups_equal"} & batch.counts.keys()
    assert names, "something is counted"
    assert {name: reasons[name] for name in names} == {name: batch.counts[name] for name in names}


def advantages(batch: StepBatch) -> dict[str, list[Any]]:
    return {one.outcome.leaf: [row.advantages for row in one.rows] for one in batch.paths}


# -- a critic ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def critic() -> Any:
    """A model whose head says 0.5 of every state."""
    model = load("tiny-exchange").model
    with torch.no_grad():
        add_head(model).bias.fill_(0.5)
    return model


def numbers(values: Sequence[float] | None) -> list[float]:
    return [round(value, 6) for value in values or ()]


def test_a_critics_values_are_expected_and_go_on_after_a_path_that_was_cut_off(critic: Any) -> None:
    """One reward at the end; nothing is discounted. What comes after a cut is worth what the critic says there."""
    paths = [path("ended", 1.0), path("cut", 1.0, ending=LENGTH)]
    paths += [path("act", 0.0, steps=((1, 2.0),)), path("lost", None), path("long", 1.0, seen=64)]
    batch = critic_batch(paths, critic, TRAINING, PLAIN)
    rows = {one.outcome.leaf: one.rows for one in batch.paths}
    assert {leaf: [numbers(row.advantages) for row in own] for leaf, own in rows.items()} == {
        "ended": [[0.5, 0.5], [0.5]],
        "cut": [[1.0, 1.0], [1.0]],
        "act": [[1.5, 1.5], [-0.5]],
    }, "a reward of an act stands at its turn, and not after it"
    returns = [[numbers(row.returns) for row in own] for own in rows.values()]
    assert returns == [[[1.0, 1.0], [1.0]], [[1.5, 1.5], [1.5]], [[2.0, 2.0], [0.0]]]
    assert batch.counts == {"paths_failed": 1, "paths_too_long": 1}
    assert [(entry.node, entry.reason) for entry in batch.left_out] == [
        ("lost", "paths_failed"),
        ("long", "paths_too_long"),
    ]


def test_whitening_is_over_the_tokens_of_all_paths_of_the_step(critic: Any) -> None:
    settings = PLAIN.model_copy(update={"normalize": True})
    batch = critic_batch([path("a", 1.0), path("b", 0.0)], critic, TRAINING, settings)
    tokens = [value for one in batch.paths for row in one.rows for value in row.advantages or ()]
    assert sum(tokens) == pytest.approx(0, abs=1e-6)
    assert tokens[0] == pytest.approx((5 / 6) ** 0.5), "of six equally far from their mean"


def test_each_role_has_the_advantages_of_its_own_critic(critic: Any) -> None:
    """Ann's critic expects 0.5 everywhere, and Ben's 2.0; lambda is 1/2.

    Ann gets 1 at her last token of three: delta = 0, 0, 1/2, so A = 1/8, 1/4, 1/2. Ben gets 4: delta = 0, 0, 2. Cleo's
    rewards never differed, so what her critic (0.5) expects of them teaches the policy nothing.
    """
    other = load("tiny-exchange").model
    with torch.no_grad():
        add_head(other).bias.fill_(2.0)
    rewards, policies, critics = {"Ann": 1.0, "Cleo": 1.0, "Ben": 4.0}, list[Any](), list[Any]()
    for name in rewards:
        policies.append(Policy(role=name))
        policies[-1].config.agents = (name,)
        critics.append(Policy(role=f"critic-{name}", init_from=name))
        critics[-1].scorer = other if name == "Ben" else critic
        critics[-1].config.settings = TRAINING
    paths = [path(name, reward, agent=name) for name, reward in rewards.items()]
    settings = PLAIN.model_copy(update={"gae_lambda": 0.5})
    batch = critics_batch(paths, policies, critics, settings, {"Cleo"})
    rows = {
        agent_path.agent: [
            (numbers(row.advantages), numbers(row.returns)) for row in agent_path.rows
        ]
        for agent_path in batch.paths
    }
    assert rows == {
        "Ann": [([0.125, 0.25], [0.625, 0.75]), ([0.5], [1.0])],
        "Cleo": [([0.0, 0.0], [0.625, 0.75]), ([0.0], [1.0])],
        "Ben": [([0.5, 1.0], [2.5, 3.0]), ([2.0], [4.0])],
    }
    assert batch.counts == {"paths_failed": 0, "paths_too_long": 0}
    white = settings.model_copy(update={"normalize": True})
    ann, _, ben = critics_batch(paths, policies, critics, white, {"Cleo"}).paths
    assert [row.advantages for row in ben.rows] == [
        pytest.approx(row.advantages, abs=1e-6) for row in ann.rows
    ], "rewards of another scale change nothing"


def test_a_critic_of_the_joint_state_gives_each_turn_of_the_team_its_advantage(critic: Any) -> None:
    """Ann speaks, then Ben, then Ann; V, gamma and lambda are 1/2. Ann gets 1 at Ben's turn and 2 at the end.

    delta = -1/4, 3/4, 3/2, so A = -1/4 + 9/32, 3/4 + 3/8, 3/2. After a cut V stands for the rest: delta_2 = 7/4.
    """
    names = ("path/0", "Ben", "path/1", "")
    *turns, rest = (Target(n, n + 1, "critic", turn) for n, turn in enumerate(names, 1))
    ended = JointPath(Row((1, 2, 3, 4), tuple(turns)), (0.0, 1.0, 0.0))
    cut = replace(ended, row=Row((1, 2, 3, 4, 5), (*turns, rest)))
    long = replace(ended, row=Row((1,) * 65, tuple(turns)))
    paths = [
        replace(path("path", 2.0), joint=ended),
        replace(path("path", 2.0, ending=LENGTH), joint=cut),
        replace(path("path", 2.0), joint=long),
        replace(path("path", None), joint=ended),
    ]
    settings = PLAIN.model_copy(update={"gae_lambda": 0.5, "gamma": 0.5})
    batch = critic_batch(paths, critic, TRAINING, settings)
    assert [[numbers(row.advantages) for row in agent_path.rows] for agent_path in batch.paths] == [
        [[0.03125, 0.03125], [1.5]],
        [[0.046875, 0.046875], [1.75]],
    ]
    assert {agent_path.agent for agent_path in batch.critic_paths} == {"critic:Ann"}
    (row,), (row_of_cut,) = (agent_path.rows for agent_path in batch.critic_paths)
    assert (numbers(row.values), numbers(row.returns)) == ([0.5] * 3, [0.53125, 1.625, 2.0])
    assert len(row_of_cut.targets) == 3, "the state after the last turn has no return"
    assert batch.counts == {"paths_failed": 1, "paths_too_long": 1}
    white = settings.model_copy(update={"normalize": True})
    (white_path,) = critic_batch(paths[:1], critic, TRAINING, white).paths
    tokens = [value for row in white_path.rows for value in row.advantages or ()]
    assert sum(tokens) == pytest.approx(0, abs=1e-6), "over tokens, and not over turns"


# -- a divergence in the reward ---------------------------------------------------------------


def test_a_divergence_costs_each_token_what_it_is_likelier_than_its_reference() -> None:
    paths = [path("a", 1.0), path("b", 1.0)]
    costs = tuple(pytest.approx(-0.1 * (own + 1.5)) for own in (-1.0, -2.0, -3.0))
    for one in prepared(paths, COSTS).paths:
        assert one.sampled.steps == tuple(enumerate(costs))
        assert one.sampled.total == pytest.approx(1.0 + 0.1 * (6 - 4.5))
    assert not prepared(paths).informative


def test_costs_make_no_group_informative_whose_rewards_are_equal() -> None:
    equal = [path("a", 1.0), path("b", 1.0, "policy@0")]
    batch = prepared(equal, COSTS)
    assert advantages(batch)["a"][0] != advantages(batch)["b"][0], "what they cost is learned from"
    assert not batch.informative and batch.counts["groups_equal"] == 1
    still = advantages(prepared(equal, COSTS, is_trained=False))
    assert not any(still["a"][0] + still["b"][0]), "rounding alone"
    other = prepared([path("a", 1.0), path("b", 0.0)], COSTS)
    assert other.informative == {"task"} and other.counts["groups_equal"] == 0


# -- which paths are trained on ---------------------------------------------------------------


def test_a_path_of_which_one_turn_is_of_other_weights_is_dropped_whole_and_counted() -> None:
    new, old = "policy@0.1", "policy@0"
    paths = [
        path("1", 1.0, new, new), path("2", 0.0, new), path("3", 5.0, old, new), path("6", 5.0, new, old),
        path("4", 1.0, new, task="b"), path("5", 0.0, "critic@0.1", task="b"),
    ]  # fmt: skip
    batch = prepared(paths, version="0.1")
    assert advantages(batch) == {"1": [(0.5, 0.5), (0.5,)], "2": [(-0.5, -0.5)]}, "on all segments"
    assert (batch.counts["paths_stale"], batch.counts["groups_small"]) == (3, 1)
    assert prepared(paths, version="0.2").counts["paths_stale"] == 6


def test_a_path_that_was_cut_off_is_compared_and_not_trained_on() -> None:
    paths = [path("a", 1.0), path("b", 0.0), path("cut", 5.0, ending=LENGTH)]
    for truncated, last in (("train", {"cut": 3.0}), ("mask", {})):
        rules = ReinforceSettings(advantage=AdvantageSettings(truncated=truncated))
        batch = prepared(paths, rules)
        first = {leaf: own[0][0] for leaf, own in advantages(batch).items()}
        assert first == {"a": -1.0, "b": -2.0, **last}
        assert batch.counts["paths_masked"] == (truncated == "mask")


def test_dynamic_sampling_counts_all_groups_and_trains_on_informative_ones() -> None:
    own = "policy@0.1"
    rewards: list[tuple[str, list[float | None]]] = [
        ("flat", [1.0, 1.0]), ("stale", [0.0]), ("first", [1.0, 0.0, None]), ("second", [1.0, 0.0]),
    ]  # fmt: skip
    paths = [
        path(f"{task}{n}", one, own, task=task)
        for task, some in rewards
        for n, one in enumerate(some)
    ]
    paths.append(path("old", 1.0, "policy@0", task="stale"))
    rules = ReinforceSettings(rollout=GroupSettings(tasks=1, rounds=3))
    batch = prepared(paths, rules, "0.1")
    assert {one.task for one in batch.paths} == {"first"} == batch.informative
    names = ("groups", "groups_equal", "groups_small", "paths_failed", "paths_stale")
    assert [batch.counts[name] for name in names] == [3, 1, 1, 1, 1]
    left_out = {(entry.task, entry.reason, entry.number) for entry in batch.left_out}
    assert left_out == {
        ("flat", "groups_equal", 1.0),
        ("stale", "groups_small", 1),
        ("stale", "paths_stale", None),
        ("first", "paths_failed", None),
        ("second", "groups_surplus", None),
    }


def test_expert_iteration_imitates_the_right_paths_alone() -> None:
    """The control of GAP has the reward as advantage, also where all paths of a question are right."""
    settings = tiny([], EXPERT).settings
    rewards = {"a": (1.0, 0.0, 1.0), "b": (1.0, 1.0), "c": (0.0, 0.0)}
    paths = [
        path(f"{task}{n}", reward, task=task)
        for task, values in rewards.items()
        for n, reward in enumerate(values)
    ]
    batch = prepared(paths, settings)
    advantages = [{a for row in path.rows for a in row.advantages or ()} for path in batch.paths]
    assert advantages == [{reward} for values in rewards.values() for reward in values]
    assert settings.loss.kl_coef == 0 and batch.informative == {"a", "b"}


def test_a_task_is_informative_if_one_of_its_agents_groups_is() -> None:
    groups = [
        ("a", "Ann", 1.0, 1.0),
        ("a", "Ben", 0.0, 1.0),
        ("b", "Ann", 1.0, 1.0),
        ("c", "Ann", 1.0, None),
    ]
    paths = [
        path(f"{task}{n}", reward, task=task, agent=agent)
        for task, agent, *rewards in groups
        for n, reward in enumerate(rewards)
    ]
    assert informative_tasks(paths) == ["a"]


def test_groups_of_turns_are_counted_by_their_returns() -> None:
    """Both paths have a reward of 1, the first after its first turn and the second at its end."""
    paths = [path("a", 0.0, steps=((1, 1.0),)), path("b", 1.0)]
    batch = group_batch(paths, AdvantageSettings(group="turn", baseline="mean"))
    assert (batch.counts["groups"], batch.counts["groups_equal"]) == (2, 1)
    assert batch.left_out == (LeftOut("task", "a/0", "groups_equal", "Ann", 1.0),)
    roles: Any = [SimpleNamespace(role=name, agents=(name,)) for name in ("Ann", "Ben")]
    metrics = role_metrics(StepSamples(1, paths=paths), batch, roles)
    assert [metrics[f"{name}/groups_informative"] for name in ("Ann", "Ben")] == [1, 0]
    # GiGPO compares the paths, too, which are equal; of the turns, only the first ones are.
    paths = [replace(one, states=("s", "t")) for one in paths]
    batch = group_batch(paths, AdvantageSettings(group="state", baseline="mean"))
    assert (batch.counts["groups"], batch.counts["groups_equal"]) == (3, 2)
    assert batch.informative == {"task"}


# -- updates ----------------------------------------------------------------------------------


def test_the_minibatches_of_an_epoch_have_each_group_once() -> None:
    tasks, settings = (
        [f"task {n}" for n in range(7) for _ in range(4)],
        StepSettings(minibatches_per_step=3),
    )
    twice = settings.model_copy(update={"epochs": 2})
    batches = list(minibatches(tasks, twice, "seed"))
    assert [len(one) for one in batches] == [3, 2, 2] * 2
    for epoch in (batches[:3], batches[3:]):
        assert sorted(task for one in epoch for task in one) == sorted(set(tasks))
    assert batches[:3] != batches[3:], "each epoch has an order of its own"
    assert batches != list(minibatches(tasks, twice, "another seed"))
    assert len(list(minibatches(tasks[:4], settings, "seed"))) == 1


def updated(paths: Sequence[AgentPath], *policies: Policy, **steps: int) -> dict[str, float]:
    bonus = PolicyLossSettings(entropy_coef=0.01)  # all rows have a gradient
    learners: Any = policies
    return update(paths, learners, ReinforceSettings(steps=StepSettings(**steps), loss=bonus), "s")


@pytest.mark.parametrize(("name", "expected"), [("policy_kl", 0.0), ("engine_kl", 0.5)])
def test_trainer_and_sampler_are_compared_before_the_first_update(
    name: str, expected: float
) -> None:
    class Measured(Policy):
        def step(self, rows: Sequence[Row]) -> dict[str, float]:
            super().step(rows)
            moved = float(len(self.steps) - 1)
            return {"policy_kl": moved, **({name: moved + 0.5} if name == "engine_kl" else {})}

    paths = [path("1", 1.0, "p@0", task="a"), path("2", 1.0, "p@0", task="b")]
    metrics = updated(paths, Measured(), minibatches_per_step=2)
    assert metrics["policy/sampler_kl"] == expected and metrics["policy/policy_kl"] == 0.5


def test_a_step_reports_how_rewards_lengths_and_replies_are_distributed() -> None:
    rewards = (0.0, 0.25, 0.75, 1.0, 1.0, None)
    paths = [path(str(n), reward, *["p@0"] * (n + 1)) for n, reward in enumerate(rewards)]
    # Two rollouts of another task are equal; a group of one says nothing.
    paths += [path("6", 1.0, "p@0", task="b"), path("7", 1.0, "p@0", task="b")]
    paths += [path("8", 0.0, "p@0", task="c")]
    paths[0] = replace(paths[0], call_errors=(True, False, False))
    paths[1] = replace(paths[1], call_errors=(False,))
    lengths = {"tokens_wrong": [2, 3, 2], "tokens_right": [4, 5, 6, 2, 2]}
    expected = {
        "reward_p10": 0.0, "reward_p50": 0.75 + 0.25, "reward_p90": 1.0, "reward_at_min": 2 / 8,
        "reward_at_max": 4 / 8, "distinct": (1.0 + 0.5) / 2, "call_errors": 1 / 4,
    }  # fmt: skip
    expected |= {name: sum(of) / len(of) for name, of in lengths.items()}
    assert distribution_metrics(paths) == pytest.approx(expected)
    assert distribution_metrics([]) == {}


def test_rows_that_are_too_long_are_left_out_and_counted_and_the_others_are_trained_on() -> None:
    paths = [path("1", 1.0, "p@0", task="a"), path("2", 1.0, "p@0", task="b", seen=8)]
    for parts in (1, 2):
        policy = Policy()
        metrics = updated(paths, policy, minibatches_per_step=parts)
        assert (metrics["rows_too_long"], policy.left_out) == (1, 1)
        assert policy.steps == [[*paths[0].rows]]
    metrics = updated(paths, Policy(), Policy(role="critic", init_from="policy"), epochs=2)
    assert metrics["trained_tokens"] == 2 * 2, "own tokens of policies in all epochs"
    with pytest.raises(UserError, match=r"all 1 rows of a step are longer than .* 9 tokens"):
        updated(paths[1:], Policy(), minibatches_per_step=2)
