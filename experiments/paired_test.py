"""Paired tests of two methods on the same tasks and seeds, for the claims."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

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
    p_seeds: float
    """The same of a paired t test over the mean differences of the seeds; 1 with one seed."""
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
    seeds, resampling underestimates their variance (by the factor ``(k - 1) / k`` for ``k`` seeds). ``p_seeds`` does
    not, and needs at least two seeds.
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
    p_seeds = paired_t([float(group.mean()) for group in groups], margin)
    return PairedTest(effect, (1 + at_most) / (1 + resamples), p_seeds, low, high)


def paired_t(differences: Sequence[float], margin: float = 0.0) -> float:
    """Return the one-sided p-value of a t test of "the mean difference is at most the margin".

    Each difference belongs to a seed. A single one has no variance, so its p-value is 1.
    """
    if len(differences) < 2:
        return 1.0
    excess, degrees = fmean(differences) - margin, len(differences) - 1
    error = stdev(differences) / math.sqrt(len(differences))
    # Equal differences have no variance either, except that rounding leaves some.
    if error < 1e-12:
        return float(excess <= 1e-12)
    # For whole degrees of freedom P(|T| < t) is a finite sum over powers of the cosine of this angle (Abramowitz and
    # Stegun 26.7.3 and 26.7.4).
    angle = math.atan(excess / error / math.sqrt(degrees))
    is_odd = degrees % 2
    term, total = (math.cos(angle) if is_odd else 1.0), 0.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    central = math.sin(angle) * total
    if is_odd:
        central = 2 / math.pi * (angle + central)
    return (1 - central) / 2


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
