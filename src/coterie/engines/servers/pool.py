"""A pool of inference servers as one engine.

Each request goes to the server with the longest cached prefix (:mod:`coterie.engines.servers.routing`). After a
transient failure it is retried after a pause, on another server if possible, a bounded number of times. A final failure
raises :class:`~coterie.engines.protocol.EngineError` with the reason. A request carries its seed, so its completion
does not depend on the server or the attempt.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from coterie.engines.prefixes import block_keys
from coterie.engines.protocol import Completion, EngineError, EngineGone, Sampling, Stats
from coterie.engines.servers.client import ServerClient
from coterie.engines.servers.faults import FinalFault, ServerFault, TransientFault
from coterie.engines.servers.member import Member, ServedWeights, absolute
from coterie.engines.servers.probe import compare_weights
from coterie.engines.servers.routing import PrefixRouter
from coterie.engines.servers.settings import VLLMSettings
from coterie.engines.servers.wire import ReportedUsage
from coterie.models.loading import is_adapter, resolve

Result = TypeVar("Result")
FIRST_PAUSE = 0.25
MAX_PAUSE = 30.0
POLL_SECONDS = 0.1


@dataclass(slots=True)
class PoolStats(Stats):
    """Counts of a pool."""

    retries: int = 0
    restarts: int = 0


class ServerPool:
    """:class:`~coterie.engines.protocol.Engine` over servers, created by :mod:`coterie.engines.servers.opening`.

    ``probe`` has a few ids whose log-probs show if servers have the same weights.
    """

    def __init__(
        self,
        members: Sequence[Member],
        settings: VLLMSettings,
        weights: ServedWeights,
        *,
        policy: str,
        probe: Sequence[int],
    ) -> None:
        self.policy = policy
        self.version = weights.version
        self.members = members
        self.router = PrefixRouter(len(members))
        self._stats = PoolStats()
        self._settings = settings
        self._weights = weights
        self._probe = probe
        self._jitter = random.Random(settings.seed)
        self._calls = 0
        self._unusable = ""
        """Reason why the pool can't sample now, or ""."""
        self._adapters = 0

    @property
    def stats(self) -> PoolStats:
        restarts = sum(getattr(member, "restarts", 0) for member in self.members)
        return replace(self._stats, restarts=restarts)

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion per seed, in order, with one concurrent request each.

        Raises :class:`EngineError` for invalid requests, and after the last attempt.
        """
        with self._call():
            if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
                raise EngineError(f"can't sample with {sampling}")
            ids = tuple(prompt)
            self._check(ids, sampling.max_tokens)
            return await _all(self._complete(ids, seed, sampling) for seed in seeds)

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Compute the log-prob (nats, temperature 1) of each id of continuations of one prefix.

        Sends one request per continuation; servers cache the prefix.
        """
        with self._call():
            if not prefix or not continuations or not all(map(len, continuations)):
                raise EngineError("log-probs need a prefix and non-empty continuations")
            sequences = [(*prefix, *continuation) for continuation in continuations]
            for ids in sequences:
                self._check(ids, 1)  # servers score only if they sample one more token
            return await _all(self._score(ids, len(prefix)) for ids in sequences)

    async def load(self, path: Path, version: str) -> None:
        """Load a checkpoint, or a LoRA adapter for the present checkpoint, on all servers concurrently.

        An adapter gets a new name. Raises :class:`EngineError` while requests are in flight. After a failure on any
        server the pool does not sample until a load succeeds.
        """
        if self._calls or self._unusable == _LOADING:
            raise EngineError(
                f"can't load {path}: requests of version {self.version} are in flight; await them"
            )
        before, self._unusable = self._unusable, _LOADING
        try:
            weights = await self._new_weights(path, version)
        except BaseException:
            self._unusable = before
            raise
        try:
            members = [member for member in self.members if not member.lost]
            if not members:
                raise EngineError(f"no server is left to load {path}")
            async with asyncio.timeout(self._settings.start_seconds):
                await _all(member.serve(weights) for member in members)
                self.router.clear()
                reason = await compare_weights([member.client for member in members], self._probe)
            if reason:
                raise EngineError(f"after loading {path}, {reason}")
        except BaseException as error:
            self._unusable = (
                f"loading {path} as version {version} failed: {str(error) or repr(error)}"
            )
            if isinstance(error, ServerFault | TimeoutError):
                raise EngineError(self._unusable) from error
            raise
        self._unusable = ""
        self._weights, self.version = weights, version

    def forget(self, index: int) -> None:
        """Drop the routes of a server that lost its cache."""
        self.router.forget(index)

    def _check(self, ids: Sequence[int], more: int) -> None:
        """Raise ``EngineError`` for ids that exceed the context, which some servers would truncate."""
        if not ids:
            raise EngineError("a prompt needs at least one token")
        contexts = [member.context for member in self.members if member.context]
        if contexts and len(ids) + more > min(contexts):
            raise EngineError(
                f"context overflow: {len(ids)} tokens and up to {more} more, but {self.policy} "
                f"takes {min(contexts)}"
            )

    async def _new_weights(self, path: Path, version: str) -> ServedWeights:
        if not is_adapter(path):
            return ServedWeights(absolute(resolve(path)), version)
        for member in self.members:
            member.backend.check_adapter(path)
        try:
            models = [await member.client.models() for member in self.members if member.up]
        except ServerFault as error:
            raise EngineError(f"can't load {path}: {error}") from error
        names = {card.id for cards in models for card in cards}
        self._adapters += 1
        while (name := f"{self.policy}-{self._adapters}") in names:
            self._adapters += 1
        return replace(self._weights, version=version, adapter=path, adapter_name=name)

    async def _complete(self, prompt: tuple[int, ...], seed: int, sampling: Sampling) -> Completion:
        async def ask(client: ServerClient) -> tuple[Completion, ReportedUsage]:
            return await client.complete(prompt, seed, sampling)

        keys = block_keys(prompt)
        index, (completion, usage) = await self._answer(keys, sampling.timeout, ask)
        self.router.remember(index, block_keys(prompt + completion.ids))
        self._count(usage)
        self._stats.sampled_tokens += len(completion.ids)
        return completion

    async def _score(self, ids: tuple[int, ...], start: int) -> list[float]:
        timeout = self._settings.stall_seconds * self._settings.attempts
        _, scored = await self._answer(block_keys(ids), timeout, lambda c: c.score(ids, start))
        self._count(scored.usage)
        self._stats.scored_tokens += len(scored.logprobs)
        return scored.logprobs

    def _count(self, usage: ReportedUsage) -> None:
        self._stats.prompt_tokens += usage.prompt_tokens
        self._stats.cached_tokens += usage.cached_tokens

    async def _answer(
        self,
        keys: Sequence[bytes],
        timeout: float,
        ask: Callable[[ServerClient], Awaitable[Result]],
    ) -> tuple[int, Result]:
        """Return the index of a server and its valid answer; ``timeout`` counts from the first attempt."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        failed: int | None = None
        fault: TransientFault | None = None
        for attempt in range(self._settings.attempts):
            if fault is not None:
                self._stats.retries += 1
                await asyncio.sleep(self._pause(attempt, fault))
            index = await self._choose(keys, failed)
            member = self.members[index]
            with member.assign():
                async with member.slots:
                    deadline = deadline or loop.time() + timeout
                    try:
                        return index, await self._ask(member, deadline, ask)
                    except TransientFault as error:
                        fault, failed = error, index
                    except FinalFault as error:
                        raise EngineError(f"{self.policy}: {error}") from error
            if loop.time() >= deadline:
                raise EngineError(
                    f"{self.policy}: no answer within {timeout:g} s: {fault}"
                ) from fault
        raise EngineError(
            f"{self.policy}: failed after {self._settings.attempts} attempts, the last on "
            f"{member.name}: {fault}"
        ) from fault

    async def _ask(
        self,
        member: Member,
        deadline: float,
        ask: Callable[[ServerClient], Awaitable[Result]],
    ) -> Result:
        """Send a request to one server; a timeout is a transient fault."""
        stall = asyncio.get_running_loop().time() + self._settings.stall_seconds
        try:
            async with asyncio.timeout_at(min(deadline, stall)):
                return await ask(member.client)
        except TimeoutError as error:
            member.report_stall()
            raise TransientFault(f"{member.name} stalled") from error

    async def _choose(self, keys: Sequence[bytes], failed: int | None) -> int:
        while True:
            up = [index for index, member in enumerate(self.members) if member.up]
            if up:
                loads = [member.load for member in self.members]
                index = self.router.choose(keys, loads, [i for i in up if i != failed] or up)
                self.router.remember(index, keys)
                return index
            lost = [f"{member.name} {member.lost}" for member in self.members if member.lost]
            if len(lost) == len(self.members):
                raise EngineGone(f"{self.policy}: no server is left: " + "; ".join(lost))
            await asyncio.sleep(POLL_SECONDS)

    def _pause(self, attempt: int, fault: TransientFault) -> float:
        """Return the pause in seconds before an attempt: requested by the server, or doubled each time."""
        if fault.retry_after is not None:
            return fault.retry_after
        pause = min(FIRST_PAUSE * 2**attempt, MAX_PAUSE)
        return pause * self._jitter.uniform(0.5, 1.0)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a call of the engine. Raises ``EngineError`` while weights are loading or after a failed load."""
        self._stats.requests += 1
        try:
            if self._unusable:
                raise EngineError(f"{self.policy}: {self._unusable}")
            self._calls += 1
            try:
                yield
            finally:
                self._calls -= 1
        except BaseException:
            self._stats.failures += 1
            raise


_LOADING = "weights are being loaded"


async def _all(work: Iterator[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Await all and return the results in order. On a failure, cancel and await the others first."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
