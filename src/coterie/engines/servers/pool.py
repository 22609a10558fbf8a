"""Pool of inference servers as one engine: start, routing of prompts, retries, and checks of log-probs.

Each request goes to the server with the longest cached prefix. After a transient failure it is retried after a pause,
on another server if possible, a bounded number of times. A final failure raises
:class:`~coterie.engines.protocol.EngineError` with the reason. A request carries its seed, so its completion does not
depend on the server or the attempt.

For routing, prompts are split into blocks (:mod:`coterie.engines.rows`), and the router records which servers have seen
each block's key. The rule:

* The servers that have seen the longest prefix of the prompt are its *holders*. The least loaded holder gets the prompt
  if the prefix has at least ``SHARE`` of the whole blocks (a common system prompt is not enough), and if its load is at
  most ``FACTOR`` times the load of the least loaded server, plus ``SLACK``.
* Otherwise the least loaded server gets it; among equals the server with the fewest prompts so far.

The time per prompt is linear in its blocks. Memory is bounded: least recently used prefixes are dropped first.
"""

import asyncio
import random
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from coterie.engines.protocol import Completion, EngineError, EngineGone, Sampling, Stats
from coterie.engines.rows import block_keys
from coterie.engines.servers.client import (
    FinalFault,
    ReportedUsage,
    ServedModel,
    ServerClient,
    ServerFault,
    TransientFault,
)
from coterie.engines.servers.member import Member, OwnMember, ServedWeights, absolute
from coterie.engines.servers.vllm import VLLMBackend, check_vllm, device_lists, visible_devices
from coterie.engines.settings import VLLMSettings
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


SHARE = 0.5
FACTOR = 1.5
SLACK = 8


class PrefixRouter:
    """Router that records the prefixes of each server, at most ``capacity`` blocks."""

    def __init__(self, servers: int, capacity: int = 1 << 17) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        """Bit set of the servers that have seen the block, by key."""
        self._counts = [0] * servers

    def choose(self, keys: Sequence[bytes], loads: Sequence[int], among: Collection[int]) -> int:
        """Return the server for a prompt.

        Args:
            keys: Keys of the prompt's blocks.
            loads: Requests in flight of every server.
            among: Servers to choose from, at least one.
        """
        least = min(among, key=lambda server: (loads[server], self._counts[server], server))
        depth, holders = self._holders(keys, among)
        chosen = least
        if keys and depth >= SHARE * len(keys):
            holder = min(holders, key=lambda server: (loads[server], server))
            if loads[holder] <= FACTOR * loads[least] + SLACK:
                chosen = holder
        self._counts[chosen] += 1
        return chosen

    def remember(self, server: int, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # first blocks last, so that they are dropped last
            self._seen[key] = self._seen.get(key, 0) | 1 << server
            self._seen.move_to_end(key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def forget(self, server: int) -> None:
        for key in list(self._seen):
            self._seen[key] &= ~(1 << server)
            if not self._seen[key]:
                del self._seen[key]

    def clear(self) -> None:
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._seen)

    def _holders(self, keys: Sequence[bytes], among: Collection[int]) -> tuple[int, list[int]]:
        allowed = sum(1 << server for server in among)
        depth, holders = 0, allowed
        for key in keys:
            if not (still := self._seen.get(key, 0) & holders):
                break
            depth, holders = depth + 1, still
        return depth, [server for server in among if holders >> server & 1]


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
    """Engine (:class:`~coterie.engines.protocol.Engine`) over several servers.

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
) -> AsyncIterator[ServerPool]:
    """Open an engine over vLLM servers of a model; servers that it starts are stopped at the end.

    Raises ``UserError`` for problems that the user can fix.

    Args:
        model: Folder or hub name of the model.
        renderer: Renderer of the model.
        settings: Settings of the servers.
        log_folder: Folder of the servers' logs.
        policy: Role of the policy.
        version: Version of the weights.
    """
    if settings.urls:
        servers = running_servers(renderer, settings, policy=policy, version=version)
    else:
        check_vllm(settings)
        backend = VLLMBackend(settings, device_lists(settings, visible_devices()))
        servers = own_servers(backend, model, renderer, log_folder, policy=policy, version=version)
    async with servers as pool:
        yield pool


@asynccontextmanager
async def own_servers(
    backend: VLLMBackend,
    model: str | Path,
    renderer: ChatRenderer,
    log_folder: Path,
    *,
    policy: str,
    version: str,
) -> AsyncIterator[ServerPool]:
    """Start all servers of ``model`` concurrently, and stop them at the end. Logs go to ``log_folder``.

    Raises ``UserError`` if a server can't be started.
    """
    settings = backend.settings
    weights = ServedWeights(absolute(resolve(model)), version)

    def connect(url: str, name: str) -> ServerClient:
        return ServerClient(url, name, renderer.decode, renderer.end_ids)

    def went_down(index: int) -> None:
        pool.forget(index)

    members = [
        OwnMember(index, policy, backend, weights, connect, log_folder.resolve(), went_down)
        for index in range(settings.servers)
    ]
    pool = ServerPool(members, settings, weights, policy=policy, probe=probe_ids(renderer))
    try:
        starts = [asyncio.ensure_future(member.start()) for member in members]
        try:
            await asyncio.gather(*starts)
        except EngineError as error:
            raise UserError(
                f"a server of {weights.model} did not start: {error}",
                "fix the problem in its log, or change the settings of the servers",
            ) from error
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
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
    urls = settings.urls
    cards = [
        await _card(url, settings.served_name, renderer, settings.stall_seconds) for url in urls
    ]
    if len({card.id for card in cards}) > 1:
        models = ", ".join(f"{url}: {card.id}" for url, card in zip(urls, cards, strict=True))
        raise UserError(
            f"the servers serve different models: {models}",
            "use servers of one model, or set served_name to a model of all servers",
        )
    weights = ServedWeights(cards[0].root or cards[0].id, version)
    clients = [
        ServerClient(url, card.id, renderer.decode, renderer.end_ids)
        for url, card in zip(urls, cards, strict=True)
    ]
    backend = VLLMBackend(settings, [])
    members = [Member(client.url, client.model, backend, weights, client) for client in clients]
    try:
        await _check(members, probe_ids(renderer), settings.stall_seconds)
        yield ServerPool(members, settings, weights, policy=policy, probe=probe_ids(renderer))
    finally:
        await asyncio.gather(*(member.close() for member in members))


def probe_ids(renderer: ChatRenderer) -> list[int]:
    """Return the first ids of a fixed text."""
    ids: list[int] = renderer.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    return ids[:PROBE_IDS]


async def _card(url: str, model: str | None, renderer: ChatRenderer, seconds: float) -> ServedModel:
    client = ServerClient(url, model or "", renderer.decode, renderer.end_ids)
    try:
        async with asyncio.timeout(seconds):
            cards = await client.models()
    except (ServerFault, TimeoutError) as error:
        raise UserError(
            f"no inference server answers at {url}: {error!r}", "start it, or correct the address"
        ) from error
    finally:
        await client.close()
    matches = [card for card in cards if card.id == model or (model is None and not card.parent)]
    if len(matches) != 1:
        names = ", ".join(card.id for card in cards)
        what = f"not {model}" if model else "not one model"
        raise UserError(f"{url} serves {names}, {what}", "set served_name to one of its models")
    return matches[0]


async def _check(members: Sequence[Member], probe: Sequence[int], seconds: float) -> None:
    clients = [member.client for member in members]
    try:
        async with asyncio.timeout(seconds):
            for member in members:
                await member.card(member.client)
            different = await compare_weights(clients, probe)
            exact = [await has_processed_logprobs(client, probe) for client in clients]
    except (TransientFault, TimeoutError) as error:
        raise UserError(f"a server does not work: {error!r}", "see its log") from error
    except ServerFault as error:
        raise UserError(
            f"a server refuses token ids or log-probs: {error}", "see its log"
        ) from error
    if different:
        raise UserError(
            f"two servers have different weights: {different}", "load the same checkpoint on all"
        )
    if not all(exact):
        raise UserError(
            f"{clients[exact.index(False)].url} returns log-probs before temperature and top-p",
            "start vLLM with --logprobs-mode processed_logprobs",
        )
