"""Confidence intervals and tests of mean scores and their differences.

All random functions take a seed; equal arguments give equal results. Intervals are percentile bootstrap intervals
(Efron & Tibshirani 1993, chapter 13).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_DRAWS_AT_ONCE = 2_000_000
"""Maximum indices drawn at a time, to bound memory (16 MB)."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Result of a paired test of ``a`` against ``b``."""

    effect: float
    """Mean of ``a - b`` over the tasks of each seed, then over seeds."""
    p: float
    """One-sided p-value against "the effect is at most the margin"."""
    low: float
    """Lower end of the two-sided interval of the effect."""
    high: float
    """Upper end of the two-sided interval of the effect."""


def bootstrap_interval(
    values: ArrayLike, *, confidence: float = 0.95, seed: int, resamples: int = 2000
) -> tuple[float, float]:
    """Return the interval of the mean of ``values`` (shape ``[n]``)."""
    array = _floats(values, "values")
    means = _resampled_means(array, resamples, np.random.default_rng(seed))
    return _percentiles(means, confidence)


def paired_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    *,
    margin: float = 0.0,
    seed: int,
    resamples: int = 10_000,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> PairedTest:
    """Test whether ``a`` exceeds ``b`` by more than ``margin``, over tasks and seeds.

    ``a[i]`` and ``b[i]`` are the scores of two methods on the same task with the same seed, and ``clusters[i]`` is this
    seed. Each resample has two levels: it draws seeds with replacement, then tasks with replacement within each drawn
    seed, so it includes the variance of training runs and of test tasks. All seeds have equal weight, whatever their
    number of tasks. Without ``clusters``, all items are tasks of one seed, and the test does not cover other seeds.

    ``p`` is the share of resamples whose effect is at most ``margin`` (Koehn 2004, "Statistical significance tests for
    machine translation evaluation"), with one more such resample added, so it is never 0. It agrees with the interval:
    ``p < 0.025`` where the 95% interval is above the margin.

    Two limitations: Draw the tasks of each seed independently, since shared tasks are treated as new ones. With few
    seeds, resampling underestimates their variance (by the factor ``(k - 1) / k`` for ``k`` seeds).
    """
    first, second = _floats(a, "a"), _floats(b, "b")
    if first.shape != second.shape:
        raise ValueError(f"a and b must be paired; got {len(first)} and {len(second)} values")
    groups = _groups(first - second, clusters)
    means = _two_level_means(groups, resamples, np.random.default_rng(seed))
    low, high = _percentiles(means, confidence)
    effect = float(np.mean([group.mean() for group in groups]))
    # An effect equal to the margin must count as at most the margin despite rounding.
    at_most = int(np.count_nonzero(means <= margin + 1e-12))
    return PairedTest(effect, (1 + at_most) / (1 + resamples), low, high)


def _floats(values: ArrayLike, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name} must be a non-empty sequence of numbers; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; item {int(np.argmin(np.isfinite(array)))} is not")
    return array


def _groups(differences: Floats, clusters: Sequence[Hashable] | None) -> list[Floats]:
    if clusters is None:
        return [differences]
    if len(clusters) != len(differences):
        raise ValueError(f"{len(clusters)} clusters for {len(differences)} pairs: give one each")
    members: dict[Hashable, list[float]] = {}
    for cluster, difference in zip(clusters, differences.tolist(), strict=True):
        members.setdefault(cluster, []).append(difference)
    return [np.array(group) for group in members.values()]


def _resampled_means(values: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return the means of ``count`` resamples of ``values``, shape ``[count]``."""
    step = max(1, _DRAWS_AT_ONCE // len(values))
    means = np.empty(count)
    for start in range(0, count, step):
        stop = min(start + step, count)
        indices = rng.integers(len(values), size=(stop - start, len(values)))
        means[start:stop] = values[indices].mean(axis=1)
    return means


def _two_level_means(groups: list[Floats], count: int, rng: np.random.Generator) -> Floats:
    chosen = rng.integers(len(groups), size=(count, len(groups)))
    means = np.empty(chosen.shape)
    for index, group in enumerate(groups):
        mask = chosen == index
        means[mask] = _resampled_means(group, int(mask.sum()), rng)
    overall: Floats = means.mean(axis=1)
    return overall


def _percentiles(means: Floats, confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.95; got {confidence}")
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
