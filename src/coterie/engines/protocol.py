"""Protocol of an engine: sample completions, score tokens, load weights.

All three are asynchronous and take tokens, never text, so that trajectories have the exact tokens of the model.
"""

import asyncio
import math
from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from coterie.record.turn import Finish

Result = TypeVar("Result")
IDLE_SECONDS = 2.0
"""Idle time after which a connection is not used again, shorter than on servers (uvicorn: 5 s)."""
POLICY = "policy"
"""Role of a run with one policy, in its record and in its folder."""
LEFT_OUT = "left out: "
"""Beginning of the failure of a task that can't be graded, whatever an agent does. Evaluations leave it out."""


def run_now(work: Coroutine[Any, Any, Result]) -> Result:
    """Run asynchronous work and return its result. Uses a new thread inside a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def cancel(tasks: Collection["asyncio.Future[Any]"]) -> None:
    """Cancel tasks, and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Return all results in order. On a failure, cancel and await the remaining work first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


class EngineError(Exception):
    """Permanent failure of a call, after a bounded number of retries. The driver records it on the item."""


class EngineGone(EngineError):
    """Fatal engine failure; needs manual intervention."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    """Strings that end a completion. The ids keep the string, the text does not."""
    timeout: float = 600.0
    """Seconds from leaving the queue until the request fails with :class:`EngineError`."""

    def check(self) -> None:
        """Raise :class:`EngineError` for invalid parameters."""
        is_invalid = not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1
        if is_invalid or self.max_tokens < 1 or "" in self.stop:
            raise EngineError(f"can't sample with {self}")


def check_length(tokens: int, new_tokens: int, limit: int | None, policy: str) -> None:
    """Raise :class:`EngineError` if ``tokens`` and ``new_tokens`` exceed the context, if it is known."""
    if limit is not None and tokens + new_tokens > limit:
        raise EngineError(
            f"context overflow: {tokens} tokens and up to {new_tokens} more, but {policy} takes {limit}"
        )


def scored_sequences(
    prefix: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return the sequences of continuations to score. Raises :class:`EngineError` if one is empty."""
    if not prefix or not continuations or not all(map(len, continuations)):
        raise EngineError("log-probs need a prefix and non-empty continuations")
    return [(*prefix, *continuation) for continuation in continuations]


@dataclass(frozen=True, slots=True)
class Completion:
    """Completion of a prompt."""

    ids: tuple[int, ...]
    """Sampled ids, including the stop string or end-of-turn token."""
    logprobs: tuple[float, ...]
    """Log-prob of each id (nats) in the sampling distribution, after temperature and top-p."""
    text: str
    """Decoded text, cut before the end-of-turn token or stop string."""
    finish: Finish
    seed: int
    cached: int = field(default=0, compare=False)
    """Prompt tokens from the prefix cache; affects only the speed."""
    stop: str = ""
    """Stop string that ended the completion, which ``text`` does not have."""
    versions: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    """Weight version and number of tokens of each span, in order; empty if all tokens may have the engine's version."""


@dataclass(slots=True)
class Stats:
    """Counts of an engine so far."""

    requests: int = 0
    failures: int = 0
    """Failed requests, including timeouts and cancellations."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens with cached keys and values from earlier requests."""
    sampled_tokens: int = 0
    retries: int = 0
    restarts: int = 0
    """Starts of servers that died."""

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request, and its failure."""
        self.requests += 1
        try:
            yield
        except BaseException:
            self.failures += 1
            raise


WORK_NUMBER: ContextVar[int] = ContextVar("work_number", default=0)
"""Number of the dialogue (or other item of work) that makes a request, in the order in which they began."""


class RequestSlots:
    """Semaphore that lets the waiting request of the oldest dialogue in first, so that dialogues end before more begin.

    With first come, first served, all dialogues take their first turn before any takes its second.
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        entered = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (WORK_NUMBER.get(), next(self._arrivals), entered))
        try:
            await entered
        except asyncio.CancelledError:
            if not entered.cancelled():  # got the slot before it could be told
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        while self._waiting:
            *_, entered = heappop(self._waiting)
            if not entered.done():
                entered.set_result(None)
                return
        self._free += 1


class LikelihoodModel(Protocol):
    """Model that computes log-probs."""

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Compute the log-prob (nats, temperature 1) of each id of continuations of one prefix.

        Shared prefixes are computed once. Raises ``EngineError``.
        """
        ...


class Engine(LikelihoodModel, Protocol):
    """Model that samples and scores."""

    policy: str
    version: str
    """Version of its weights; changes with every :meth:`load`."""

    @property
    def stats(self) -> Stats: ...

    @property
    def width(self) -> int:
        """Number of requests that run at a time; more wait, and requests of older dialogues come first."""
        ...

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion per seed, in order. Raises :class:`EngineError`."""
        ...

    async def load(self, path: Path, version: str) -> None:
        """Load weights and drop all cached prefixes of the old version.

        Requests in flight go on, with the new weights or with their adapter.
        """
        ...
