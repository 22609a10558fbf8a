"""Intervals and tests for scores: how sure we may be of a mean, or of a difference.

Everything random takes a seed; equal arguments give equal results. Intervals are percentile
bootstrap intervals (Efron & Tibshirani 1993, chapter 13).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_DRAWS_AT_ONCE = 2_000_000
"""How many indices are drawn at a time, which bounds memory (16 MB)."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """How much better ``a`` is than ``b``, and how sure that is."""

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
    """Interval of the mean of ``values`` (shape ``[n]``), by resampling them with replacement."""
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

    ``a[i]`` and ``b[i]`` are the scores of two methods on the same task under the same seed, and
    ``clusters[i]`` is that seed. Each resample has two levels: it draws seeds with replacement,
    then, afresh within each seed drawn, tasks with replacement, so that both the luck of a
    training run and the luck of its test tasks count. Every seed weighs the same, however many
    tasks it has. Without ``clusters`` all items are tasks of one seed and nothing is said about
    other seeds.

    ``p`` is the share of resamples whose effect is at most ``margin`` (Koehn 2004, "Statistical
    significance tests for machine translation evaluation"), counting one more such resample, so
    that it is never 0. It agrees with the interval: ``p < 0.025`` where the 95% interval lies
    above the margin.

    Two limits to know. Draw the tasks of each seed independently: tasks that all seeds share are
    treated as if they were new. And with very few seeds, resampling them understates how much they
    vary (by the factor ``(k - 1) / k`` in variance for ``k`` seeds).
    """
    first, second = _floats(a, "a"), _floats(b, "b")
    if first.shape != second.shape:
        raise ValueError(f"a and b must be paired; got {len(first)} and {len(second)} values")
    groups = _groups(first - second, clusters)
    means = _two_level_means(groups, resamples, np.random.default_rng(seed))
    low, high = _percentiles(means, confidence)
    effect = float(np.mean([group.mean() for group in groups]))
    # Rounding must not decide a tie: an effect of exactly the margin is not above it.
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
    """Means of ``count`` resamples of ``values``, shape ``[count]``."""
    step = max(1, _DRAWS_AT_ONCE // len(values))
    means = np.empty(count)
    for start in range(0, count, step):
        stop = min(start + step, count)
        drawn = rng.integers(len(values), size=(stop - start, len(values)))
        means[start:stop] = values[drawn].mean(axis=1)
    return means


def _two_level_means(groups: list[Floats], count: int, rng: np.random.Generator) -> Floats:
    chosen = rng.integers(len(groups), size=(count, len(groups)))
    means = np.empty(chosen.shape)
    for index, group in enumerate(groups):
        drawn = chosen == index
        means[drawn] = _resampled_means(group, int(drawn.sum()), rng)
    overall: Floats = means.mean(axis=1)
    return overall


def _percentiles(means: Floats, confidence: float) -> tuple[float, float]:
    tail = (1 - _checked(confidence)) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.95; got {confidence}")
    return confidence
