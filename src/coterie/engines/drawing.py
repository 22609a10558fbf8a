"""Sampling of tokens from logits, reproducible by seed in any batch.

Each token inverts the cumulative distribution at a uniform number, a hash of (seed, step).
"""

import numpy as np
import torch
from torch import Tensor

from coterie.engines import compiled
from coterie.models.compiling import NUMBA_ERROR

COLDEST = 1e-6
"""At this temperature and below sampling is greedy, because quotients would overflow."""
NONE = -1
"""Id for logits that are not a distribution."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def uniforms(seed: int, count: int) -> list[float]:
    """Return ``count`` numbers in [0, 1) for the steps of a seed (splitmix64 of a mixed seed)."""
    start = int(_mix(np.array([seed & _MASK], np.uint64))[0])
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(start)
    result: list[float] = ((_mix(steps) >> np.uint64(16)).astype(np.float64) / 2.0**48).tolist()
    return result


def draw(logits: Tensor, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sample one token per row. Return ids and their log-probs (nats, float32) in the sampling distribution.

    Temperature 0 (up to ``COLDEST``) takes the most likely token with log-prob 0. Top-p keeps the smallest set of most
    likely tokens whose probability reaches it (Holtzman et al. 2020). If a logit is NaN or the largest is not finite,
    the id is ``NONE``.

    Args:
        logits: float32 ``[N, V]``.
        settings: float64 ``[N, 3]``: temperature, top-p, and a number in [0, 1).
    """
    temperature = np.where(settings[:, :1] > COLDEST, settings[:, :1], 0.0)
    settings = np.hstack([temperature, settings[:, 1:]])
    if NUMBA_ERROR or logits.device.type != "cpu":
        return draw_by_torch(logits, settings)
    return compiled.draw(logits.numpy(), settings)


def draw_by_torch(logits: Tensor, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Implement :func:`draw` on a GPU, and on CPU without numba; temperatures below ``COLDEST`` have to be 0.

    Sums are rounded in another order than with numba: log-probs differ in the last bits, and a token may differ if its
    number is that close to the boundary between two tokens.
    """
    columns = torch.tensor(settings, device=logits.device)
    temperature, top_p, noise = columns[:, 0].float(), columns[:, 1].float(), columns[:, 2]
    greedy = temperature == 0
    largest = logits.amax(-1, keepdim=True)
    none = ~largest.isfinite()[:, 0]
    logits = (logits - largest).masked_fill(none[:, None], 0.0)
    logits = logits / temperature.masked_fill(greedy, 1.0)[:, None]
    logprobs = torch.log_softmax(logits, -1)
    cut = (top_p < 1) & ~greedy
    if bool(cut.any()):
        logprobs[cut] = _top_p(logprobs[cut], top_p[cut])
    cumulative = logprobs.double().exp_().cumsum(-1)
    at = noise[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, at, right=True).squeeze(1)
    ids = torch.where(greedy, logits.argmax(-1), ids).masked_fill(none, NONE)
    chosen = logprobs.gather(1, ids[:, None].clamp(min=0)).squeeze(1)
    chosen = chosen.masked_fill(greedy, 0.0).masked_fill(none, torch.nan)
    return ids.cpu().numpy(), chosen.cpu().numpy()


def _top_p(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Renormalize log-probs over the nucleus, with ``-inf`` outside."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    ordered = ordered.masked_fill(before >= top_p[:, None], -torch.inf)
    ordered = ordered - ordered.logsumexp(-1, keepdim=True)
    return torch.empty_like(logprobs).scatter_(-1, order, ordered)


def _mix(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
