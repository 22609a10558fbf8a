"""What a store's held-out dialogues came to: by task, and as a score with its interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.evaluation.self_consistency import Draw
from coterie.evaluation.statistics import bootstrap_interval
from coterie.rollout.episodes import CUT_OFF, MESSAGES
from coterie.trajectories.item import ItemKey
from coterie.trajectories.store import Store
from coterie.trajectories.tree import LENGTH

STAGE = "evaluate"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Result of one policy on one held-out task."""

    score: float
    tokens: int
    """Sampled tokens of the dialogue; 0 for a dialogue that failed, which also scores 0."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy on all held-out tasks."""

    version: int
    """0 is the base; ``i`` is the policy after ``i`` trainings."""
    n: int
    failed: int
    """Dialogues that failed for good or could not be graded; each counts with a score of 0."""
    score: float
    low: float
    """Lower end of the score's 95% bootstrap interval."""
    high: float
    tokens: float
    """Mean tokens of a dialogue's turns."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Means of what else the environment's grades say, such as turns and the share of tests passed."""
    fresh: bool = False


def held_out_draws(store: Store, version: int, samples: int) -> dict[str, list[Draw]]:
    """The first dialogues of a policy on each task, in the order of their samples.

    A dialogue that failed or could not be graded scores 0, and neither it nor a truncated dialogue has an answer.
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
    found: dict[str, list[Draw]] = {}
    for key in sorted(draws):
        found.setdefault(key.task, []).append(draws[key])
    return found


def held_out_results(store: Store, version: int) -> dict[str, HeldOut]:
    """Results of a policy by task, of the first dialogue of each; a failed one scores 0."""
    draws = held_out_draws(store, version, samples=1)
    return {task: HeldOut(first.score, first.tokens) for task, (first,) in draws.items()}


def evaluation(store: Store, version: int) -> Evaluation:
    """Mean score with its interval, and tokens, of a policy."""
    results = [first for (first,) in held_out_draws(store, version, samples=1).values()]
    scores = [result.score for result in results]
    low, high = bootstrap_interval(scores, seed=0)
    n = len(scores)
    failed = sum(result.failed for result in results)
    tokens = sum(result.tokens for result in results) / n
    found = grade_means(store, version, STAGE)
    return Evaluation(version, n, failed, sum(scores) / n, low, high, tokens, found)


def grade_means(
    store: Store, iteration: int, stage: str, samples: int | None = 1
) -> dict[str, float]:
    """Means of the numbers that grades came with, over the dialogues of a stage that did not fail.

    Of each task the first ``samples`` dialogues count, or all. ``cut_off`` is the share of all their
    messages that were cut off.
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
