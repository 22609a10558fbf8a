"""What more than one dialogue a task is worth: coverage and majority by number of dialogues.

Self-consistency of several agents, as in Optima (arXiv 2410.08115, section 3.3): of the first k
dialogues of each task,

* *coverage* is the best score, as if somebody could tell which one is right; so is *fraction*, of shares of tests
  (ColBench's best-of-k);
* *majority* is the score of the answer that most of them give;
* *average* is their mean score (avg@k), and *spread* the standard deviation of the scores of the k rounds, if a
  round is the i-th dialogue of every task (AFM's five rounds on the web);
* *tokens* are those of all k.

Each is a mean over tasks, for k = 1, 2, ..., K. How answers are grouped is in
``environments.votes``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.environments.votes import Similarity, Vote
from coterie.evaluation.statistics import bootstrap_interval


@dataclass(frozen=True, slots=True)
class Draw:
    """One dialogue of a task, as far as votes go."""

    answer: str | None
    """``None`` if it ended without one: it has no vote."""
    score: float
    tokens: int
    fraction: float | None = None
    """Share of tests that its answer passes, where there are tests."""
    failed: bool = False
    """Whether it failed for good or could not be graded."""


@dataclass(frozen=True, slots=True)
class TaskPoint:
    """What the first k dialogues of one task come to."""

    coverage: float
    majority: float
    tokens: int
    fraction: float | None
    average: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks; its 95% bootstrap interval where it was computed."""

    mean: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Point:
    """What k dialogues a task come to, over all tasks."""

    k: int
    coverage: Estimate
    majority: Estimate
    tokens: float
    fraction: float | None
    average: float
    spread: float | None = None
    """Sample standard deviation of the rounds' scores; ``None`` of one round."""


def task_curve(draws: Sequence[Draw], similarity: Similarity) -> list[TaskPoint]:
    """Points for k = 1 to ``len(draws)`` of one task.

    The majority's score is the mean score of the dialogues whose answers are in the winning group;
    0 as long as no dialogue has an answer.
    """
    vote = Vote(similarity)
    points: list[TaskPoint] = []
    best, total, tokens, fraction = 0.0, 0.0, 0, None
    for index, draw in enumerate(draws):
        vote.add(index, draw.answer)
        best, total = max(best, draw.score), total + draw.score
        tokens += draw.tokens
        if draw.fraction is not None:
            fraction = max(fraction or 0.0, draw.fraction)
        scores = [draws[winner].score for winner in vote.winners]
        majority = sum(scores) / len(scores) if scores else 0.0
        points.append(TaskPoint(best, majority, tokens, fraction, total / (index + 1)))
    return points


def scaling(tasks: Mapping[str, Sequence[Draw]], similarity: Similarity) -> list[Point]:
    """Points for k = 1 to K over tasks that have K dialogues each, with intervals at :func:`marks`.

    Raises ``ValueError`` if there are no tasks, or some have more dialogues than others.
    """
    sizes = {len(draws) for draws in tasks.values()}
    if len(sizes) != 1:
        raise ValueError(f"need tasks with equally many dialogues; got {sorted(sizes)}")
    curves = [task_curve(draws, similarity) for draws in tasks.values()]
    max_samples = sizes.pop()
    shown = set(marks(max_samples))
    rounds = [
        float(np.mean([some[i].score for some in tasks.values()])) for i in range(max_samples)
    ]
    return [
        Point(
            k,
            _estimate([curve[k - 1].coverage for curve in curves], k in shown),
            _estimate([curve[k - 1].majority for curve in curves], k in shown),
            float(np.mean([curve[k - 1].tokens for curve in curves])),
            _mean_of_known([curve[k - 1].fraction for curve in curves]),
            float(np.mean([curve[k - 1].average for curve in curves])),
            float(np.std(rounds[:k], ddof=1)) if k > 1 else None,
        )
        for k in range(1, max_samples + 1)
    ]


def marks(max_samples: int) -> list[int]:
    """The numbers of dialogues to show: powers of two up to ``max_samples``, and ``max_samples``."""
    powers = [2**power for power in range(max_samples.bit_length())]
    return powers if powers[-1] == max_samples else [*powers, max_samples]


def _mean_of_known(shares: Sequence[float | None]) -> float | None:
    """``None`` if no task has tests; one without a share, for its dialogues failed, counts with 0."""
    if all(share is None for share in shares):
        return None
    return float(np.mean([share or 0.0 for share in shares]))


def _estimate(values: list[float], with_interval: bool) -> Estimate:
    interval = bootstrap_interval(values, seed=0) if with_interval else None
    return Estimate(float(np.mean(values)), interval)
