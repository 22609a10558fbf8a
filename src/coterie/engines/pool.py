"""Pool of inference servers as one engine: start, routing of prompts, retries, and checks of log-probs.

A request carries its seed, so its completion does not depend on the server or the attempt.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coterie.engines.endpoint import ReportedUsage, ServerFault, TransientFault, backoff
from coterie.engines.protocol import (
    Completion,
    EngineError,
    EngineGone,
    Sampling,
    Stats,
    check_length,
    scored_sequences,
)
from coterie.engines.sequence import block_keys
from coterie.engines.server import ServedWeights, Server, absolute
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import (
    ServedModel,
    ServerClient,
    VLLMBackend,
    check_vllm,
    device_lists,
    visible_devices,
)
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import is_adapter, resolve

TEXT = "The river is blue, and nobody but the two of us knows why it is so."
PROBE_IDS = 16
TOLERANCE = 0.02
"""Nats per token: larger than differences between servers of one dtype, smaller than between other weights."""
TEMPERATURE = 2.0


async def compare_weights(clients: Sequence[ServerClient], ids: Sequence[int]) -> str:
    """Return a message if servers have different weights, else "". Raises a ``ServerFault``."""
    scores = await asyncio.gather(*(client.score(ids, 1) for client in clients))
    first, _ = scores[0]
    for client, (score, _) in zip(clients[1:], scores[1:], strict=True):
        pairs = zip(first, score, strict=True)
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
    raw, _ = await client.score((*ids, *completion.ids), len(ids))
    pairs = zip(completion.logprobs, raw, strict=True)
    return max(abs(one - other) for one, other in pairs) > TOLERANCE / 2


SHARE = 0.5
FACTOR = 1.5
SLACK = 8


class PrefixRouter:
    """Router that records which server has seen the blocks of prompts last, for at most ``capacity`` blocks.

    The holder of the longest known prefix gets a prompt if the prefix has at least ``SHARE`` of the whole blocks, and
    its load is at most ``FACTOR`` times the least load, plus ``SLACK``. Otherwise the least loaded server gets it, of
    equals the one with the fewest prompts. Least recently used prefixes are dropped first.
    """

    def __init__(self, servers: int, capacity: int = 1 << 17) -> None:
        self._capacity = capacity
        self._holders: OrderedDict[bytes, int] = OrderedDict()
        """Server by the key of a block."""
        self._counts = [0] * servers

    def choose(self, keys: Sequence[bytes], loads: Sequence[int], among: Collection[int]) -> int:
        """Return the server, one of ``among``, for a prompt; ``loads`` are the requests in flight of all servers."""
        chosen = min(among, key=lambda server: (loads[server], self._counts[server], server))
        for depth in range(len(keys), 0, -1):
            if depth < SHARE * len(keys):
                break
            holder = self._holders.get(keys[depth - 1], -1)
            if holder in among:
                if loads[holder] <= FACTOR * loads[chosen] + SLACK:
                    chosen = holder
                break
        self._counts[chosen] += 1
        return chosen

    def remember(self, server: int, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # first blocks last, so that they are dropped last
            self._holders[key] = server
            self._holders.move_to_end(key)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def forget(self, server: int) -> None:
        """Drop the routes of a server that lost its cache."""
        for key in [key for key, holder in self._holders.items() if holder == server]:
            del self._holders[key]

    def clear(self) -> None:
        self._holders.clear()

    def __len__(self) -> int:
        return len(self._holders)


Result = TypeVar("Result")
FIRST_PAUSE = 0.25
POLL_SECONDS = 0.1
_LOADING = "weights are being loaded"


class ServerPool:
    """Engine over several servers. Log-probs of ``probe`` show if they have the same weights."""

    def __init__(
        self,
        members: Sequence[Server],
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
        self._stats = Stats()
        self._settings = settings
        self._weights = weights
        self._probe = probe
        self._calls = 0
        self._unusable = ""
        """Reason why the pool can't sample now, or ""."""
        self._adapters = 0
        self._adapter_prefix = f"{policy}-{secrets.token_hex(4)}"

    @property
    def stats(self) -> Stats:
        self._stats.restarts = sum(member.restarts for member in self.members)
        return self._stats

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion per seed, in order, with one concurrent request each."""
        with self._call():
            sampling.check()
            ids = tuple(prompt)
            self._check(ids, sampling.max_tokens)
            return await _all(self._complete(ids, seed, sampling) for seed in seeds)

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Compute log-probs of continuations with one request each; servers cache the prefix."""
        with self._call():
            sequences = scored_sequences(prefix, continuations)
            for ids in sequences:
                self._check(ids, 1)  # servers score only if they sample one more token
            return await _all(self._score(ids, len(prefix)) for ids in sequences)

    async def load(self, path: Path, version: str) -> None:
        """Load a checkpoint, or a LoRA adapter for the present checkpoint, on all servers concurrently.

        Raises :class:`EngineError` while requests are in flight. After a failure on any server the pool does not sample
        until a load succeeds.
        """
        weights = self._new_weights(path, version)
        if self._calls or self._unusable == _LOADING:
            raise EngineError(
                f"can't load {path}: requests of version {self.version} are in flight; await them"
            )
        self._unusable = _LOADING
        try:
            members = [member for member in self.members if not member.lost]
            if not members:
                raise EngineError("no server is left")
            async with asyncio.timeout(self._settings.start_seconds):
                await _all(member.serve(weights) for member in members)
                self.router.clear()
                reason = await compare_weights([member.client for member in members], self._probe)
            if reason:
                raise EngineError(reason)
        except BaseException as error:
            self._unusable = (
                f"loading {path} as version {version} failed: {str(error) or repr(error)}"
            )
            if isinstance(error, EngineError | ServerFault | TimeoutError):
                raise EngineError(self._unusable) from error
            raise
        self._unusable = ""
        self._weights, self.version = weights, version

    def _check(self, ids: Sequence[int], more: int) -> None:
        """Raise ``EngineError`` for ids that exceed the context, which some servers would truncate."""
        if not ids:
            raise EngineError("a prompt needs at least one token")
        contexts = [member.context for member in self.members if member.context]
        check_length(len(ids), more, min(contexts, default=None), self.policy)

    def _new_weights(self, path: Path, version: str) -> ServedWeights:
        """Return the weights of a checkpoint or adapter. An adapter gets a name that no server has used."""
        if not is_adapter(path):
            return ServedWeights(absolute(resolve(path)), version)
        self.members[0].backend.check_adapter(path)
        self._adapters += 1
        name = f"{self._adapter_prefix}-{self._adapters}"
        return replace(self._weights, version=version, adapter=path, adapter_name=name)

    async def _complete(self, prompt: tuple[int, ...], seed: int, sampling: Sampling) -> Completion:
        index, completion = await self._answer(
            block_keys(prompt),
            sampling.timeout,
            lambda client: client.complete(prompt, seed, sampling),
        )
        self.router.remember(index, block_keys(prompt + completion.ids))
        self._stats.sampled_tokens += len(completion.ids)
        return completion

    async def _score(self, ids: tuple[int, ...], start: int) -> list[float]:
        timeout = self._settings.stall_seconds * self._settings.attempts
        _, logprobs = await self._answer(
            block_keys(ids), timeout, lambda client: client.score(ids, start)
        )
        self._stats.scored_tokens += len(logprobs)
        return logprobs

    async def _answer(
        self,
        keys: Sequence[bytes],
        timeout: float,
        ask: Callable[[ServerClient], Awaitable[tuple[Result, ReportedUsage]]],
    ) -> tuple[int, Result]:
        """Return the index of a server and its valid answer; ``timeout`` counts from the first attempt."""
        loop = asyncio.get_running_loop()
        deadline = 0.0
        failed: int | None = None
        fault: TransientFault | None = None
        for attempt in range(self._settings.attempts):
            if fault is not None:
                self._stats.retries += 1
                pause = fault.retry_after
                await asyncio.sleep(backoff(attempt, FIRST_PAUSE) if pause is None else pause)
            index = await self._choose(keys, failed)
            member = self.members[index]
            member.load += 1
            try:
                async with member.slots:
                    deadline = deadline or loop.time() + timeout
                    stall = loop.time() + self._settings.stall_seconds
                    async with asyncio.timeout_at(min(deadline, stall)):
                        answer, usage = await ask(member.client)
                self._stats.prompt_tokens += usage.prompt_tokens
                self._stats.cached_tokens += usage.cached_tokens
                return index, answer
            except TimeoutError:
                member.report_stall()
                fault, failed = TransientFault(f"{member.name} stalled"), index
            except TransientFault as error:
                fault, failed = error, index
            except ServerFault as error:
                raise EngineError(f"{self.policy}: {error}") from error
            finally:
                member.load -= 1
            if loop.time() >= deadline:
                raise EngineError(
                    f"{self.policy}: no answer within {timeout:g} s: {fault}"
                ) from fault
        raise EngineError(
            f"{self.policy}: failed after {self._settings.attempts} attempts, the last on "
            f"{member.name}: {fault}"
        ) from fault

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

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a call of the engine. Raises ``EngineError`` while weights are loading or after a failed load."""
        self._calls += 1
        try:
            with self._stats.request():
                if self._unusable:
                    raise EngineError(f"{self.policy}: {self._unusable}")
                yield
        finally:
            self._calls -= 1


async def _all(work: Iterator[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Return all results in order. On a failure, cancel and await the remaining work first."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def vllm_pool(
    model: str | Path,
    renderer: ChatRenderer,
    settings: VLLMSettings,
    log_folder: Path,
    *,
    policy: str,
    version: str,
    backend: VLLMBackend | None = None,
) -> AsyncIterator[ServerPool]:
    """Open an engine over vLLM servers of ``model``, a folder or hub name; its own servers are stopped at the end.

    Servers run ``vllm serve`` on the visible devices unless a ``backend`` is given. Raises ``UserError`` for problems
    that the user can fix.
    """
    if settings.urls:
        async with running_servers(renderer, settings, policy=policy, version=version) as pool:
            yield pool
        return
    if backend is None:
        check_vllm(settings)
        backend = VLLMBackend(settings, device_lists(settings, visible_devices()))
    weights = ServedWeights(absolute(resolve(model)), version)
    connect = partial(ServerClient, model=policy, decode=renderer.decode, end_ids=renderer.end_ids)
    members = [
        Server(f"vllm-{index}", policy, backend, weights, connect("http://-"))
        for index in range(settings.servers)
    ]
    pool = ServerPool(members, settings, weights, policy=policy, probe=probe_ids(renderer))
    logs = log_folder.resolve()
    try:
        try:
            await _all(
                member.start(index, connect, logs / f"{member.name}.log", pool.router.forget)
                for index, member in enumerate(members)
            )
        except EngineError as error:
            raise UserError(
                f"a server of {weights.model} did not start: {error}",
                "fix the problem in its log, or change the settings of the servers",
            ) from error
        yield pool
    finally:
        await asyncio.shield(asyncio.gather(*(member.close() for member in members)))


@asynccontextmanager
async def running_servers(
    renderer: ChatRenderer, settings: VLLMSettings, *, policy: str, version: str
) -> AsyncIterator[ServerPool]:
    """Use the external servers at ``settings.urls``.

    Raises ``UserError`` if a server does not answer, lacks the model, has other weights than the first server, or
    returns log-probs before temperature.
    """
    served, probe, backend = settings.served_name, probe_ids(renderer), VLLMBackend(settings, [])
    clients = [
        ServerClient(url, served or "", renderer.decode, renderer.end_ids) for url in settings.urls
    ]
    try:
        cards = [await _card(client, settings) for client in clients]
        weights = ServedWeights(cards[0].root or cards[0].id, version)
        members = []
        for client, card in zip(clients, cards, strict=True):
            client.model = card.id
            members.append(Server(client.url, card.id, backend, weights, client))
            members[-1].context = card.max_model_len
        await _check(clients, probe, settings.stall_seconds)
        yield ServerPool(members, settings, weights, policy=policy, probe=probe)
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def probe_ids(renderer: ChatRenderer) -> list[int]:
    """Return the first ids of a fixed text."""
    ids: list[int] = renderer.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    return ids[:PROBE_IDS]


async def _card(client: ServerClient, settings: VLLMSettings) -> ServedModel:
    """Return the entry of the served model."""
    model = settings.served_name
    try:
        async with asyncio.timeout(settings.stall_seconds):
            cards = await client.models()
    except (ServerFault, TimeoutError) as error:
        raise UserError(
            f"no inference server answers at {client.url}: {error!r}",
            "start it, or correct the address",
        ) from error
    matches = [card for card in cards if card.id == model or (model is None and not card.parent)]
    if len(matches) != 1:
        names = ", ".join(card.id for card in cards)
        what = f"not {model}" if model else "not one model"
        raise UserError(
            f"{client.url} serves {names}, {what}", "set served_name to one of its models"
        )
    return matches[0]


async def _check(clients: Sequence[ServerClient], probe: Sequence[int], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            different = await compare_weights(clients, probe)
            raw = [one.url for one in clients if not await has_processed_logprobs(one, probe)]
    except (ServerFault, TimeoutError) as error:
        raise UserError(
            f"a server does not answer, or refuses token ids or log-probs: {error!r}", "see its log"
        ) from error
    if different:
        raise UserError(
            f"two servers have different weights: {different}", "load the same checkpoint on all"
        )
    if raw:
        raise UserError(
            f"{raw[0]} returns log-probs before temperature and top-p",
            "start vLLM with --logprobs-mode processed_logprobs",
        )
