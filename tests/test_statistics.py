"""Intervals and the paired test, against values worked out by hand or in closed form."""

import numpy as np
import pytest

from coterie.evaluation import bootstrap_interval
from experiments.paired_test import paired_bootstrap


def test_bootstrap_interval_of_two_values_is_their_range():
    # Means of resamples of (0, 1) are 0, 1/2, 1 with shares 1/4, 1/2, 1/4.
    assert bootstrap_interval([0, 1], seed=0) == (0.0, 1.0)
    assert bootstrap_interval([0, 1], confidence=0.4, seed=0) == (0.5, 0.5)


def test_bootstrap_interval_nears_the_normal_one_on_many_values():
    values = np.random.default_rng(1).normal(2.0, 3.0, size=2500)
    low, high = bootstrap_interval(values, seed=0, resamples=4000)
    half = 1.96 * values.std() / 50
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)


def test_a_seed_fixes_the_result_and_chunks_do_not_show(monkeypatch):
    values = np.random.default_rng(0).random(50)
    whole = bootstrap_interval(values, seed=3)
    assert whole != bootstrap_interval(values, seed=4)
    monkeypatch.setattr("coterie.evaluation._DRAWS_AT_ONCE", 120)
    assert whole == bootstrap_interval(values, seed=3)


def test_values_that_have_no_mean_are_refused():
    for values in ([], [[1.0]], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="values must be"):
            bootstrap_interval(values, seed=0)
    with pytest.raises(ValueError, match="paired"):
        paired_bootstrap([1, 2], [1], seed=0)


def test_a_paired_test_by_hand():
    sure = paired_bootstrap([0.75] * 20, [0.5] * 20, seed=0, resamples=999)
    assert (sure.effect, sure.low, sure.high, sure.p) == (0.25, 0.25, 0.25, 1 / 1000)
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
