"""Engine in this process: continuous batching, shared prefixes, and detection of changed weights.

Model steps run on the event loop, one token for every running sequence; other tasks run between two steps.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from coterie.engines.llama import CompiledLlama
from coterie.engines.protocol import (
    Completion,
    EngineError,
    Sampling,
    Stats,
    check_length,
    scored_sequences,
)
from coterie.engines.sequence import Running, Scoring
from coterie.errors import UserError
from coterie.models.adapters import NUMBA_ERROR, activate, checksums, load_adapter
from coterie.models.check import CheckedModel, check
from coterie.models.loading import LoadedModel, context_length, reload
from coterie.models.logprobs import (
    attending,
    masked_attention,
    partial_attention,
    sequence_logprobs,
)
from coterie.models.prefix_trie import Splitter

if not NUMBA_ERROR:
    from coterie.engines import kernels

if TYPE_CHECKING:
    from coterie.engines.padded import PaddedRows

COLDEST = 1e-6
"""At this temperature and below sampling is greedy, because quotients would overflow."""
NONE = -1
"""Id for logits that are not a distribution."""


def draw(logits: Tensor, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sample one token per row. Return ids and their log-probs (nats, float32) in the sampling distribution.

    Each token inverts the cumulative distribution at a uniform number. Temperature 0 (up to ``COLDEST``) takes the most
    likely token with log-prob 0. Top-p keeps the smallest set of most likely tokens whose probability reaches it
    (Holtzman et al. 2020). If a logit is NaN or the largest is not finite, the id is ``NONE``.

    Args:
        logits: float32 ``[N, V]``.
        settings: float64 ``[N, 3]``: temperature, top-p, and a number in [0, 1).
    """
    temperature = np.where(settings[:, :1] > COLDEST, settings[:, :1], 0.0)
    settings = np.hstack([temperature, settings[:, 1:]])
    if NUMBA_ERROR or logits.device.type != "cpu":
        return draw_by_torch(logits, settings)
    ids, logprobs = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    kernels.draw(np.ascontiguousarray(logits.numpy()), settings, ids, logprobs)
    return ids, logprobs


def draw_by_torch(logits: Tensor, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Implement :func:`draw` on a GPU, and on CPU without numba; temperatures below ``COLDEST`` have to be 0."""
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
    thresholds = noise[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, thresholds, right=True).squeeze(1)
    ids = torch.where(greedy, logits.argmax(-1), ids).masked_fill(none, NONE)
    chosen = logprobs.gather(1, ids[:, None].clamp(min=0)).squeeze(1)
    chosen = chosen.masked_fill(greedy, 0.0).masked_fill(none, torch.nan)
    return ids.cpu().numpy(), chosen.cpu().numpy()


def _top_p(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Renormalize log-probs over the nucleus, with ``-inf`` outside."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    mass_before = ordered.exp().cumsum(-1) - ordered.exp()
    ordered = ordered.masked_fill(mass_before >= top_p[:, None], -torch.inf)
    ordered = ordered - ordered.logsumexp(-1, keepdim=True)
    return torch.empty_like(logprobs).scatter_(-1, order, ordered)


class WatchedWeights:
    """Snapshot of the weights of a model, and of the adapters that it uses.

    Torch does not record a write through ``.data`` (as when PEFT merges adapters) or a step of a fused optimizer. So
    checksums of all bytes are compared before prompts are read or sequences scored (35 ms for 135 million weights).
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        used, self._how = _look(model)
        self._sums = checksums(used)
        self._written = [(weight, _version(weight)) for weight in used]

    @property
    def is_same(self) -> bool:
        """True if the model uses the same weights now, byte for byte (by checksum)."""
        used, how = _look(self._model)
        return how == self._how and checksums(used) == self._sums

    @property
    def is_written(self) -> bool:
        """True if torch recorded a write or move: cheap enough for each step, but misses some writes."""
        return any(_version(weight) != version for weight, version in self._written)


def _look(model: nn.Module) -> tuple[list[Tensor], list[object]]:
    """Return the saved weights, each once, and how they are used: names, dtypes, shapes, devices and adapters.

    Buffers that are not saved (such as rotary angles) derive from the config, in some models in each forward pass.
    """
    state = model.state_dict(keep_vars=True)
    how: list[object] = [
        (name, tensor.dtype, tensor.shape, tensor.device) for name, tensor in state.items()
    ]
    for module in model.modules():
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)):
            merged, scaling = (getattr(module, name, ()) for name in ("merged_adapters", "scaling"))
            how += [module.disable_adapters, *module.active_adapters, list(merged), dict(scaling)]
    return list({id(tensor): tensor for tensor in state.values()}.values()), how


def _version(weight: Tensor) -> tuple[int, int]:
    """Return the address of a weight and torch's count of its writes."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


STEPS = 3
"""Number of tokens that the check decodes one by one after the prompt."""
DO = "use the vLLM engine for this model"
CACHED_BYTES = 1 << 26
"""Maximum size of the weights for scoring with compiled loops; for larger models torch's matrix products, which start
all threads, are faster (bench/logprobs.py)."""
CHANGED = "the model's weights were changed while requests were in flight"
SCORED_TOKENS = 8192
"""Padded tokens of a scoring batch."""


class Runner:
    """Runner of one model over rows; caches of other weights are not used.

    Raises ``UserError`` if its log-probs would differ from the model's own forward pass.
    """

    def __init__(self, loaded: LoadedModel, cache_bytes: int) -> None:
        _check_supported(loaded)
        self._loaded = loaded
        self._cache_bytes = cache_bytes
        checked = check(loaded.model)
        self._rule = checked.rule
        self._small = sum(weight.nbytes for weight in loaded.model.parameters()) <= CACHED_BYTES
        self._rows: CompiledLlama | PaddedRows | None = None
        self._weights: WatchedWeights | None = None
        mode = "compiled" if CompiledLlama.fits(loaded.model) else "padded"
        if mode not in checked.ways:
            self._check(checked)
            checked.ways.add(mode)

    @property
    def rows(self) -> "CompiledLlama | PaddedRows":
        assert self._rows is not None
        return self._rows

    def clear(self) -> None:
        self._rows = None

    def forget(self) -> None:
        if self._rows is not None:
            self._rows.forget()

    def update(self) -> None:
        """Use the model's new weights from the next token on. Running rows keep their keys and values."""
        rows, model = self.rows, self._loaded.model
        if isinstance(rows, CompiledLlama) != CompiledLlama.fits(model):
            raise RuntimeError(CHANGED)
        if isinstance(rows, CompiledLlama):
            rows.pack(model)
        rows.forget()
        self._weights = WatchedWeights(model)

    @torch.inference_mode()
    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into a free row. Return the next logits ``[N, V]`` and the numbers of cached tokens."""
        return self._follow(min(rows)).prefill(rows, prompts)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Append one token to each of the N running rows. Return the next logits ``[N, V]``."""
        assert self._weights is not None
        if self._weights.is_written:
            raise RuntimeError(CHANGED)
        return self.rows.decode(tokens, positions)

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, running: int = 0
    ) -> list[list[float]]:
        """Compute log-probs of ``ids[start:]`` of sequences with the same first ``start`` ids, beside running rows."""
        if self._small and isinstance(rows := self._follow(running), CompiledLlama):
            return rows.score(sequences, start, running)
        model = self._loaded.model
        splitter = Splitter([[ids] for ids in sequences], self._rule, SCORED_TOKENS)
        scores: list[list[float]] = [[] for _ in sequences]
        with attending(model, masked_attention(model)):
            for part in splitter.microbatches(splitter.families(range(len(sequences))))[0]:
                chosen = [sequences[i] for i in part]
                positions = [range(start, len(ids)) for ids in chosen]
                logprobs = sequence_logprobs(model, chosen, positions, self._rule)
                for i, values in zip(part, logprobs, strict=True):
                    scores[i] = values.tolist()
        return scores

    def _follow(self, running: int) -> "CompiledLlama | PaddedRows":
        model = self._loaded.model
        if self._rows is not None and self._weights is not None and self._weights.is_same:
            return self._rows
        if running:
            raise RuntimeError(CHANGED)
        self._weights = WatchedWeights(model)
        if CompiledLlama.fits(model):
            self._rows = CompiledLlama(model, self._cache_bytes)
        else:
            # Compiled models do not load the loop of Transformers.
            from coterie.engines.padded import PaddedRows

            self._rows = PaddedRows(self._loaded, self._cache_bytes)
        return self._rows

    def _check(self, checked: CheckedModel) -> None:
        """Compare prefill, decode and score with the log-probs of the model's own pass."""
        with torch.no_grad():
            expected = [logprobs.cpu() for logprobs in checked.own(self._loaded.model)]
        expected_steps = [logprobs[-STEPS - 1 :] for logprobs in expected]
        checked.demand(
            "when sampled with cached keys", lambda: self._stepped(checked), expected_steps, DO
        )
        checked.demand(
            "when scored by the engine",
            lambda: list(map(torch.tensor, self.score(checked.rows, 1))),
            expected,
            DO,
        )

    @torch.inference_mode()
    def _stepped(self, checked: CheckedModel) -> list[Tensor]:
        """Compute the log-probs of the last tokens of each row by prefill and single steps."""
        prompts = [row[: -STEPS - 1] for row in checked.rows]
        lasts = [row[-STEPS - 1 :] for row in checked.rows]
        logits, _ = self.prefill(range(len(prompts)), prompts)
        steps = [logits]
        for step in range(STEPS):
            positions = [len(prompt) + step for prompt in prompts]
            steps.append(self.decode([tokens[step] for tokens in lasts], positions))
        for row, ids in reversed(list(enumerate(checked.rows))):
            self.rows.leave(row, ids[:-1], row, len(ids) - 1)
        self.forget()
        logprobs = torch.stack(steps).float().cpu().log_softmax(-1)
        return list(logprobs.gather(2, torch.tensor(lasts).T[..., None]).squeeze(2).T)


def _check_supported(loaded: LoadedModel) -> None:
    """Raise ``UserError`` for partial attention, or a context that is longer than the model supports."""
    config = loaded.model.config
    if kinds := partial_attention(config):
        raise UserError(
            "the in-process engine supports only full attention, but this "
            f"{config.model_type} model has {', '.join(kinds)}",
            DO,
        )
    max_length = context_length(config)
    if max_length is not None and loaded.context_length > max_length:
        raise UserError(
            f"context_length={loaded.context_length} is longer than the context of {loaded.source}, "
            f"{max_length} tokens",
            f"use context_length={max_length} or less",
        )


Result = TypeVar("Result")
PATIENCE = 4
"""Steps between prefills while sequences run, for fewer and larger model calls."""
NO_NUMBERS = "not finite: the model's weights are damaged, or a training has made them infinite; load it again"


class InProcessEngine:
    """:class:`~coterie.engines.protocol.Engine` in this process.

    A completion depends only on weights, prompt, seed and sampling parameters: with compiled loops (Llama and Qwen2 in
    float32 on CPU, no adapters) bitwise on every processor, in any batch and with any number of threads. With
    Transformers the last bits of log-probs may vary with the batch and the processor, so that a token may differ if its
    random number is that close to a boundary. While requests run, weights may change only by :meth:`load`. Engines of
    several roles may share a model with an ``adapter`` each. At most ``max_batch`` sequences run at a time.
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
    ) -> None:
        self.loaded = loaded
        self.policy = policy
        self.version = version
        self.adapter = adapter
        if adapter is not None:
            activate(loaded.model, adapter)
        self.stats = Stats()
        self.width = max_batch
        self._runner = Runner(loaded, cache_bytes)
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._scoring: deque[Scoring] = deque()
        self._patience = 0
        self._loads = 0
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

        ``on_token`` is called with each sampled id; its exceptions fail the request.
        """
        with self.stats.request():
            sampling.check()
            self.check(prompt, sampling.max_tokens)
            loop, ids = asyncio.get_running_loop(), tuple(prompt)
            batch = [Running(ids, seed, sampling, loop.create_future(), on_token) for seed in seeds]
            self._waiting.extend(batch)
            return await self._results([request.future for request in batch])

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Compute log-probs of continuations; only requests of the same call are batched."""
        with self.stats.request():
            sequences = scored_sequences(prefix, continuations)
            for ids in sequences:
                self.check(ids, 0)
            scoring = Scoring(sequences, len(prefix), asyncio.get_running_loop().create_future())
            self._scoring.append(scoring)
            return (await self._results([scoring.future]))[0]

    async def load(self, path: Path, version: str) -> None:
        """Load a checkpoint or merge a LoRA adapter in place; an engine with an adapter loads only the adapter.

        Running requests continue with the new weights on their old keys and values, which no other request reads. What
        they sample then is the distribution of neither version; vLLM servers compute the keys and values again.
        """
        if self.adapter is None:
            reload(self.loaded, path)
        else:
            load_adapter(self.loaded.model, path, name=self.adapter)
        self._loads += 1
        if self._running:
            self._runner.update()
        else:
            self._runner.clear()
        self.version = version

    def forget(self) -> None:
        """Drop the cached keys and values of prefixes. Raises ``EngineError`` while requests run."""
        self._check_idle("forget prefixes")
        self._runner.forget()

    def check(self, ids: Sequence[int], new_tokens: int) -> None:
        """Raise :class:`EngineError` for ids that would fail the model step, and with it other requests."""
        vocabulary = self.loaded.model.config.get_text_config().vocab_size
        if not ids or min(ids) < 0 or max(ids) >= vocabulary:
            raise EngineError(f"a prompt needs ids from 0 to {vocabulary - 1}, and at least one")
        check_length(len(ids), new_tokens, self.loaded.context_length, self.policy)

    def _check_idle(self, action: str) -> None:
        if any(not item.future.done() for item in self._items()):
            raise EngineError(
                f"can't {action}: requests of version {self.version} are in flight; await them"
            )

    def _items(self) -> list[Running | Scoring]:
        return [*self._waiting, *self._running, *self._scoring]

    async def _results(self, futures: list[asyncio.Future[Result]]) -> list[Result]:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            return list(await asyncio.gather(*futures))
        finally:
            for future in futures:
                future.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting or self._running or self._scoring:
                self._step()
                await asyncio.sleep(0)
        finally:
            self._fail(self._items(), "the engine was stopped")
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

    def _joining(self) -> list[Running]:
        """Return the next requests within ``max_batch``, every few steps, to read prompts together."""
        joining: list[Running] = []
        self._patience -= 1
        if self._running and self._patience > 0:
            return joining
        self._patience = PATIENCE
        # Older dialogues first (the sort is stable), so that they end before more begin.
        self._waiting = deque(sorted(self._waiting, key=lambda request: request.work_number))
        while self._waiting and len(self._running) + len(joining) < self.width:
            if not (waiting := self._waiting.popleft()).future.done():
                waiting.start, waiting.loads = time.monotonic(), self._loads
                joining.append(waiting)
        return joining

    def _join(self, joining: list[Running]) -> None:
        """Read the prompts (equal ones once) and sample each request's first token."""
        first_row = len(self._running)
        same: dict[tuple[int, ...], list[int]] = {}
        for row, request in enumerate(joining, first_row):
            same.setdefault(request.prompt, []).append(row)
        logits, cached = self._runner.prefill([rows[0] for rows in same.values()], list(same))
        for (prompt, (row, *copies)), count in zip(same.items(), cached, strict=True):
            self._runner.rows.fork(row, copies, len(prompt))
            for joined_row in (row, *copies):
                joining[joined_row - first_row].cached = count
        self.stats.prompt_tokens += sum(map(len, same))
        self.stats.cached_tokens += sum(cached)
        source = {row: index for index, rows in enumerate(same.values()) for row in rows}
        self._running += joining
        self._moved = True
        sources = [source[row] for row in range(first_row, first_row + len(joining))]
        self._accept(first_row, logits[sources])

    def _decode(self) -> None:
        if self._moved:
            order = self._runner.rows.arrange(len(self._running))
            self._running = [self._running[row] for row in order]
            self._moved = False
        running = self._running
        logits = self._runner.decode(
            [request.ids[-1] for request in running], [o.place for o in running]
        )
        self._accept(0, logits)

    def _accept(self, first_row: int, logits: torch.Tensor) -> None:
        """Sample a token for each running request from ``first_row`` on, and remove the finished ones."""
        ones = self._running[first_row:]
        settings = [(o.sampling.temperature, o.sampling.top_p, o.noise[len(o.ids)]) for o in ones]
        ids, logprobs = draw(logits, np.array(settings))
        self.stats.sampled_tokens += len(ones)
        renderer = self.loaded.renderer
        for request, token, logprob in zip(ones, ids.tolist(), logprobs.tolist(), strict=True):
            if token == NONE:
                self._fail(
                    [request], f"after {len(request.ids)} tokens the logits are {NO_NUMBERS}"
                )
                continue
            try:
                request.accept(token, logprob, self.version, renderer.end_ids, renderer.decode)
            except (Exception, asyncio.CancelledError) as error:  # such as from on_token
                self._fail([request], f"taking in a sampled token failed: {error!r}", error)
        self._leave()
        if NONE in ids:
            self._runner.forget()  # NaN spreads to other tokens of a block

    def _leave(self) -> None:
        """Remove finished and canceled requests; the last row moves into the free place."""
        running = self._running
        for request in running:
            if request.is_late:
                self._fail([request], f"no answer within {request.sampling.timeout:g} s")
        for row in range(len(running) - 1, -1, -1):
            if running[row].future.done():
                done, last_request = running[row], running.pop()
                ids, reuse = done.computed_ids, done.loads == self._loads
                self._runner.rows.leave(row, ids, len(running), last_request.place, reuse=reuse)
                if row < len(running):
                    running[row] = last_request
                    self._moved = True

    def _score(self, scoring: Scoring) -> None:
        if scoring.future.done():
            return
        try:
            scores = self._runner.score(scoring.sequences, scoring.start, len(self._running))
        except Exception as error:
            self._fail([scoring], f"scoring failed: {error!r}", error)
            return
        if not all(map(math.isfinite, (score for logprobs in scores for score in logprobs))):
            self._fail([scoring], f"log-probs of given tokens are {NO_NUMBERS}")
            self._runner.forget()
            return
        scoring.future.set_result(scores)

    def _fail(
        self, items: Sequence[Running | Scoring], problem: str, cause: BaseException | None = None
    ) -> None:
        for item in items:
            if not item.future.done():
                error = EngineError(f"{self.policy}@{self.version}: {problem}")
                error.__cause__ = cause
                item.future.set_exception(error)
