"""Likelihood of one text after each of several prompts.

The perplexity reward of MOAT (arXiv 2509.09629): a plan is good if it makes the right actions likely,

    PPL(a | x, s) = exp(-(1 / |a|) sum_i log p(a_i | a_<i, x, s)),

over exactly the tokens of the right actions ``a`` with their end token, and none of the prompt.
"""

import math
from collections.abc import Sequence

from coterie.engines.protocol import Engine


async def mean_loglikelihoods(
    engine: Engine, prompts: Sequence[tuple[int, ...]], target: Sequence[int]
) -> list[float]:
    """Return the mean log-probability (nats a token) of ``target`` after each prompt.

    The prompts' common prefix (at least one token) is computed once. Raises ``EngineError``, and ``ValueError`` for an
    empty target.
    """
    if not target:
        raise ValueError("an empty target has no likelihood")
    if not prompts:
        return []
    shared = _shared(prompts)
    rest = [[*prompt[shared:], *target] for prompt in prompts]
    scores = await engine.logprobs(list(prompts[0][:shared]), rest)
    return [math.fsum(one[-len(target) :]) / len(target) for one in scores]


def perplexity(mean_loglikelihood: float) -> float:
    """Return the perplexity for a mean log-probability; infinity on overflow."""
    try:
        return math.exp(-mean_loglikelihood)
    except OverflowError:
        return math.inf


def _shared(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return the length of the prompts' common prefix, which the first and last in sort order determine."""
    first, last = min(prompts), max(prompts)
    pairs = enumerate(zip(first, last, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(last)))
