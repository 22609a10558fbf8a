"""Loss of each turn under a frozen model, given its context.

Optima (arXiv 2410.08115), equation 1: R_loss(tau) is the maximum over turns of the turn's mean token loss under the
initial base model.
"""

from collections.abc import Iterable

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
