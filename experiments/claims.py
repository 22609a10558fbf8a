"""Claims and their tests: per-task results by seed, one-sided paired tests, verdicts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from experiments.paired_test import PairedTest, paired_bootstrap

SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """Result of one policy on one held-out task."""

    score: float
    tokens: int
    """Sampled tokens of the dialogue. A failed dialogue has 0 tokens and a score of 0."""


Results = Mapping[int, Mapping[str, HeldOutResult]]
"""Held-out results of one method by seed and task."""
_score, _tokens = attrgetter("score"), attrgetter("tokens")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and the outcome of its tests."""

    id: str
    claim: str
    must: bool
    holds: bool
    """True if both p-values are below :data:`SIGNIFICANCE`. Never true with one seed."""
    p: float
    """p-value of the paired bootstrap over tasks and seeds."""
    p_seeds: float
    """p-value of the paired t test over the means of the seeds; 1 with one seed."""
    effect: float
    seeds: int
    tried: str


class Hypothesis(NamedTuple):
    """Claim that one method scores above another by more than a margin."""

    id: str
    claim: str
    ours: str
    theirs: str
    must: bool = True
    margin: float = 0.0
    at_no_more_tokens: bool = False
    """True to claim also that the mean tokens are no more."""


def compare(
    ours: Results, theirs: Results, value: Callable[[HeldOutResult], float], margin: float = 0.0
) -> tuple[PairedTest, str]:
    """Test ``ours`` against ``theirs`` (one-sided, paired, over tasks and seeds), and describe the test."""
    pairs = [
        (seed, value(result), value(theirs[seed][task]))
        for seed, tasks in ours.items()
        for task, result in sorted(tasks.items())
    ]
    clusters, a, b = zip(*pairs, strict=True)
    test = paired_bootstrap(a, b, margin=margin, seed=0, clusters=clusters)
    interval = f"95% interval of the effect {test.low:.3f} to {test.high:.3f}"
    seeds = f"{len(ours)} seed{'s' * (len(ours) > 1)}"
    return test, f"{seeds}, {len(pairs)} tasks; {interval}"


def verdict(
    id_: str,
    claim: str,
    *tests: PairedTest,
    seeds: int,
    tried: str,
    must: bool = True,
    effect: float | None = None,
    condition: bool = True,
) -> Claim:
    """Return the claim that all ``tests`` decide, with their largest p-values.

    ``effect`` is the effect of the first test by default. ``condition`` is a part of the claim that needs no test.
    """
    p, p_seeds = max(test.p for test in tests), max(test.p_seeds for test in tests)
    # A bootstrap over few seeds underestimates their variance, and with one seed it ignores it. So the t test over the
    # means of the seeds must agree.
    holds = condition and p < SIGNIFICANCE and p_seeds < SIGNIFICANCE
    effect = round(tests[0].effect if effect is None else effect, 4)
    return Claim(id_, claim, must, holds, round(p, 5), round(p_seeds, 5), effect, seeds, tried)


def above(hypothesis: Hypothesis, ours: Results, theirs: Results) -> Claim:
    """Test that ``ours`` scores above ``theirs`` by more than the margin, on the seeds and tasks of both."""
    id_, claim, _, name, must, margin, at_no_more_tokens = hypothesis
    ours, theirs = common_tasks(ours, theirs)
    test, tried = compare(ours, theirs, _score, margin)
    used = token_ratio(ours, theirs)
    if at_no_more_tokens:
        tried += f"; {used:.2f} of {name}'s tokens"
    elif any(result.tokens for tasks in theirs.values() for result in tasks.values()):
        tried += f"; {used:.2f} of the tokens"
    return verdict(
        id_,
        claim,
        test,
        seeds=len(ours),
        tried=tried,
        must=must,
        condition=used <= 1 or not at_no_more_tokens,
    )


def longer(id_: str, claim: str, ours: Results, theirs: Results) -> Claim:
    """Claim that ``ours`` has more tokens a dialogue than ``theirs``."""
    test, tried = compare(ours, theirs, _tokens)
    return verdict(id_, claim, test, seeds=len(ours), tried=tried)


def brief(
    id_: str,
    claim: str,
    ours: Results,
    theirs: Results,
    *,
    share: float,
    loss: float,
    unit: str = "tokens",
) -> Claim:
    """Claim that ``ours`` has less than ``share`` of the tokens and scores lower by less than ``loss``.

    The p-values are the larger ones of both tests, the effect is the change in tokens. ``unit`` says what else the
    results count in place of tokens.
    """
    scaled = scale(theirs, lambda result: HeldOutResult(result.score, round(result.tokens * share)))
    tokens, _ = compare(scaled, ours, _tokens)
    score, tried = compare(ours, theirs, _score, -loss)
    tried = f"{tried} (score); effect is the change in {unit}"
    change = token_ratio(ours, theirs) - 1
    return verdict(id_, claim, tokens, score, seeds=len(ours), tried=tried, effect=change)


def scale(results: Results, change: Callable[[HeldOutResult], HeldOutResult]) -> Results:
    """Change every result."""
    return {
        seed: {task: change(result) for task, result in tasks.items()}
        for seed, tasks in results.items()
    }


def token_ratio(ours: Results, theirs: Results) -> float:
    """Return the tokens of ``ours`` divided by the tokens of ``theirs``."""
    numerator, denominator = (
        sum(result.tokens for tasks in results.values() for result in tasks.values())
        for results in (ours, theirs)
    )
    return numerator / max(denominator, 1)


def common_tasks(ours: Results, theirs: Results) -> tuple[Results, Results]:
    """Keep the seeds and tasks that both have a result for."""
    common = {
        seed: tasks.keys() & theirs[seed].keys() for seed, tasks in ours.items() if seed in theirs
    }
    ours, theirs = [
        {seed: {task: results[seed][task] for task in tasks} for seed, tasks in common.items()}
        for results in (ours, theirs)
    ]
    return ours, theirs
