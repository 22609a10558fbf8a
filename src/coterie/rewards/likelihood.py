"""Likelihood of texts under a model: the loss of turns, and the likelihood of a target after prompts.

Optima (arXiv 2410.08115), equation 1: R_loss(tau) is the maximum over turns of the turn's mean token loss under the
initial base model.

The perplexity reward of MOAT (arXiv 2509.09629): a plan is good if it makes the right actions likely,

    PPL(a | x, s) = exp(-(1 / |a|) sum_i log p(a_i | a_<i, x, s)),

over exactly the tokens of the right actions ``a`` with their end token, and no tokens of the prompt.
"""

import math
from collections.abc import Iterable, Sequence

from coterie.engines.protocol import Engine
from coterie.record.rows import Segment, View


async def turn_losses(engine: Engine, views: Iterable[View]) -> dict[str, float]:
    """Return the mean loss (nats a token) of each own turn of some views, by turn id.

    Pass all views of a tree in one call: shared prefixes are computed once. Raises ``EngineError``.
    """
    beginnings: dict[int, list[Segment]] = {}
    for view in views:
        for segment in view.segments:
            beginnings.setdefault(segment.pieces[0].ids[0], []).append(segment)
    losses: dict[str, float] = {}
    for first, segments in beginnings.items():
        scores = await engine.logprobs([first], [segment.ids[1:] for segment in segments])
        for segment, logprobs in zip(segments, scores, strict=True):
            losses |= _of_turns(segment, logprobs)
    return losses


def _of_turns(segment: Segment, logprobs: list[float]) -> dict[str, float]:
    """Return the mean loss of each turn of a segment from the log-probs of all its tokens but the first."""
    losses, position = {}, -1
    for piece in segment.pieces:
        stop = position + len(piece.ids)
        if piece.turn is not None and piece.ids:
            losses[piece.turn.id] = -sum(logprobs[position:stop]) / len(piece.ids)
        position = stop
    return losses


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
