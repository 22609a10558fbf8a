"""Statistics of scores: intervals of means, and test-time scaling by number of dialogues of a task.

Scores that are only 0 and 1 have Wilson's score interval (Wilson 1927), others the percentile bootstrap interval (Efron
& Tibshirani 1993, chapter 13) over tasks, which would be a point for 40 right answers of 40.

Self-consistency of several agents is as in Optima (arXiv 2410.08115, section 3.3). For the first k dialogues of a task:

* *coverage* is the best score, as from an oracle; *fraction* is the best share of passed tests (ColBench's best-of-k);
* *majority* is the score of the most frequent answer;
* *average* is the mean score (avg@k), and *spread* the standard deviation of the scores of the k rounds, where round i
  has the i-th dialogue of every task (AFM's five rounds on the web);
* *tokens* is the total number of tokens.

Each is a mean over tasks, for k = 1, 2, ..., K. ``environments.qa_metrics`` groups the answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.environments.qa_metrics import Similarity, Vote, doubling

Floats = NDArray[np.float64]

_DRAWS_AT_ONCE = 2_000_000
"""Maximum indices drawn at a time, to bound memory (16 MB)."""


def mean_interval(
    values: ArrayLike, *, confidence: float = 0.95, seed: int, resamples: int = 2000
) -> tuple[float, float]:
    """Return the interval of the mean of ``values``, one for each task. Equal arguments give equal results."""
    array = finite_values(values, "values")
    # Resamples of equal values are equal, so the bootstrap would give a point.
    if np.isin(array, (0.0, 1.0)).all() or 0.0 <= array.min() == array.max() <= 1.0:
        return wilson_interval(array, confidence)
    means = resampled_means(array, resamples, np.random.default_rng(seed))
    return percentiles(means, confidence)


def difference_interval(
    differences: ArrayLike, *, confidence: float = 0.95, seed: int, resamples: int = 2000
) -> tuple[float, float]:
    """Return the interval of the mean of paired differences, one for each task, by the bootstrap over tasks."""
    array = finite_values(differences, "differences")
    # Resamples of equal differences are equal, so the bootstrap would give a point.
    # Equal differences d in [-1, 1] are mapped to (d + 1) / 2 in [0, 1], and the interval back.
    if np.ptp(array) == 0 and abs(array[0]) <= 1:
        low, high = wilson_interval((array + 1) / 2, confidence)
        return 2 * low - 1, 2 * high - 1
    means = resampled_means(array, resamples, np.random.default_rng(seed))
    return percentiles(means, confidence)


def wilson_interval(values: Floats, confidence: float) -> tuple[float, float]:
    """Return Wilson's score interval of the mean of values from 0 to 1, with the variance of the values.

    If all values are equal, its ends are the means if the share ``z² / (n + z²)`` of tasks had the value 0, or 1.
    """
    # z² / n, by which Wilson's formula is written here (numerator and denominator divided by n).
    # Values 0 and 1 have the variance p (1 - p), and so the usual interval.
    share = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 / len(values)
    half = math.sqrt(share * (values.var() + share / 4))
    low, high = ((values.mean() + share / 2 + end) / (1 + share) for end in (-half, half))
    # Rounding may leave [0, 1].
    return max(0.0, float(low)), min(1.0, float(high))


def finite_values(values: ArrayLike, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name} must be a non-empty sequence of numbers; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; item {int(np.argmin(np.isfinite(array)))} is not")
    return array


def resampled_means(values: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return the means of ``count`` resamples of ``values``, shape ``[count]``."""
    # In parts, since all indices would take count * len(values) * 8 bytes.
    step = max(1, _DRAWS_AT_ONCE // len(values))
    means = np.empty(count)
    for start in range(0, count, step):
        stop = min(start + step, count)
        indices = rng.integers(len(values), size=(stop - start, len(values)))
        # Each row `[len(values)]` of the indices is one resample with replacement.
        means[start:stop] = values[indices].mean(axis=1)
    return means


def percentiles(means: Floats, confidence: float) -> tuple[float, float]:
    """Return the ends of the central part of ``means`` that holds the share ``confidence``."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.95; got {confidence}")
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Draw:
    """A dialogue's answer and score."""

    answer: str | None
    """``None`` if it ended without an answer; it has no vote."""
    score: float
    tokens: int
    fraction: float | None = None
    """Share of tests that its answer passes, if there are tests."""
    failed: bool = False
    """True if it failed for good or could not be graded."""
    text: str = ""
    """Last turn."""


class TaskPoint(NamedTuple):
    """Metrics of the first k dialogues of one task."""

    coverage: float
    majority: float
    tokens: int
    fraction: float | None
    average: float


class Estimate(NamedTuple):
    """A mean over tasks, with an optional 95% interval."""

    mean: float
    interval: tuple[float, float] | None

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the interval; the mean without an interval."""
        return self.interval or (self.mean, self.mean)


@dataclass(frozen=True, slots=True)
class Point:
    """Means over all tasks with k dialogues of each."""

    k: int
    coverage: Estimate
    majority: Estimate
    tokens: float
    fraction: float | None
    """Best share of passed tests; ``None`` if no task has tests. A task whose dialogues all failed counts as 0."""
    average: float
    spread: float | None = None
    """Sample standard deviation of the rounds' scores; ``None`` for k = 1."""


def task_curve(draws: Sequence[Draw], similarity: Similarity) -> list[TaskPoint]:
    """Return the points of one task for k = 1 to ``len(draws)``.

    The majority's score is the mean score of the dialogues in the winning group; 0 while no dialogue has an answer.
    """
    # One pass over the dialogues: each prefix of them is one k.
    vote = Vote(similarity)
    points: list[TaskPoint] = []
    best, total, tokens, fraction = 0.0, 0.0, 0, None
    for index, draw in enumerate(draws):
        vote.add(index, draw.answer)
        best, total = max(best, draw.score), total + draw.score
        tokens += draw.tokens
        if draw.fraction is not None:
            fraction = max(fraction or 0.0, draw.fraction)
        # Similar answers may be graded differently, so the winning group has a mean score.
        scores = [draws[winner].score for winner in vote.winners]
        majority = sum(scores) / len(scores) if scores else 0.0
        points.append(TaskPoint(best, majority, tokens, fraction, total / (index + 1)))
    return points


def scaling(tasks: Mapping[str, Sequence[Draw]], similarity: Similarity) -> list[Point]:
    """Return points for k = 1 to K over tasks with K dialogues each, with intervals at :func:`marks`.

    Raises ``ValueError`` if there are no tasks, or their numbers of dialogues differ.
    """
    sizes = {len(draws) for draws in tasks.values()}
    if len(sizes) != 1:
        raise ValueError(f"tasks must have equal numbers of dialogues; got {sorted(sizes)}")
    curves = [task_curve(draws, similarity) for draws in tasks.values()]
    max_samples = sizes.pop()
    # Round i is one dialogue of each task, as if the benchmark was run once.
    rounds = [np.mean([draws[i].score for draws in tasks.values()]) for i in range(max_samples)]
    points = list[Point]()
    for k, of_tasks in enumerate(zip(*curves, strict=True), 1):
        coverage, majority, tokens, fractions, averages = zip(*of_tasks, strict=True)
        # Bootstrap intervals take most of the time, so only the reported numbers of dialogues have
        # one.
        marked = k in doubling(max_samples)
        # Some tasks have tests: those without a result failed in all dialogues.
        tested = any(fraction is not None for fraction in fractions)
        points.append(
            Point(
                k,
                estimate(coverage, marked),
                estimate(majority, marked),
                float(np.mean(tokens)),
                float(np.mean([fraction or 0.0 for fraction in fractions])) if tested else None,
                float(np.mean(averages)),
                float(np.std(rounds[:k], ddof=1)) if k > 1 else None,
            )
        )
    return points


def estimate(values: Sequence[float], with_interval: bool = True) -> Estimate:
    """Return the mean of ``values``, one for each task, with its 95% interval."""
    interval = mean_interval(values, seed=0) if with_interval else None
    return Estimate(float(np.mean(values)), interval)
