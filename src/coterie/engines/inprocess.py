"""Embedded engine: continuous batching of a Transformers model on the caller's asyncio loop.

Model steps run on the loop, one token for every running sequence. Between two steps other tasks run: callers of
finished completions continue, and new requests join at the next step. There are no threads, so the same calls give the
same results in the same order.

A completion depends only on weights, prompt, seed and sampling parameters. With compiled loops
(:mod:`coterie.engines.compiled`: Llama and Qwen2 in float32 on CPU, no adapters) that holds bitwise on every processor,
in any batch and with any number of threads. Otherwise the last bits of log-probs may vary with the batch and the
processor, so that a token may differ if its random number is that close to a boundary.

Weights may change in any way while no request runs; caches of old weights are not used
(:mod:`coterie.engines.weights`).
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from coterie.engines.drawing import NONE, draw
from coterie.engines.protocol import Completion, EngineError, Sampling, Stats
from coterie.engines.runner import Runner
from coterie.engines.sequence import Running, Scoring
from coterie.models.adapters import activate, load_adapter
from coterie.models.loading import LoadedModel, reload

Result = TypeVar("Result")
PATIENCE = 4
"""Steps between prefills while sequences run, for fewer and larger model calls."""


NO_NUMBERS = "not finite: the model's weights are damaged, or a training has made them infinite; load it again"


@dataclass(slots=True)
class InProcessStats(Stats):
    """Counts of the embedded engine."""

    steps: int = 0


class InProcessEngine:
    """:class:`~coterie.engines.protocol.Engine` in this process.

    Raises ``UserError`` for an adapter that the model does not have.

    Args:
        loaded: Model and renderer.
        policy: Role of the policy, for messages.
        version: Version of the weights.
        adapter: Adapter to sample with, if the model has several: engines of several roles may share a model.
        max_batch: Maximum number of running sequences.
        cache_bytes: Maximum size of the prefix cache.
        timeout: Timeout of :meth:`logprobs`, in seconds.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        policy: str = "policy",
        version: str = "0",
        adapter: str | None = None,
        max_batch: int = 128,
        cache_bytes: int = 1 << 32,
        timeout: float = 600.0,
    ) -> None:
        self.loaded = loaded
        self.policy = policy
        self.version = version
        self.timeout = timeout
        self.adapter = adapter
        if adapter is not None:
            activate(loaded.model, adapter)
        self.stats = InProcessStats()
        self._max_batch = max_batch
        self._runner = Runner(loaded, cache_bytes)
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._scoring: deque[Scoring] = deque()
        self._patience = 0
        self._moved = False
        """True if rows were added or removed since the last reordering."""
        self._task: asyncio.Task[None] | None = None

    async def sample(
        self,
        prompt: Sequence[int],
        seeds: Sequence[int],
        sampling: Sampling,
        *,
        on_token: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Sample one completion per seed, in order; the prompt is read once.

        ``on_token`` is called with each sampled id, to stream a single completion; its exceptions fail the request.
        Raises :class:`EngineError` if prompt and ``max_tokens`` exceed the context, on timeout, if the model fails, or
        if its logits are not finite.
        """
        self.stats.requests += 1
        try:
            _check_sampling(sampling)
            self.check(prompt, sampling.max_tokens)
            loop, ids = asyncio.get_running_loop(), tuple(prompt)
            batch = [Running(ids, seed, sampling, loop.create_future(), on_token) for seed in seeds]
            self._waiting.extend(batch)
            return await self._results([one.future for one in batch])
        except BaseException:
            self.stats.failures += 1
            raise

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Compute the log-prob (nats, temperature 1) of each id of continuations of one prefix.

        Only continuations of the same call are batched.
        """
        self.stats.requests += 1
        try:
            if not prefix or not continuations or not all(map(len, continuations)):
                raise EngineError("log-probs need a prefix and non-empty continuations")
            sequences = [(*prefix, *continuation) for continuation in continuations]
            for ids in sequences:
                self.check(ids, 0)
            future: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
            self._scoring.append(Scoring(sequences, len(prefix), future))
            return (await self._results([future]))[0]
        except BaseException:
            self.stats.failures += 1
            raise

    async def load(self, path: Path, version: str) -> None:
        """Load a checkpoint or merge a LoRA adapter in place; an engine with an adapter loads only the adapter.

        Raises :class:`EngineError` while requests are in flight, because they would mix two versions.
        """
        if self.busy:
            raise EngineError(
                f"can't load {path}: requests of version {self.version} are in flight; await them"
            )
        if self.adapter is None:
            reload(self.loaded, path)
        else:
            load_adapter(self.loaded.model, path, name=self.adapter)
        self._runner.clear()
        self.version = version

    def forget(self) -> None:
        """Drop the prefix cache. Raises :class:`EngineError` while requests are in flight."""
        if self.busy:
            raise EngineError("can't forget prefixes while requests are in flight; await them")
        self._runner.forget()

    def check(self, ids: Sequence[int], more: int) -> None:
        """Raise :class:`EngineError` for invalid ids, or if ``more`` ids exceed the context.

        They would fail the model step, and with it other requests.
        """
        vocabulary = self.loaded.model.config.get_text_config().vocab_size
        if not ids or min(ids) < 0 or max(ids) >= vocabulary:
            raise EngineError(f"a prompt needs ids from 0 to {vocabulary - 1}, and at least one")
        if len(ids) + more > self.loaded.context_length:
            raise EngineError(
                f"context overflow: {len(ids)} tokens and up to {more} more, but "
                f"{self.policy} takes {self.loaded.context_length}"
            )

    async def _results(self, futures: list[asyncio.Future[Result]]) -> list[Result]:
        """Await all futures; on an error cancel the others."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            return list(await asyncio.gather(*futures))
        finally:
            for future in futures:
                future.cancel()

    @property
    def busy(self) -> bool:
        items: list[Running | Scoring] = [*self._waiting, *self._running, *self._scoring]
        return any(not item.future.done() for item in items)

    async def _run(self) -> None:
        try:
            while self._waiting or self._running or self._scoring:
                self._step()
                await asyncio.sleep(0)
        finally:
            self._fail([*self._waiting, *self._running, *self._scoring], "the engine was stopped")
            self._waiting.clear()
            self._running.clear()
            self._scoring.clear()

    @torch.inference_mode()
    def _step(self) -> None:
        """Add new requests, sample one token for each running one, and score one scoring request."""
        self._leave()
        joining = self._joining()
        try:
            if self.adapter is not None:
                activate(self.loaded.model, self.adapter)
            if joining:
                self._join(joining)
            if self._running:
                self._decode()
        except Exception as error:
            self._fail([*joining, *self._running], f"a model step failed: {error!r}", error)
            self._running.clear()
            self._runner.clear()
        if self._scoring:
            self._score(self._scoring.popleft())
        self.stats.steps += 1

    def _joining(self) -> list[Running]:
        """Return the next requests within ``max_batch``, every few steps, to read prompts together."""
        joining: list[Running] = []
        self._patience -= 1
        if self._running and self._patience > 0:
            return joining
        self._patience = PATIENCE
        while self._waiting and len(self._running) + len(joining) < self._max_batch:
            if not (one := self._waiting.popleft()).future.done():
                one.start = time.monotonic()
                joining.append(one)
        return joining

    def _join(self, joining: list[Running]) -> None:
        """Read the prompts (equal ones once) and sample each request's first token."""
        first = len(self._running)
        same: dict[tuple[int, ...], list[int]] = {}
        for row, one in enumerate(joining, first):
            same.setdefault(one.prompt, []).append(row)
        logits, cached = self._runner.prefill([rows[0] for rows in same.values()], list(same))
        for (prompt, (row, *others)), count in zip(same.items(), cached, strict=True):
            self._runner.fork(row, others, len(prompt))
            for place in (row, *others):
                joining[place - first].cached = count
        self.stats.prompt_tokens += sum(map(len, same))
        self.stats.cached_tokens += sum(cached)
        source = {row: index for index, rows in enumerate(same.values()) for row in rows}
        self._running += joining
        self._moved = True
        places = [source[row] for row in range(first, first + len(joining))]
        self._accept(first, logits[places])

    def _decode(self) -> None:
        if self._moved:
            order = self._runner.arrange(len(self._running))
            self._running = [self._running[row] for row in order]
            self._moved = False
        running = self._running
        logits = self._runner.decode([one.ids[-1] for one in running], [o.place for o in running])
        self._accept(0, logits)

    def _accept(self, first: int, logits: torch.Tensor) -> None:
        """Sample a token for each running request from ``first`` on, and remove the finished ones."""
        ones = self._running[first:]
        settings = [(o.sampling.temperature, o.sampling.top_p, o.noise[len(o.ids)]) for o in ones]
        ids, logprobs = draw(logits, np.array(settings))
        self.stats.sampled_tokens += len(ones)
        renderer = self.loaded.renderer
        for one, token, logprob in zip(ones, ids.tolist(), logprobs.tolist(), strict=True):
            if token == NONE:
                self._fail([one], f"after {len(one.ids)} tokens the logits are {NO_NUMBERS}")
                continue
            try:
                one.accept(token, logprob, renderer.end_ids, renderer.decode)
            except (Exception, asyncio.CancelledError) as error:  # such as from on_token
                self._fail([one], f"taking in a sampled token failed: {error!r}", error)
        self._leave()
        if NONE in ids:
            self._runner.forget()  # NaN spreads to other tokens of a block

    def _leave(self) -> None:
        """Remove finished and canceled requests; the last row moves into the free place."""
        running = self._running
        for one in running:
            if one.is_late and not one.future.done():
                error = EngineError(_late(self.policy, one.sampling.timeout))
                one.future.set_exception(error)
        for row in range(len(running) - 1, -1, -1):
            if running[row].future.done():
                done, last = running[row], running.pop()
                self._runner.leave(row, done.computed_ids, len(running), last.place)
                if row < len(running):
                    running[row] = last
                    self._moved = True

    def _score(self, one: Scoring) -> None:
        if one.future.done():
            return
        try:
            scores = self._runner.score(one.sequences, one.start, len(self._running))
        except Exception as error:
            self._fail([one], f"scoring failed: {error!r}", error)
            return
        if not all(map(math.isfinite, (score for logprobs in scores for score in logprobs))):
            self._fail([one], f"log-probs of given tokens are {NO_NUMBERS}")
            self._runner.forget()
            return
        self.stats.scored_tokens += sum(map(len, scores))
        one.future.set_result(scores)

    def _fail(
        self, items: Sequence[Running | Scoring], what: str, cause: BaseException | None = None
    ) -> None:
        for item in items:
            if not item.future.done():
                error = EngineError(f"{self.policy}@{self.version}: {what}")
                error.__cause__ = cause
                item.future.set_exception(error)


def _check_sampling(sampling: Sampling) -> None:
    """Raise :class:`EngineError` for invalid sampling parameters."""
    is_invalid = not 0 <= sampling.temperature < math.inf or not 0 < sampling.top_p <= 1
    if is_invalid or sampling.max_tokens < 1 or "" in sampling.stop:
        raise EngineError(f"can't sample with {sampling}")


def _late(policy: str, timeout: float) -> str:
    return f"{policy}: no answer within {timeout:g} s"
