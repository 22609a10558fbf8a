"""Intervals and the paired test, against values worked out by hand or in closed form."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import factorial, prod, sqrt

import numpy as np
import pytest

from coterie.evaluation import difference_interval, mean_interval
from experiments.paired_test import paired_bootstrap, paired_t


def test_right_and_wrong_answers_have_wilsons_interval():
    """Its ends are the scores whose normal test at z = 1.96 just accepts the observed score."""
    for right, count in ((0, 1), (1, 2), (7, 10), (40, 40), (39, 40)):
        score = right / count
        for end in mean_interval([1] * right + [0] * (count - right), seed=0):
            if 1e-9 < end < 1 - 1e-9:
                assert abs(score - end) == pytest.approx(1.959964 * sqrt(end * (1 - end) / count))
    assert mean_interval([1] * 40, seed=0) == pytest.approx((0.9124, 1), abs=1e-4)
    assert mean_interval([0] * 40, seed=0) == pytest.approx((0, 0.0876), abs=1e-4)


def coverage(p: Sequence[float], values: Sequence[float], count: int) -> float:
    """Return the exact share of samples of ``count`` tasks whose interval holds the mean of a task's score.

    A task's score is ``values[i]`` with the probability ``p[i]``.
    """
    mean, covered = float(np.dot(p, values)), 0.0
    for parts in product(range(count + 1), repeat=len(p) - 1):
        if (last := count - sum(parts)) >= 0:
            numbers = (*parts, last)
            low, high = interval(tuple(np.repeat(values, numbers)))
            ways = factorial(count) // prod(map(factorial, numbers))
            covered += ways * prod(map(pow, p, numbers)) * (low <= mean <= high)
    return covered


@cache
def interval(values: tuple[float, ...]) -> tuple[float, float]:
    return mean_interval(values, seed=0)


@pytest.mark.parametrize("p", [0.02, 0.05, 0.2, 0.5, 0.75, 0.9, 0.95, 0.98])
def test_the_interval_of_40_answers_holds_the_true_score(p):
    assert coverage((1 - p, p), (0.0, 1.0), 40) > 0.92


@pytest.mark.parametrize(("p", "equal"), [(0.98, 0.0), (0.98, 0.5), (0.9, 0.3), (0.7, 0.2)])
def test_the_interval_of_means_of_two_rollouts_holds_the_true_score(p, equal):
    """In a share ``equal`` of the tasks both rollouts have the same score."""
    both, none = p * p + equal * p * (1 - p), (1 - p) ** 2 + equal * p * (1 - p)
    assert coverage((none, 1 - both - none, both), (0.0, 0.5, 1.0), 20) > 0.9


def test_equal_values_that_are_no_answers():
    assert mean_interval([0.5] * 40, seed=0) == pytest.approx((0.4562, 0.5438), abs=1e-4)
    assert mean_interval([3.0] * 40, seed=0) == (3.0, 3.0), (
        "nothing bounds the values of other tasks"
    )


def test_the_interval_of_differences_is_of_pairs_and_reaches_both_sides_of_equal_ones():
    first = np.random.default_rng(0).uniform(0, 0.5, 400)
    gaps = np.tile([0.0, 0.5], 200)
    low, high = difference_interval(first + gaps - first, seed=0)
    error = 1.96 * gaps.std() / 20
    assert (low, high) == pytest.approx((0.25 - error, 0.25 + error), abs=0.003)
    assert difference_interval(-gaps, seed=0) == pytest.approx((-high, -low), abs=0.003)
    equal = 1.959964**2 / (20 + 1.959964**2)
    assert difference_interval([0.0] * 20, seed=0) == pytest.approx((-equal, equal))


def test_bootstrap_interval_of_two_values_is_their_range():
    # Means of resamples of (0, 0.5) are 0, 1/4, 1/2 with shares 1/4, 1/2, 1/4.
    assert mean_interval([0, 0.5], seed=0) == (0.0, 0.5)
    assert mean_interval([0, 0.5], confidence=0.4, seed=0) == (0.25, 0.25)


def test_bootstrap_interval_nears_the_normal_one_on_many_values():
    values = np.random.default_rng(1).normal(2.0, 3.0, size=2500)
    low, high = mean_interval(values, seed=0, resamples=4000)
    half = 1.96 * values.std() / 50
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)


def test_a_seed_fixes_the_result_and_chunks_do_not_show(monkeypatch):
    values = np.random.default_rng(0).random(50)
    whole = mean_interval(values, seed=3)
    assert whole != mean_interval(values, seed=4)
    monkeypatch.setattr("coterie.evaluation._DRAWS_AT_ONCE", 120)
    assert whole == mean_interval(values, seed=3)


def test_values_that_have_no_mean_are_refused():
    for values in ([], [[1.0]], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="values must be"):
            mean_interval(values, seed=0)
    with pytest.raises(ValueError, match="paired"):
        paired_bootstrap([1, 2], [1], seed=0)


def test_a_paired_test_by_hand():
    sure = paired_bootstrap([0.75] * 20, [0.5] * 20, seed=0, resamples=999)
    assert (sure.effect, sure.p) == (0.25, 1 / 1000)
    # 16.1% of all tasks may have other differences (Wilson's bound of 0 of 20), down to -1 and up to 1.
    assert (sure.low, sure.high) == pytest.approx((0.0486, 0.3708), abs=1e-4)
    exact = paired_bootstrap([0.3] * 20, [0.2] * 20, margin=0.1, seed=0, resamples=999)
    assert exact.p == 1.0, "an effect of exactly the margin is not above it"
    # Differences (1, 0): a resample's mean is 0 with probability 1/4, also within one seed.
    for clusters in (None, [7, 7]):
        two = paired_bootstrap([1, 1], [0, 1], seed=0, clusters=clusters, resamples=20_000)
        assert two.effect == 0.5 and two.p == pytest.approx(0.25, abs=0.01)
    uneven = paired_bootstrap([1, 0, 0, 0], [0] * 4, seed=0, clusters=["a", "b", "b", "b"])
    assert uneven.effect == 0.5, "every seed has the same weight"


def test_seeds_are_resampled_too():
    # Two seeds with differences of 1 and of 0 throughout: only the draw of seeds varies, and both
    # draws hit the second one with probability 1/4. Tasks alone (32 of them) would give p of 0.
    a, b, seeds = [1.0] * 16 + [0.0] * 16, [0.0] * 32, ["s0"] * 16 + ["s1"] * 16
    assert paired_bootstrap(a, b, seed=0, clusters=seeds).p == pytest.approx(0.25, abs=0.015)
    assert paired_bootstrap(a, b, seed=0).p < 0.001


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [
        *((6.314, 1, 0.05), (2.920, 2, 0.05), (2.353, 3, 0.05), (2.132, 4, 0.05), (3.747, 4, 0.01)),
        *((2.015, 5, 0.05), (1.833, 9, 0.05), (0, 4, 0.5), (-2.132, 4, 0.95)),
    ],
)
def test_the_t_test_over_seeds_has_the_p_values_of_the_tables(t, degrees, p):
    spread = np.linspace(-1, 1, degrees + 1)
    error = spread.std(ddof=1) / sqrt(len(spread))
    assert paired_t([*(spread + t * error)]) == pytest.approx(p, abs=2e-4)
    assert paired_t([*(spread + t * error + 0.3)], margin=0.3) == pytest.approx(p, abs=2e-4)


def test_the_t_test_of_one_seed_and_of_equal_differences():
    assert paired_t([0.5]) == 1
    assert paired_t([0.1] * 3) == 0 and paired_t([0.1] * 3, margin=0.1) == 1
