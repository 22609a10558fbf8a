"""Advantages: groups against values worked out by hand, GAE against its sum, and where numbers stand on rows."""

import math
import random
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from coterie.errors import UserError
from coterie.record.rows import Row, Target
from coterie.record.tree import CONTEXT, LENGTH, TURNS, Ending
from coterie.rewards.advantages import (
    STD_FLOOR,
    SampledPath,
    gae,
    group_advantages,
    kl_rewards,
    trained_values,
    turn_ends,
    whiten,
    with_advantage,
    with_advantages,
)
from coterie.rewards.dialogue_reward import overlong_penalty

BASELINES = ("mean", "mean_std", "leave_one_out")


def group(*rewards: float | None, name: str = "task", actor: str = "") -> list[SampledPath]:
    return [SampledPath(name, f"{name}/{i}", reward, (), actor) for i, reward in enumerate(rewards)]


def test_each_baseline_gives_what_a_calculator_gives():
    paths = group(1.0, 0.0, 0.0, 3.0)
    deviation = stdev([1, 0, 0, 3])
    assert deviation == pytest.approx(math.sqrt(2))
    expected = {
        "mean": [0, -1, -1, 2],
        "mean_std": [0, -1 / deviation, -1 / deviation, 2 / deviation],
        "leave_one_out": [1 - 1, 0 - 4 / 3, 0 - 4 / 3, 3 - 1 / 3],
    }
    for baseline, values in expected.items():
        assert group_advantages(paths, baseline).values == pytest.approx(values)


@pytest.mark.parametrize("baseline", BASELINES)
def test_equal_rewards_have_no_advantage_at_all(baseline):
    """In floats the mean of six times 0.1 is not 0.1; its residue must not be blown up (or kept)."""
    found = group_advantages(group(*[0.1] * 6, name="a") + group(*[0.7] * 3, name="b"), baseline)
    assert found.values == (0.0,) * 9
    assert (found.groups, found.flat) == (2, 2)


def test_nearly_equal_rewards_are_not_blown_up():
    found = group_advantages(group(0.5, 0.5 + 1e-9), "mean_std")
    assert found.values == pytest.approx((-0.5e-9 / STD_FLOOR, 0.5e-9 / STD_FLOOR))
    assert found.flat == 0


@pytest.mark.parametrize("lost", [None, math.nan, math.inf])
def test_a_failed_path_leaves_its_group_before_the_mean(lost):
    found = group_advantages(group(1.0, lost, 0.0), "mean")
    assert found.values == (0.5, None, -0.5)
    assert (found.failed, found.groups, found.small) == (1, 1, 0)
    of_a_step = replace(group(1.0)[0], path="x", steps=((0, lost),))
    found = group_advantages([*group(1.0, 0.0), of_a_step], "mean")
    assert found.values == (0.5, -0.5, None)


def test_a_group_of_one_is_dropped_and_counted_whatever_left_it_so():
    paths = group(1.0, name="a") + group(1.0, None, name="b") + group(None, None, name="c")
    found = group_advantages([*paths, *group(1.0, 0.0, name="d")], "mean_std")
    assert found.values[:5] == (None,) * 5
    assert (found.failed, found.groups, found.small, found.flat) == (3, 1, 3, 0)


def test_groups_are_kept_apart_in_any_order_and_so_are_actors():
    alone = group_advantages(group(1.0, 0.0, name="a"), "mean").values
    a, b = group(1.0, 0.0, name="a"), group(5.0, 9.0, name="b")
    mixed = [a[0], b[0], a[1], b[1]]
    found = group_advantages(mixed, "mean").values
    assert (found[0], found[2]) == alone
    assert (found[1], found[3]) == (-2.0, 2.0)
    two = group(1.0, 0.0, actor="x") + group(7.0, 8.0, actor="y")
    assert group_advantages(two, "mean").values == (0.5, -0.5, -0.5, 0.5)


def test_a_path_that_comes_once_for_each_of_its_rows_is_refused_and_so_is_one_without_a_group():
    one, other = group(1.0, 0.0)
    with pytest.raises(UserError, match="is a duplicate"):
        group_advantages([one, one, other], "mean")
    with pytest.raises(UserError, match="has no group"):
        group_advantages([replace(one, group=""), other], "mean")


def test_rewards_of_steps_are_summed_for_a_group_and_placed_for_gae():
    path = SampledPath("task", "leaf", 2.0, steps=((1, 0.25), (1, 0.25), (4, -1.0)))
    assert path.total == 1.5
    assert path.token_rewards(5) == [0, 0.5, 0, 0, 1.0]
    with pytest.raises(ValueError, match="at token 4 of 4"):
        path.token_rewards(4)
    with pytest.raises(ValueError, match="failed"):
        replace(path, reward=None).token_rewards(5)


def by_definition(rewards, values, gamma, lam, bootstrap):
    """Each advantage as its own sum of discounted errors."""
    after = [*values[1:], bootstrap]
    errors = [r + gamma * n - v for r, v, n in zip(rewards, values, after, strict=True)]
    return [
        sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(errors)))
        for t in range(len(errors))
    ]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.0])
def test_gae_is_the_sum_of_discounted_errors(gamma, lam):
    rng = random.Random(1)
    rewards, values = ([rng.gauss(0, 1) for _ in range(9)] for _ in range(2))
    for bootstrap in (0.0, 0.7):
        advantages, returns = gae(rewards, values, gamma, lam, bootstrap)
        expected = by_definition(rewards, values, gamma, lam, bootstrap)
        assert advantages == pytest.approx(expected, abs=1e-12)
        assert returns == pytest.approx(
            [a + v for a, v in zip(expected, values, strict=True)], abs=1e-12
        )


def test_a_path_that_was_cut_off_goes_on_in_its_last_value_and_one_that_ended_does_not():
    assert gae([0, 1.0], [0.5, 0.5], 1.0, 1.0)[1] == [1.0, 1.0]
    assert gae([0, 1.0], [0.5, 0.5], 1.0, 1.0, bootstrap=2.0)[1] == [3.0, 3.0]
    assert gae([], [], 1.0, 1.0) == ([], [])
    with pytest.raises(ValueError, match="zip"):
        gae([0.0], [], 1.0, 1.0)


def test_whitening_is_over_all_tokens_of_the_step():
    rng = random.Random(2)
    paths = [[rng.gauss(3, 5) for _ in range(n)] for n in (1, 4, 0, 7)]
    found = whiten(paths)
    assert [len(path) for path in found] == [1, 4, 0, 7]
    tokens = [value for path in found for value in path]
    assert fmean(tokens) == pytest.approx(0, abs=1e-12)
    assert stdev(tokens) == pytest.approx(1)
    before = [value for path in paths for value in path]
    assert sorted(range(12), key=tokens.__getitem__) == sorted(range(12), key=before.__getitem__)
    assert whiten([[0.1] * 3, [0.1] * 5]) == [[0.0] * 3, [0.0] * 5]
    assert whiten([[4.0]]) == [[0.0]]
    assert whiten([[], []]) == [[], []]


def test_divergence_costs_reward_where_the_policy_is_likelier_than_its_reference():
    assert kl_rewards([-1.0, -2.0], [-1.5, -1.0], 0.1) == pytest.approx((-0.05, 0.1))


def path_rows(observed: int) -> list[Row]:
    """A path of three turns in two segments, between observations of some length."""
    seen = (9,) * observed
    first = (5, *seen, 1, 2, *seen, 3)
    second = (6, *seen, 4, 1, 2)
    a, b = 1 + observed, 3 + 2 * observed
    return [
        Row(first, (Target(a, a + 2, "p@0", "one"), Target(b, b + 1, "p@0", "two"))),
        Row(second, (Target(1 + observed, 4 + observed, "p@0", "three"),)),
    ]


def test_observations_change_no_advantage_and_no_return():
    """Contract 3: the same rewards and values at what was sampled give the same, whatever was seen between."""
    found = []
    for observed in (0, 1, 40):
        rows = path_rows(observed)
        rows = [
            replace(row, values=values)
            for row, values in zip(rows, ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)), strict=True)
        ]
        ends = turn_ends(rows)
        assert ends == {"one": 1, "two": 2, "three": 5}
        steps = ((ends["one"], 0.5), (ends["two"], -0.25))
        path = SampledPath("task", "leaf", 1.0, steps)
        values = trained_values(rows)
        assert values == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
        advantages, returns = gae(path.token_rewards(len(values)), values, 0.97, 0.9)
        placed = with_advantages(rows, advantages, returns)
        found.append([(row.advantages, row.returns) for row in placed])
        assert [one.advantages for one in with_advantage(rows, 2.0)] == [(2.0,) * 3] * 2
    assert found[0] == found[1] == found[2]
    assert len(found[0][0][0]) == 3


def test_what_nothing_predicts_has_no_place_among_trained_tokens():
    row = Row((1, 2, 3, 4), (Target(0, 2, "p@0", "one"), Target(3, 4, "p@0", "two")))
    assert turn_ends([row]) == {"one": 0, "two": 1}
    (placed,) = with_advantages([row], [7.0, 8.0], [1.0, 2.0])
    assert placed.advantages == (0.0, 7.0, 8.0)
    assert placed.returns == (0.0, 1.0, 2.0)
    assert trained_values([replace(row, values=(9.0, 0.5, 0.25))]) == [0.5, 0.25]
    with pytest.raises(ValueError, match="3 numbers for 2 trained tokens"):
        with_advantages([row], [7.0, 8.0, 9.0], [1.0, 2.0, 3.0])


ENDED = Ending("answered")


@pytest.mark.parametrize(
    ("sampled", "expected"),
    [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (500, -1.0)],
)
def test_length_costs_softly_by_what_was_sampled(sampled, expected):
    found = overlong_penalty(sampled, "end", ENDED, limit=100, buffer=20)
    assert found == pytest.approx(expected)
    assert overlong_penalty(sampled, "end", ENDED, limit=100, buffer=20, weight=3) == 3 * found


def test_what_was_cut_off_costs_all_by_its_record_and_running_out_of_turns_nothing():
    for finish, ending in (("length", ENDED), ("end", LENGTH), ("stop_string", CONTEXT)):
        assert overlong_penalty(3, finish, ending, limit=100, buffer=20) == -1.0
    assert overlong_penalty(3, "end", TURNS, limit=100, buffer=20) == 0.0
    with pytest.raises(ValueError, match="buffer"):
        overlong_penalty(3, "end", ENDED, limit=10, buffer=11)
