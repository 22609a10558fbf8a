"""What a store's held-out dialogues came to: by task, and as a score with its interval."""

from dataclasses import dataclass

from coterie.evaluation.claims import HeldOut
from coterie.evaluation.statistics import bootstrap_interval
from coterie.trajectories.store import Store

STAGE = "evaluate"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy on all held-out tasks."""

    version: int
    """0 is the base; ``i`` is the policy after ``i`` trainings."""
    n: int
    failed: int
    """Dialogues that failed for good; each counts with a score of 0."""
    score: float
    low: float
    """Lower end of the score's 95% bootstrap interval."""
    high: float
    tokens: float
    """Mean tokens of a dialogue's turns."""


def held_out_results(store: Store, version: int) -> dict[str, HeldOut]:
    """Results of a policy by task; a failed dialogue scores 0."""
    metrics = store.metrics(version, STAGE)
    tokens = {key.task: int(found.get("tokens", 0)) for key, found in metrics.items()}
    results = {
        tree.task: HeldOut(outcome.score, tokens[tree.task])
        for tree in store.trees(version, STAGE)
        for outcome, _ in tree.trajectories()
    }
    for key, _ in store.failures(version):
        if key.stage == STAGE:
            results[key.task] = HeldOut(0.0, 0)
    return results


def evaluation(store: Store, version: int) -> Evaluation:
    """Mean score with its interval, and tokens, of a policy."""
    results = held_out_results(store, version).values()
    scores = [result.score for result in results]
    low, high = bootstrap_interval(scores, seed=0)
    n = len(scores)
    failed = sum(key.stage == STAGE for key, _ in store.failures(version))
    tokens = sum(result.tokens for result in results) / n
    return Evaluation(version, n, failed, sum(scores) / n, low, high, tokens)
