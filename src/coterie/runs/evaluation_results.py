"""Results of stored held-out dialogues: by task, and as a mean score with an interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.evaluation.self_consistency import Draw
from coterie.evaluation.statistics import bootstrap_interval
from coterie.record.store import Store
from coterie.record.tree import LENGTH, ItemKey
from coterie.rollout.episodes import CUT_OFF, MESSAGES

STAGE = "evaluate"


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """Result of one policy on one held-out task."""

    score: float
    tokens: int
    """Sampled tokens of the dialogue. A failed dialogue has 0 tokens and a score of 0."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of one policy on all held-out tasks."""

    version: int
    """0 is the base; ``i`` is the policy after ``i`` trainings."""
    n: int
    failed: int
    """Failed or ungraded dialogues. Each scores 0."""
    score: float
    low: float
    """Lower bound of the score's 95% bootstrap interval."""
    high: float
    tokens: float
    """Mean tokens per dialogue."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Means of the other metrics of grades, such as turns and the share of tests passed."""
    fresh: bool = False


def held_out_draws(store: Store, version: int, samples: int) -> dict[str, list[Draw]]:
    """Return the first dialogues of a policy on each task, in the order of their samples.

    A failed or ungraded dialogue scores 0. Failed, ungraded and truncated dialogues have no answer.
    """
    metrics = store.metrics(version, STAGE)
    failed = Draw(None, 0.0, 0, failed=True)
    draws = {
        key: failed
        for key, _ in store.failures(version)
        if key.stage == STAGE and int(key.sample) < samples
    }
    for tree in store.trees(version, STAGE):
        for outcome, _ in tree.trajectories():
            if outcome.sample < samples:
                key = ItemKey(version, STAGE, tree.task, f"{outcome.sample:04d}")
                if outcome.score is None:
                    draws[key] = failed
                    continue
                answer = None if outcome.ending == LENGTH else outcome.answer
                share = metrics[key].get("fraction")
                draws[key] = Draw(
                    answer,
                    outcome.score,
                    int(metrics[key].get("tokens", 0)),
                    None if share is None else float(share),
                )
    by_task: dict[str, list[Draw]] = {}
    for key in sorted(draws):
        by_task.setdefault(key.task, []).append(draws[key])
    return by_task


def held_out_results(store: Store, version: int) -> dict[str, HeldOutResult]:
    """Return the result of the first dialogue of each task; a failed dialogue scores 0."""
    draws = held_out_draws(store, version, samples=1)
    return {task: HeldOutResult(first.score, first.tokens) for task, (first,) in draws.items()}


def evaluation(store: Store, version: int) -> Evaluation:
    """Return the mean score of a policy with its interval, and its tokens."""
    results = [first for (first,) in held_out_draws(store, version, samples=1).values()]
    scores = [result.score for result in results]
    low, high = bootstrap_interval(scores, seed=0)
    n = len(scores)
    failed = sum(result.failed for result in results)
    tokens = sum(result.tokens for result in results) / n
    means = grade_means(store, version, STAGE)
    return Evaluation(version, n, failed, sum(scores) / n, low, high, tokens, means)


def grade_means(
    store: Store, iteration: int, stage: str, samples: int | None = 1
) -> dict[str, float]:
    """Return the means of the metrics of grades over the dialogues of a stage that did not fail.

    Uses the first ``samples`` dialogues of each task, or all if it is ``None``. ``cut_off`` is the share of messages
    that were cut off.
    """
    values: dict[str, list[float]] = {}
    for key, metrics in store.metrics(iteration, stage).items():
        if key.task and (samples is None or int(key.sample) < samples):
            for name, value in metrics.items():
                if name not in ("tokens", "seconds") and not isinstance(value, str):
                    values.setdefault(name, []).append(float(value))
    messages = sum(values.pop(MESSAGES, ()))
    means = {name: sum(some) / len(some) for name, some in values.items()}
    return means | ({CUT_OFF: sum(values[CUT_OFF]) / messages} if messages else {})
