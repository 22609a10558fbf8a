"""What a step of a reinforcement learning was like, in numbers and in a line for a person."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from coterie.runs.reinforce.advantages import Judged
from coterie.runs.reinforce.sampling import Drawn
from coterie.runs.reinforce.updating import Updated
from coterie.trajectories.item import Metrics


def step_metrics(
    drawn: Drawn, judged: Judged, updated: Updated, seconds: tuple[float, float]
) -> dict[str, float | int | str]:
    """All numbers of a step; ``seconds`` are those of sampling and of training.

    ``reward`` and ``score`` are means over all paths that were graded, those that are not trained on included.
    """
    paths = drawn.paths
    rewards = [total for path in paths if (total := path.sampled.total) is not None]
    outcomes = {path.outcome.leaf: path.outcome for path in paths}.values()
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    tokens = sum(path.tokens for path in paths)
    sampling, training = seconds
    return {
        "reward": _mean(rewards),
        "reward_error": stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0,
        "score": _mean(scores),
        "tokens": _mean([float(path.tokens) for path in paths]),
        "turns": _mean([float(path.turns) for path in paths]),
        "truncated": _mean([float(outcome.ending.truncated) for outcome in outcomes]),
        "groups_telling": len(judged.telling),
        **judged.counts,
        "paths": len(judged.paths),
        "tasks": len(drawn.tasks),
        "samples": drawn.played,
        "samples_failed": drawn.played - len(outcomes),
        "rounds": drawn.rounds,
        "rows_too_long": updated.too_long,
        "trained_tokens": updated.targets,
        "measures_missing": len(drawn.unmeasured),
        "sampling_seconds": round(sampling, 3),
        "training_seconds": round(training, 3),
        "sampled_tokens_per_second": round(tokens / sampling, 1) if sampling else 0.0,
        **updated.means(),
    }


LEFT_OUT = {
    "paths_failed": "paths without a reward",
    "paths_stale": "paths of other weights",
    "paths_masked": "paths that were cut off",
    "paths_too_long": "paths that are too long",
    "rows_too_long": "rows that are too long",
    "groups_small": "groups with fewer than two paths",
}
"""What is said of what was left out of a step, by the number that counts it."""


def told(step: int, steps: int, metrics: Metrics) -> str:
    reward, score, tokens = (float(metrics[name]) for name in ("reward", "score", "tokens"))
    parts = [
        f"step {step} of {steps}: reward {reward:.3f}",
        f"score {score:.3f}",
        f"{tokens:.0f} tokens",
        f"{metrics['groups_telling']} groups with an advantage",
    ]
    known: Mapping[str, str] = {"entropy": "entropy", "policy_kl": "KL", "grad_norm": "gradient"}
    for name, value in metrics.items():
        short = known.get(name.rpartition("/")[2])
        if short and not isinstance(value, str) and not name.startswith("critic/"):
            parts.append(f"{short} {value:.3g}")
    if missing := left_out([metrics]):
        parts.append(f"left out: {missing}")
    return ", ".join(parts)


def left_out(steps: Sequence[Metrics]) -> str:
    """What these steps were not trained on, in words; empty if that is nothing."""
    sums = {what: sum(int(one.get(name, 0)) for one in steps) for name, what in LEFT_OUT.items()}
    return ", ".join(f"{count} {what}" for what, count in sums.items() if count)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
