"""Checks of servers by the log-probs of a few fixed tokens."""

import asyncio
from collections.abc import Sequence

from coterie.engines.protocol import Sampling
from coterie.engines.servers.client import ServerClient

TEXT = "The river is blue, and nobody but the two of us knows why it is so."
PROBE_IDS = 16
TOLERANCE = 0.02
"""Nats per token: larger than differences between servers of one dtype, smaller than between other weights."""
TEMPERATURE = 2.0


async def compare_weights(clients: Sequence[ServerClient], ids: Sequence[int]) -> str:
    """Return a message if servers have different weights, else "". Raises a ``ServerFault``."""
    scores = await asyncio.gather(*(client.score(ids, 1) for client in clients))
    first = scores[0].logprobs
    for client, score in zip(clients[1:], scores[1:], strict=True):
        pairs = zip(first, score.logprobs, strict=True)
        difference = sum(abs(one - other) for one, other in pairs) / len(first)
        if difference > TOLERANCE:
            return (
                f"{clients[0].url} and {client.url} have different weights: the log-probs of a "
                f"fixed text differ by {difference:.3f} nats per token"
            )
    return ""


async def has_processed_logprobs(client: ServerClient, ids: Sequence[int]) -> bool:
    """Return True if log-probs of sampled tokens are after temperature. Raises a ``ServerFault``."""
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=8)
    completion, _ = await client.complete(ids, 0, sampling)
    raw = await client.score((*ids, *completion.ids), len(ids))
    pairs = zip(completion.logprobs, raw.logprobs, strict=True)
    return max(abs(one - other) for one, other in pairs) > TOLERANCE / 2
