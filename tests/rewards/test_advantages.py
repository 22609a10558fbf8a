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
    trained_values,
    turn_ends,
    whiten,
    with_advantage,
    with_advantages,
)
from coterie.rewards.dialogue_reward import overlong_penalty

DEVIATION = math.sqrt(2)  # of 1, 0, 0, 3


def group(*rewards: float | None, name: str = "task", actor: str = "") -> list[SampledPath]:
    return [SampledPath(name, f"{name}/{i}", reward, (), actor) for i, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("baseline", "values"),
    [
        ("mean", [0, -1, -1, 2]),
        ("mean_std", [0, -1 / DEVIATION, -1 / DEVIATION, 2 / DEVIATION]),
        ("leave_one_out", [1 - 1, 0 - 4 / 3, 0 - 4 / 3, 3 - 1 / 3]),
        ("best", [0, 0, 0, 1]),
    ],
)
def test_each_baseline_gives_what_a_calculator_gives(baseline, values):
    assert group_advantages(group(1.0, 0.0, 0.0, 3.0), baseline).values == pytest.approx(values)
    # In floats the mean of six times 0.1 is not 0.1; its residue must not be blown up (or kept).
    equal = group_advantages(group(*[0.1] * 6, name="a") + group(*[0.7] * 3, name="b"), baseline)
    assert (equal.values, equal.groups, equal.flat) == ((0.0,) * 9, 2, 2)


def test_nearly_equal_rewards_are_not_blown_up():
    near = group_advantages(group(0.5, 0.5 + 1e-9), "mean_std")
    assert near.values == pytest.approx((-0.5e-9 / STD_FLOOR, 0.5e-9 / STD_FLOOR))
    assert near.flat == 0


@pytest.mark.parametrize("lost", [None, math.nan, math.inf])
def test_a_failed_path_leaves_its_group_before_the_mean(lost):
    result = group_advantages(group(1.0, lost, 0.0), "mean")
    assert result.values == (0.5, None, -0.5)
    assert (result.failed, result.groups, result.small) == (1, 1, 0)
    of_a_step = replace(group(1.0)[0], path="x", steps=((0, lost),))
    assert group_advantages([*group(1.0, 0.0), of_a_step], "mean").values == (0.5, -0.5, None)
    # A group of one is dropped and counted, whatever left it so.
    paths = group(1.0, name="a") + group(1.0, lost, name="b") + group(lost, lost, name="c")
    result = group_advantages([*paths, *group(1.0, 0.0, name="d")], "mean_std")
    assert result.values[:5] == (None,) * 5
    assert (result.failed, result.groups, result.small, result.flat) == (3, 1, 3, 0)


def test_groups_are_kept_apart_in_any_order_and_so_are_actors():
    a, b = group(1.0, 0.0, name="a"), group(5.0, 9.0, name="b")
    mixed = [a[0], b[0], a[1], b[1]]
    assert group_advantages(mixed, "mean").values == (0.5, -2.0, -0.5, 2.0)
    two = group(1.0, 0.0, actor="x") + group(7.0, 8.0, actor="y")
    assert group_advantages(two, "mean").values == (0.5, -0.5, -0.5, 0.5)
    with pytest.raises(UserError, match="is a duplicate"):
        group_advantages([a[0], *a], "mean")
    with pytest.raises(UserError, match="has no group"):
        group_advantages([replace(a[0], group=""), a[1]], "mean")


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
        sums = [a + v for a, v in zip(expected, values, strict=True)]
        assert returns == pytest.approx(sums, abs=1e-12)
    assert gae([0, 1.0], [0.5, 0.5], 1.0, 1.0, bootstrap=2.0)[1] == [3.0, 3.0], (
        "goes on after a cut"
    )


def test_whitening_is_over_all_tokens_of_the_step():
    rng = random.Random(2)
    white = whiten([[rng.gauss(3, 5) for _ in range(n)] for n in (1, 4, 0, 7)])
    assert [len(path) for path in white] == [1, 4, 0, 7]
    tokens = [value for path in white for value in path]
    assert (fmean(tokens), stdev(tokens)) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert whiten([[3.0], [5.0, 7.0]]) == [[-1.0], [0.0, 1.0]]
    assert whiten([[0.1] * 3, [0.1] * 5]) == [[0.0] * 3, [0.0] * 5]
    assert whiten([[], []]) == [[], []]


def path_rows(observed: int) -> list[Row]:
    """A path of three turns in two segments, between observations of some length."""
    seen = (9,) * observed
    first = (5, *seen, 1, 2, *seen, 3)
    second = (6, *seen, 4, 1, 2)
    a, b = 1 + observed, 3 + 2 * observed
    targets = (Target(a, a + 2, "p@0", "one"), Target(b, b + 1, "p@0", "two"))
    last = (Target(1 + observed, 4 + observed, "p@0", "three"),)
    return [Row(first, targets, values=(0.1, 0.2, 0.3)), Row(second, last, values=(0.4, 0.5, 0.6))]


def test_observations_change_no_advantage_and_no_return():
    """Contract 3: the same rewards and values at what was sampled give the same, whatever was seen between."""
    results = []
    for observed in (0, 1, 40):
        rows = path_rows(observed)
        ends = turn_ends(rows)
        assert ends == {"one": 1, "two": 2, "three": 5}
        path = SampledPath("task", "leaf", 1.0, ((ends["one"], 0.5), (ends["two"], -0.25)))
        values = trained_values(rows)
        assert values == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
        advantages, returns = gae(path.token_rewards(len(values)), values, 0.97, 0.9)
        placed = with_advantages(rows, advantages, returns)
        results.append([(row.advantages, row.returns) for row in placed])
        assert [one.advantages for one in with_advantage(rows, 2.0)] == [(2.0,) * 3] * 2
    assert results[0] == results[1] == results[2]
    assert len(results[0][0][0]) == 3


def test_what_nothing_predicts_has_no_place_among_trained_tokens():
    row = Row((1, 2, 3, 4), (Target(0, 2, "p@0", "one"), Target(3, 4, "p@0", "two")))
    assert turn_ends([row]) == {"one": 0, "two": 1}
    (placed,) = with_advantages([row], [7.0, 8.0], [1.0, 2.0])
    assert (placed.advantages, placed.returns) == ((0.0, 7.0, 8.0), (0.0, 1.0, 2.0))
    assert trained_values([replace(row, values=(9.0, 0.5, 0.25))]) == [0.5, 0.25]
    with pytest.raises(ValueError, match="3 numbers for 2 trained tokens"):
        with_advantages([row], [7.0, 8.0, 9.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("sampled", "finish", "ending", "expected"),
    [
        *((n, "end", Ending("answered"), one) for n, one in ((80, 0), (85, -0.25), (100, -1), (500, -1))),
        (3, "length", Ending("answered"), -1), (3, "end", LENGTH, -1), (3, "stop_string", CONTEXT, -1),
        (3, "end", TURNS, 0),
    ],
)  # fmt: skip
def test_length_costs_softly_by_what_was_sampled_and_a_cut_costs_all(
    sampled, finish, ending, expected
):
    cost = overlong_penalty(sampled, finish, ending, limit=100, buffer=20)
    assert cost == pytest.approx(expected)
    assert overlong_penalty(sampled, finish, ending, limit=100, buffer=20, weight=3) == 3 * cost
