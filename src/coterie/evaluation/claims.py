"""Claims about methods: a margin that is fixed before the run, and a test that anyone can repeat."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.evaluation.statistics import paired_bootstrap

SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How one policy did on one held-out task."""

    score: float
    tokens: int
    """Sampled tokens of the dialogue; 0 for a dialogue that failed, which also scores 0."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and how it came out."""

    id: str
    claim: str
    must: bool
    holds: bool
    p: float
    effect: float
    tried: str


def better(
    method: str,
    ours: Mapping[int, Mapping[str, HeldOut]],
    other: str,
    theirs: Mapping[int, Mapping[str, HeldOut]],
    margin: float,
) -> Claim:
    """Whether ``method`` scores above ``other`` by more than ``margin``, at no more tokens.

    Results are given by seed and task. The test of the score is a one-sided paired bootstrap over
    tasks and seeds at p < 0.05; tokens are compared by their mean.
    """
    pairs = [
        (seed, mine, theirs[seed][task])
        for seed, tasks in ours.items()
        for task, mine in sorted(tasks.items())
    ]
    test = paired_bootstrap(
        [mine.score for _, mine, _ in pairs],
        [their.score for _, _, their in pairs],
        margin=margin,
        seed=0,
        clusters=[seed for seed, _, _ in pairs],
    )
    tokens = sum(mine.tokens for _, mine, _ in pairs)
    their_tokens = sum(their.tokens for _, _, their in pairs)
    return Claim(
        f"{method}_over_{other}",
        f"{method} scores above {other} by more than {margin:.2f}, at no more tokens",
        must=True,
        holds=test.p < SIGNIFICANCE and tokens <= their_tokens,
        p=round(test.p, 5),
        effect=round(test.effect, 4),
        tried=f"{len(ours)} seeds, {len(pairs)} tasks; 95% interval of the effect {test.low:.3f} "
        f"to {test.high:.3f}; {tokens / max(their_tokens, 1):.2f} of {other}'s tokens",
    )
