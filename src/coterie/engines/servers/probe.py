"""Whether servers are what they are taken for, told by the log-probs of a few fixed tokens."""

import asyncio
from collections.abc import Sequence

from coterie.engines.protocol import Sampling
from coterie.engines.servers.client import ServerClient

TEXT = "The river is blue, and nobody but the two of us knows why it is so."
PROBE_IDS = 16
TOLERANCE = 0.02
"""Nats per token: servers of one dtype agree far better, other weights differ by more."""
TEMPERATURE = 2.0


async def same_weights(clients: Sequence[ServerClient], ids: Sequence[int]) -> str:
    """Why servers can't have the same weights; empty if they can. Raises a ``ServerFault``."""
    scores = await asyncio.gather(*(client.score(ids, 1) for client in clients))
    first = scores[0].logprobs
    for client, score in zip(clients[1:], scores[1:], strict=True):
        pairs = zip(first, score.logprobs, strict=True)
        apart = sum(abs(one - other) for one, other in pairs) / len(first)
        if apart > TOLERANCE:
            return (
                f"{clients[0].url} and {client.url} have different weights: the log-probs of a "
                f"fixed text differ by {apart:.3f} nats per token"
            )
    return ""


async def gives_behaviour_logprobs(client: ServerClient, ids: Sequence[int]) -> bool:
    """Whether log-probs of sampled tokens are those after temperature. Raises a ``ServerFault``."""
    hot = Sampling(temperature=TEMPERATURE, max_tokens=8)
    completion, _ = await client.complete(ids, 0, hot)
    raw = await client.score((*ids, *completion.ids), len(ids))
    apart = max(
        abs(one - other) for one, other in zip(completion.logprobs, raw.logprobs, strict=True)
    )
    return apart > TOLERANCE / 2
