"""What an ``optima`` run measured on the held-out tasks."""

from dataclasses import dataclass

from coterie.evaluation.claims import HeldOut
from coterie.evaluation.statistics import bootstrap_interval
from coterie.rollout.episodes import dialogue_tokens
from coterie.runs.folder import Run


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy on all held-out tasks."""

    version: int
    """0 is the base; ``i`` is the policy after ``i`` trainings."""
    n: int
    score: float
    low: float
    """Lower end of the score's 95% bootstrap interval."""
    high: float
    tokens: float
    """Mean sampled tokens of a dialogue."""


def held_out_results(run: Run, version: int) -> dict[str, HeldOut]:
    """Results of a policy by task; a failed dialogue scores 0."""
    results = {
        tree.task: HeldOut(outcome.score, dialogue_tokens(path))
        for tree in run.store.trees(version, "evaluate")
        for outcome, path in tree.trajectories()
    }
    for key, _ in run.store.failures(version):
        if key.stage == "evaluate":
            results[key.task] = HeldOut(0.0, 0)
    return results


def evaluation(run: Run, version: int) -> Evaluation:
    """Mean score with its interval, and tokens, of a policy."""
    results = held_out_results(run, version).values()
    scores = [result.score for result in results]
    low, high = bootstrap_interval(scores, seed=0)
    n = len(scores)
    tokens = sum(result.tokens for result in results) / n
    return Evaluation(version, n, sum(scores) / n, low, high, tokens)
