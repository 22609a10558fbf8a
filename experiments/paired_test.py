"""Paired bootstrap test of two methods on the same tasks and seeds, for the claims."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from coterie.evaluation import (
    Floats,
    difference_interval,
    finite_values,
    percentiles,
    resampled_means,
)


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
    ``p < 0.025`` where the 95% interval is above the margin. If all differences are equal, resamples do not vary;
    the interval is then that of :func:`~coterie.evaluation.difference_interval`, and wider than ``p`` tells.

    Two limitations: Draw the tasks of each seed independently, since shared tasks are treated as new ones. With few
    seeds, resampling underestimates their variance (by the factor ``(k - 1) / k`` for ``k`` seeds).
    """
    first, second = finite_values(a, "a"), finite_values(b, "b")
    if first.shape != second.shape:
        raise ValueError(f"a and b must be paired; got {len(first)} and {len(second)} values")
    groups = _groups(first - second, clusters)
    means = _two_level_means(groups, resamples, np.random.default_rng(seed))
    low, high = percentiles(means, confidence)
    effect = float(np.mean([group.mean() for group in groups]))
    if np.ptp(first - second) == 0 and abs(effect) <= 1:
        low, high = difference_interval(first - second, confidence=confidence, seed=seed)
    # An effect equal to the margin must count as at most the margin despite rounding.
    at_most = int(np.count_nonzero(means <= margin + 1e-12))
    return PairedTest(effect, (1 + at_most) / (1 + resamples), low, high)


def _groups(differences: Floats, clusters: Sequence[Hashable] | None) -> list[Floats]:
    if clusters is None:
        return [differences]
    if len(clusters) != len(differences):
        raise ValueError(f"{len(clusters)} clusters for {len(differences)} pairs: give one each")
    members: dict[Hashable, list[float]] = {}
    for cluster, difference in zip(clusters, differences.tolist(), strict=True):
        members.setdefault(cluster, []).append(difference)
    return [np.array(group) for group in members.values()]


def _two_level_means(groups: list[Floats], count: int, rng: np.random.Generator) -> Floats:
    chosen = rng.integers(len(groups), size=(count, len(groups)))
    means = np.empty(chosen.shape)
    for index, group in enumerate(groups):
        mask = chosen == index
        means[mask] = resampled_means(group, int(mask.sum()), rng)
    overall: Floats = means.mean(axis=1)
    return overall
