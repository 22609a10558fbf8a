"""Running sequences: sampled tokens, the end of a sequence, and the draw of tokens from logits.

Each token inverts the cumulative distribution at a uniform number, a hash of (seed, step).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from coterie.engines import compiled
from coterie.engines.protocol import Completion, Sampling
from coterie.models.adapters import NUMBA_ERROR
from coterie.record.turn import Finish

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


Decode = Callable[[Sequence[int]], str]


@dataclass(eq=False, slots=True)
class Running:
    """Completion of a prompt while it is sampled."""

    prompt: tuple[int, ...]
    seed: int
    sampling: Sampling
    future: asyncio.Future[Completion]
    on_token: Callable[[int], None] | None = None
    """Called with each id as it is sampled."""
    cached: int = 0
    """Cached tokens of the prompt."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    """Uniform random number of each step."""
    start: float = 0.0
    """Time of leaving the queue (``time.monotonic``), from which the timeout counts."""

    def __post_init__(self) -> None:
        self.noise = uniforms(self.seed, self.sampling.max_tokens)

    @property
    def place(self) -> int:
        """Position of the last sampled token in the sequence."""
        return len(self.prompt) + len(self.ids) - 1

    @property
    def computed_ids(self) -> tuple[int, ...]:
        """Tokens with computed keys and values: all but the last."""
        return (*self.prompt, *self.ids[:-1])

    def accept(self, token: int, logprob: float, ends: frozenset[int], decode: Decode) -> bool:
        """Append a sampled token. Return True if it ends the completion, which is then in the future."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self.on_token is not None:
            self.on_token(token)
        if (end := ending(self.ids, self.sampling, ends, decode)) is None:
            return False
        self._end(*end)
        return True

    @property
    def is_late(self) -> bool:
        """True if it runs longer than its timeout."""
        return time.monotonic() - self.start > self.sampling.timeout

    def _end(self, finish: Finish, text: str, stop: str) -> None:
        ids, logprobs = tuple(self.ids), tuple(self.logprobs)
        completion = Completion(ids, logprobs, text, finish, self.seed, self.cached, stop)
        if not self.future.done():
            self.future.set_result(completion)


def ending(
    ids: Sequence[int], sampling: Sampling, ends: frozenset[int], decode: Decode
) -> tuple[Finish, str, str] | None:
    """Return the finish reason, text and stop string if the completion ends with its last id, else ``None``."""
    if ids[-1] in ends:
        return "end", decode(ids[:-1]), ""
    if sampling.stop and (stopped := _stopped(ids, sampling.stop, decode)) is not None:
        return "stop_string", *stopped
    if len(ids) == sampling.max_tokens:
        return "length", decode(ids), ""
    return None


def _stopped(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> tuple[str, str] | None:
    """Return the text before the first stop string, and the stop string, if there is one.

    The last tokens are checked first, for speed: a token with text has at least one byte.
    """
    window = max(len(stop.encode()) for stop in stops) + 4
    tail = decode(ids[-window:])
    if not any(stop in tail for stop in stops):
        return None
    text = decode(ids)
    matches = [(index, stop) for stop in stops if (index := text.find(stop)) >= 0]
    if not matches:
        return None
    index, stop = min(matches)
    return text[:index], stop


@dataclass(eq=False, slots=True)
class Scoring:
    """Request for log-probs of tokens."""

    sequences: list[tuple[int, ...]]
    start: int
    future: asyncio.Future[list[list[float]]]
