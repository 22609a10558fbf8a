"""What tests work out for themselves about a run: a model's losses of turns, and how far weights moved."""

import torch

from coterie.models.loading import LoadedModel
from coterie.record.rows import View


@torch.no_grad()
def turn_losses(loaded: LoadedModel, shown: View) -> dict[str, float]:
    """The mean loss of each own turn of a view under a model, by turn: from its plain logits."""
    losses: dict[str, float] = {}
    for segment in shown.segments:
        ids = torch.tensor([segment.ids], device=loaded.model.device)
        logprobs = loaded.model(input_ids=ids).logits[0].float().log_softmax(-1)
        taken = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        place = -1
        for piece in segment.pieces:
            stop = place + len(piece.ids)
            if piece.turn is not None:
                losses[piece.turn.id] = -sum(taken[max(place, 0) : stop]) / len(piece.ids)
            place = stop
    return losses


def distance(one: LoadedModel, other: LoadedModel) -> float:
    """The Euclidean distance of the weights of two models of one shape."""
    both = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return sum(float((a - b).detach().double().pow(2).sum()) for a, b in both) ** 0.5
