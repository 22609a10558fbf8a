"""How surprising each turn is to a frozen model, given its context.

Optima (arXiv 2410.08115), equation 1: R_loss(tau) is the largest, over turns, of the mean-token
language-modelling loss of the turn under the initial base model.
"""

from coterie.engines.protocol import Engine
from coterie.trajectories.view import View


async def turn_losses(engine: Engine, view: View) -> dict[str, float]:
    """Mean loss (nats a token) of each of the view's own turns, by turn id.

    One call a segment: the log-probs of everything after its first prompt, read at the turns.
    Raises ``EngineError``.
    """
    losses = {}
    for segment in view.segments:
        first, *rest = segment.pieces
        continuation = [token for piece in rest for token in piece.ids]
        if not continuation:
            continue
        logprobs = await engine.logprobs(first.ids, continuation)
        position = 0
        for piece in rest:
            stop = position + len(piece.ids)
            if piece.turn is not None and piece.ids:
                losses[piece.turn.id] = -sum(logprobs[position:stop]) / len(piece.ids)
            position = stop
    return losses
