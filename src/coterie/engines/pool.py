"""Pool of inference servers as one engine: start, routing of prompts, retries, and checks of log-probs.

A request carries its seed, so its completion does not depend on the server or the attempt.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from coterie.engines.connections import Address
from coterie.engines.endpoint import ServerFault, TransientFault, backoff
from coterie.engines.protocol import (
    Completion,
    EngineError,
    EngineGone,
    Sampling,
    Stats,
    check_length,
    gather_or_cancel,
    scored_sequences,
)
from coterie.engines.sequence import block_keys
from coterie.engines.server import FIRST_PAUSE, Server, absolute
from coterie.engines.server_process import ServerProcess
from coterie.engines.settings import VLLMSettings
from coterie.engines.transfer import Send, ServedWeights, from_files, from_gpu
from coterie.engines.vllm import (
    ServedModel,
    ServerClient,
    Usage,
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
TRAINER_TOLERANCE = 0.5
"""Nats per token between a server and the trainer, which may compute in different dtypes.

On SmolLM2 (135M) bfloat16 moves log-probs by 0.05, weights with 3% of noise (about FP8) by 0.2, and one layer with
permuted columns by 2 or more.
"""
TEMPERATURE = 2.0


def different_weights(
    scores: Sequence[tuple[str, Sequence[float]]], tolerance: float = TOLERANCE
) -> str:
    """Return a message if servers, by URL and log-probs of the probe, have different weights, else ""."""
    for url, score in scores[1:]:
        first_mean, values = fmean(scores[0][1]), fmean(score)
        difference = fmean(abs(a - b) for a, b in zip(scores[0][1], score, strict=True))
        if not difference <= tolerance:
            return (
                f"{scores[0][0]} and {url} have different weights: log-probs of a fixed text ({first_mean:.3f} and "
                f"{values:.3f} nats per token) differ by {difference:.3f}, more than {tolerance}"
            )
    return ""


async def has_processed_logprobs(client: ServerClient, ids: Sequence[int]) -> bool:
    """Return True if log-probs of sampled tokens are after temperature. Raises a ``ServerFault``."""
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=8)
    completion, _ = await client.complete(ids, 0, sampling)
    raw, _ = await client.score((*ids, *completion.ids), len(ids))
    pairs = zip(completion.logprobs, raw, strict=True)
    return max(abs(raw - processed) for raw, processed in pairs) > TOLERANCE / 2


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
POLL_SECONDS = 0.1


class ServerPool:
    """Engine over several servers. Log-probs of ``probe`` show if they have the same weights.

    ``labels`` are the labels that external servers already have for them.
    """

    def __init__(
        self,
        members: Sequence[Server],
        settings: VLLMSettings,
        weights: ServedWeights,
        *,
        policy: str,
        probe: Sequence[int],
        labels: Collection[str] = (),
    ) -> None:
        self.policy = policy
        self.version = weights.version
        self.members = members
        self.router = PrefixRouter(len(members))
        self._stats = Stats()
        self._settings = settings
        self._weights = weights
        self.probe = probe
        self._unusable = ""
        """Reason why the pool can't sample now, or ""."""
        self._loading = asyncio.Lock()
        self._begun = [weights.version]
        """Versions that were loaded or are being loaded, in order."""
        self._done = 0
        """Index of the newest version that is loaded."""
        self._versions = dict.fromkeys((weights.version, *labels), weights.version)
        """Version by the servers' label of weights, or by the name of an adapter."""
        self._adapter_prefix = f"{policy}-{secrets.token_hex(4)}"

    @property
    def stats(self) -> Stats:
        self._stats.restarts = sum(member.restarts for member in self.members)
        return self._stats

    @property
    def width(self) -> int:
        return len(self.members) * self._settings.requests_per_server

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion per seed, in order, with one concurrent request each."""
        with self._call():
            sampling.check()
            ids = tuple(prompt)
            self._check(ids, sampling.max_tokens)
            completions = await gather_or_cancel(
                self._complete(ids, seed, sampling) for seed in seeds
            )
            present = {self.version}
            return [
                replace(completion, versions=())
                if {name for name, _ in completion.versions} == present
                else completion
                for completion in completions
            ]

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Compute log-probs of continuations with one request each; servers cache the prefix."""
        with self._call():
            sequences = scored_sequences(prefix, continuations)
            for ids in sequences:
                self._check(ids, 1)  # servers score only if they sample one more token
            return await gather_or_cancel(self._score(ids, len(prefix)) for ids in sequences)

    async def load(
        self,
        path: Path,
        version: str,
        send: Send | None = None,
        expected: Sequence[float] | None = None,
    ) -> None:
        """Load a checkpoint, or a LoRA adapter for the present checkpoint, on all servers concurrently.

        Requests may be in flight. They go on with the new checkpoint, or keep their adapter; their completions have
        ``versions``. With ``send`` servers get the checkpoint from the trainer's GPU instead of ``path``. A server that
        misses the update gets no request until it has caught up. Raises :class:`EngineError` if all servers miss it, or
        if log-probs of ``probe`` differ from the trainer's, ``expected``; then the pool does not sample until a load
        succeeds.
        """
        async with self._loading:
            weights = self._new_weights(path, version)
            members = [member for member in self.members if not member.lost]
            self._check_update(weights, members)
            label = weights.adapter_name or version
            self._versions[label] = version
            self._begun.append(version)
            try:
                await self._update(members, weights, send, expected)
            except BaseException as error:
                self._unusable = (
                    f"loading {path} as version {version} failed: {str(error) or repr(error)}"
                )
                if isinstance(error, EngineError | ServerFault | TimeoutError):
                    raise EngineError(self._unusable) from error
                raise
            self._unusable = ""
            self._weights, self.version, self._done = weights, version, len(self._begun) - 1

    async def _update(
        self,
        members: Sequence[Server],
        weights: ServedWeights,
        send: Send | None,
        expected: Sequence[float] | None,
    ) -> None:
        transfer = from_gpu(send) if send else from_files(self._settings)
        turn = asyncio.Semaphore(len(members) if send is None else 1)  # a server waits unpaused

        async def update(member: Server) -> None:
            async with turn:
                await member.update(weights, transfer)

        results = await asyncio.gather(*map(update, members), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ServerFault):
                raise result
        async with asyncio.timeout(self._settings.start_seconds):
            while not (scores := await self._scores(members)) and any(
                member.restarting for member in members
            ):
                await asyncio.sleep(POLL_SECONDS)
        if not scores:
            faults = [str(result) for result in results if result] or ["no server is left"]
            for member in members:
                member.weights = self._weights
            raise EngineError("; ".join(faults))
        self.router.clear()
        delivery = [("the trainer", expected), scores[0]] if expected else []
        if reason := different_weights(scores) or different_weights(delivery, TRAINER_TOLERANCE):
            raise EngineError(reason)
        for member in members:
            if member.up and member.behind:
                member.fence(member.behind)

    async def _scores(self, members: Sequence[Server]) -> list[tuple[str, list[float]]]:
        """Return the URLs of ready servers and their log-probs of the probe. Fence servers that don't answer."""

        async def score(member: Server) -> tuple[str, list[float]] | None:
            try:
                async with asyncio.timeout(self._settings.stall_seconds):
                    return member.client.url, (await member.client.score(self.probe, 1))[0]
            except (ServerFault, TimeoutError) as error:
                if member.ready:
                    member.fence(f"can't score a text: {error!r}")
                return None

        scores = await asyncio.gather(*(score(member) for member in members if member.ready))
        return [score for score in scores if score is not None]

    def _check_update(self, weights: ServedWeights, members: Sequence[Server]) -> None:
        """Raise ``EngineError`` if the servers can't change their weights now."""
        if weights.adapter is not None:
            return
        for member in members:
            if member.up and not member.client.versioned:
                raise EngineError(
                    f"{member.name} has no routes for weight updates: it needs vLLM 0.32 and VLLM_SERVER_DEV_MODE=1"
                )
            if self._weights.adapter is not None and member.load:
                raise EngineError(
                    f"can't load {weights.model}: requests of an adapter are in flight; await them"
                )

    def _check(self, ids: Sequence[int], new_tokens: int) -> None:
        """Raise ``EngineError`` for ids that exceed the context, which some servers would truncate."""
        if not ids:
            raise EngineError("a prompt needs at least one token")
        contexts = [member.context for member in self.members if member.context]
        check_length(len(ids), new_tokens, min(contexts, default=None), self.policy)

    def _new_weights(self, path: Path, version: str) -> ServedWeights:
        """Return the weights of a checkpoint or adapter. An adapter gets a name that no server has used."""
        if not is_adapter(path):
            return ServedWeights(absolute(resolve(path)), version)
        self.members[0].backend.check_adapter(path)
        name = f"{self._adapter_prefix}-{len(self._begun)}"
        return replace(self._weights, version=version, adapter=path, adapter_name=name)

    async def _complete(self, prompt: tuple[int, ...], seed: int, sampling: Sampling) -> Completion:
        index, completion = await self._answer(
            block_keys(prompt),
            sampling.timeout,
            lambda member: member.client.complete(prompt, seed, sampling),
        )
        self.router.remember(index, block_keys(prompt + completion.ids))
        self._stats.sampled_tokens += len(completion.ids)
        versions = tuple((self._versions[label], count) for label, count in completion.versions)
        return replace(completion, versions=versions)

    async def _score(self, ids: tuple[int, ...], start: int) -> list[float]:
        timeout = self._settings.stall_seconds * self._settings.attempts

        async def score(member: Server) -> tuple[list[float], Usage]:
            updates = member.updates
            result = await member.client.score(ids, start)
            if member.updates != updates:
                raise TransientFault(f"the weights of {member.name} changed while it scored")
            return result

        _, logprobs = await self._answer(block_keys(ids), timeout, score)
        return logprobs

    async def _answer(
        self,
        keys: Sequence[bytes],
        timeout: float,
        ask: Callable[[Server], Awaitable[tuple[Result, Usage]]],
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
            try:
                async with self._slot(keys, failed, deadline or loop.time() + timeout) as index:
                    member, since = self.members[index], self._done
                    deadline = deadline or loop.time() + timeout
                    stall = loop.time() + self._settings.stall_seconds
                    async with asyncio.timeout_at(min(deadline, stall)):
                        answer, usage = await ask(member)
                self._stats.prompt_tokens += usage.prompt_tokens
                self._stats.cached_tokens += usage.cached_tokens
                self._check_versions(member, usage.versions, since)
                return index, answer
            except TimeoutError:
                member.report_stall()
                fault, failed = TransientFault(f"{member.name} stalled"), index
            except TransientFault as error:
                fault, failed = error, index
            except ServerFault as error:
                raise EngineError(f"{self.policy}: {error}") from error
            if loop.time() >= deadline:
                raise EngineError(
                    f"{self.policy}: no answer within {timeout:g} s: {fault}"
                ) from fault
        raise EngineError(
            f"{self.policy}: failed after {self._settings.attempts} attempts, the last on "
            f"{member.name}: {fault}"
        ) from fault

    @asynccontextmanager
    async def _slot(
        self, keys: Sequence[bytes], failed: int | None, deadline: float
    ) -> AsyncIterator[int]:
        """Hold a slot of a server, which is ready also after the wait for the slot."""
        while True:
            index = await self._choose(keys, failed, deadline)
            member = self.members[index]
            member.load += 1
            try:
                async with member.slots:
                    if member.ready:
                        model = member.client.model
                        member.uses[model] += 1
                        try:
                            yield index
                        finally:
                            member.uses[model] -= 1
                        return
            finally:
                member.load -= 1

    def _check_versions(
        self, member: Server, labels: Sequence[tuple[str, int]], since: int
    ) -> None:
        """Fence a server whose answer has tokens of other weights than those that the pool had since ``since``.

        Raises a ``TransientFault`` in this case, because another server may have the right weights.
        """
        versions, expected = self._versions, self._begun[since:]
        if wrong := [label for label, _ in labels if versions.get(label) not in expected]:
            reason = f"answered with weights of version {wrong[0]}, not {' or '.join(expected)}"
            if member.ready:
                member.fence(reason)
            raise TransientFault(f"{member.name} {reason}")

    async def _choose(self, keys: Sequence[bytes], failed: int | None, deadline: float) -> int:
        loop = asyncio.get_running_loop()
        while True:
            up = [index for index, member in enumerate(self.members) if member.ready]
            if up:
                loads = [member.load for member in self.members]
                index = self.router.choose(keys, loads, [i for i in up if i != failed] or up)
                self.router.remember(index, keys)
                return index
            lost = [f"{member.name} {member.lost}" for member in self.members if member.lost]
            if len(lost) == len(self.members):
                raise EngineGone(f"{self.policy}: no server is left: " + "; ".join(lost))
            if self._unusable:
                raise EngineError(f"{self.policy}: {self._unusable}")
            waits = any(member.restarting for member in self.members) or self._loading.locked()
            if loop.time() >= deadline and not waits:
                reasons = "; ".join(
                    f"{member.name} {member.behind or member.lost}" for member in self.members
                )
                raise EngineError(f"{self.policy}: no server is ready in time: {reasons}")
            await asyncio.sleep(POLL_SECONDS)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a call of the engine. Raises ``EngineError`` after a failed load."""
        with self._stats.request():
            if self._unusable:
                raise EngineError(f"{self.policy}: {self._unusable}")
            yield


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
    process: Callable[[int], ServerProcess] | None = None,
) -> AsyncIterator[ServerPool]:
    """Open an engine over vLLM servers of ``model``, a folder or hub name; its own servers are stopped at the end.

    Servers run ``vllm serve`` on the visible devices of this machine, unless ``backend`` (the command) or ``process``
    (of the server with a number) is given. Raises ``UserError`` for problems
    that the user can fix.
    """
    if settings.urls:
        async with running_servers(renderer, settings, policy=policy, version=version) as pool:
            yield pool
        return
    if backend is None and process is None:
        check_vllm(settings)
    if backend is None:
        devices = [] if process else device_lists(settings, visible_devices())
        backend = VLLMBackend(settings, devices)
    weights = ServedWeights(absolute(resolve(model)), version)
    connect = partial(ServerClient, model=policy, decode=renderer.decode, end_ids=renderer.end_ids)
    members = [
        Server(f"vllm-{index}", policy, backend, weights, connect(Address("http://-")))
        for index in range(settings.servers)
    ]
    pool = ServerPool(members, settings, weights, policy=policy, probe=probe_ids(renderer))
    logs = log_folder.resolve()
    process = process or (lambda i: ServerProcess(backend, i, logs / f"{members[i].name}.log"))
    try:
        try:
            await gather_or_cancel(
                member.start(process(index), connect, partial(pool.router.forget, index))
                for index, member in enumerate(members)
            )
        except EngineError as error:
            raise UserError(
                f"a server of {weights.model} did not start: {error}",
                "fix the problem in its log, or change the settings of the servers",
            ) from error
        _check_same_vllm([member.client for member in members])
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
        ServerClient(Address(url), served or "", renderer.decode, renderer.end_ids)
        for url in settings.urls
    ]
    members: list[Server] = []
    try:
        cards = [await _card(client, settings) for client in clients]
        weights = ServedWeights(cards[0].root or cards[0].id, version)
        for client, card in zip(clients, cards, strict=True):
            client.model = card.id
            members.append(Server(client.url, card.id, backend, weights, client))
            members[-1].context = card.max_model_len
        await _check(clients, probe, settings.stall_seconds)
        labels = [await client.weight_version() for client in clients if client.versioned]
        yield ServerPool(members, settings, weights, policy=policy, probe=probe, labels=labels)
    finally:
        closing = [*(member.close() for member in members), *(client.close() for client in clients)]
        await asyncio.gather(*closing)


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
            await client.probe()
    except (ServerFault, TimeoutError) as error:
        raise UserError(
            f"no inference server answers at {client.url}: {error!r}",
            "start it, or correct the address",
        ) from error
    matches = [card for card in cards if card.id == model or (model is None and not card.parent)]
    if len(matches) != 1:
        names = ", ".join(card.id for card in cards)
        expected = f"not {model}" if model else "not one model"
        raise UserError(
            f"{client.url} serves {names}, {expected}", "set served_name to one of its models"
        )
    return matches[0]


def _check_same_vllm(clients: Sequence[ServerClient]) -> None:
    if len({client.vllm for client in clients}) > 1:
        versions = ", ".join(f"{client.url} has {client.vllm or 'none'}" for client in clients)
        raise UserError(
            f"servers have different versions of vLLM: {versions}",
            "install the same version on all",
        )


async def _check(clients: Sequence[ServerClient], probe: Sequence[int], seconds: float) -> None:
    _check_same_vllm(clients)
    try:
        async with asyncio.timeout(seconds):
            scores = [(client.url, (await client.score(probe, 1))[0]) for client in clients]
            raw = [
                client.url for client in clients if not await has_processed_logprobs(client, probe)
            ]
    except (ServerFault, TimeoutError) as error:
        raise UserError(
            f"a server does not answer, or refuses token ids or log-probs: {error!r}", "see its log"
        ) from error
    if different := different_weights(scores):
        raise UserError(
            f"two servers have different weights: {different}", "load the same checkpoint on all"
        )
    if raw:
        raise UserError(
            f"{raw[0]} returns log-probs before temperature and top-p",
            "start vLLM with --logprobs-mode processed_logprobs",
        )
