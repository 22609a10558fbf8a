"""Server of a pool: external, or a process that is supervised and restarted."""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from coterie.engines.connections import Address
from coterie.engines.endpoint import FinalFault, ServerFault, TransientFault, backoff
from coterie.engines.protocol import EngineError, RequestSlots, cancel
from coterie.engines.server_process import POLL_SECONDS, ServerProcess
from coterie.engines.transfer import ServedWeights, Transfer, from_files
from coterie.engines.vllm import ServerClient, VLLMBackend

logger = logging.getLogger(__name__)
MAX_PAUSE = 10.0
FIRST_PAUSE = 0.25
WATCH_SECONDS = 2.0
"""Seconds between two looks at the health of a server."""


def absolute(path: Path | str) -> str:
    """Return a folder's absolute path, for other processes; a hub name does not change."""
    return str(Path(path).absolute()) if Path(path).is_dir() else str(path)


class Server:
    """External server, or a process that is restarted when it dies (:meth:`start`).

    ``base`` is its name of the checkpoint.
    """

    def __init__(
        self,
        name: str,
        base: str,
        backend: VLLMBackend,
        weights: ServedWeights,
        client: ServerClient,
    ) -> None:
        self.name = name
        self.client = client
        self.backend = backend
        self.weights = weights
        self.up = True
        self.lost = ""
        """Reason why the server is permanently down, or ""."""
        self.behind = ""
        """Reason why the server does not have the pool's weights, or ""."""
        self.restarts = 0
        self.load = 0
        """Number of assigned, unanswered requests."""
        self.slots = RequestSlots(backend.settings.requests_per_server)
        self.updates = 0
        """Number of changes of the weights, without adapters."""
        self.uses = Counter[str]()
        """Requests in flight by the name of the model or adapter."""
        self.context: int | None = None
        """Maximum sequence length, if the server reports it."""
        self._base = base
        self._adapters: set[str] = set()
        self._settings = backend.settings
        self._updating = asyncio.Lock()
        self._process: ServerProcess | None = None
        self._watch: asyncio.Task[None] | None = None
        self._examination: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None

    async def start(
        self,
        process: ServerProcess,
        connect: Callable[[Address], ServerClient],
        went_down: Callable[[], None],
    ) -> None:
        """Start the server in a process and watch it. ``went_down`` is called when it dies.

        ``connect`` makes a client for its address. Raises :class:`EngineError` with the end of its log if it fails.
        """
        self.up, self._process = False, process
        self._connect, self._went_down = connect, went_down
        await self._launch()
        self._watch = asyncio.create_task(self._keep_up())

    def report_stall(self) -> None:
        """Kill a process without an answer for too long unless it is healthy; it is then restarted."""
        running = self._examination is not None and not self._examination.done()
        if self._process is not None and not running:
            self._examination = asyncio.create_task(self._examine())

    async def _examine(self) -> None:
        assert self._process is not None
        if self.up and await self.client.health() != "healthy":
            logger.warning("%s does not answer; killing and restarting it", self.name)
            await self._process.kill()

    @property
    def ready(self) -> bool:
        """True if the server may get requests."""
        return self.up and not self.behind

    @property
    def restarting(self) -> bool:
        return self._process is not None and not self.up and not self.lost

    async def update(self, weights: ServedWeights, transfer: Transfer) -> None:
        """Load other weights while requests are in flight, and check that the server has them.

        The server is paused meanwhile; requests in flight go on with the new weights, but requests of an adapter keep
        it. After a failure, which raises a ``ServerFault``, the server is behind and its requests are aborted.
        """
        self.weights = weights
        if self.restarting:  # it comes up with these weights
            raise TransientFault(f"{self.name} is being restarted")
        async with self._updating:
            await self._update(transfer)

    async def _update(self, transfer: Transfer) -> None:
        weights, mode = self.weights, "abort" if self.behind else "keep"
        self.behind = self.behind or f"does not have version {weights.version} yet"
        try:
            if weights.adapter is None:
                self.updates += 1
                await self._pause(mode)
                await self._send(weights, transfer)
                await self._within(self.client.post("/resume", None))
            await self._within(self._use(weights))
        except ServerFault as error:
            self.behind = f"missed version {weights.version}: {error}"
            if self._process is not None and await self.client.health() != "healthy" and self.up:
                self.up = False  # until it is restarted, with these weights
                await self._process.kill()
            raise
        self.behind = ""

    def fence(self, reason: str) -> None:
        """Give the server no requests until it has its weights: restart it, or update it again in the background."""
        logger.warning("%s %s; it gets no requests until it has caught up", self.name, reason)
        self.behind = reason
        if self._process is not None:
            self.up = False
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        if self._process is not None:
            await self._process.kill()
            return
        for attempt in itertools.count():
            await asyncio.sleep(backoff(attempt, FIRST_PAUSE))
            async with self._updating:
                with suppress(ServerFault):
                    if self.behind:
                        await self._update(from_files(self._settings))
                    return

    async def _pause(self, mode: str) -> None:
        """Pause between two tokens and drop all cached keys and values, which requests in flight compute again."""
        await self._within(self.client.post(f"/pause?mode={mode}&clear_cache=true", None))

    async def _send(self, weights: ServedWeights, transfer: Transfer) -> None:
        try:
            await self._within(self.client.set_version(f"part of {weights.version}"))
            await self._within(transfer(self.client, weights))
        except BaseException:  # the server may have a part of the weights, so no request may go on
            with suppress(ServerFault):
                await self._pause("abort")
                await self._within(self.client.post("/resume", None))
            raise

    async def _within(self, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._settings.stall_seconds):
                await work
        except TimeoutError as error:
            raise TransientFault(f"{self.name} does not answer") from error

    async def _use(self, weights: ServedWeights) -> None:
        """Load the adapter of weights, if any, and check that the server has them. Raises a ``ServerFault``."""
        client, name = self.client, weights.adapter_name or self._base
        cards = {card.id: card for card in await client.models()}
        if weights.adapter is not None and name not in cards:
            body = {"lora_name": name, "lora_path": absolute(weights.adapter)}
            await client.post("/v1/load_lora_adapter", body)
            cards = {card.id: card for card in await client.models()}
        if name not in cards:
            raise FinalFault(f"{self.name} serves {', '.join(cards)}, not {name}")
        if weights.adapter is None and client.versioned:
            label = await client.weight_version()
            if label != weights.version:
                raise FinalFault(f"{self.name} has version {label}, not {weights.version}")
        client.model, client.adapter = name, weights.adapter is not None
        self.context = cards[name].max_model_len or self.context
        self._adapters &= cards.keys()
        for adapter in sorted(self._adapters - {name}):
            if not self.uses[adapter]:
                await client.post("/v1/unload_lora_adapter", {"lora_name": adapter})
                self._adapters.discard(adapter)
        if weights.adapter is not None:
            self._adapters.add(name)

    async def close(self) -> None:
        for task in (self._watch, self._examination, self._catching_up):
            if task is not None:
                await cancel([task])
        if self._process is not None:
            await self._process.end()
        await self.client.close()

    # -- own processes ----------------------------------------------------------------------------

    async def _launch(self) -> None:
        assert self._process is not None
        process, weights, seconds = self._process, self.weights, self._settings.start_seconds
        await self.client.close()
        try:
            async with asyncio.timeout(seconds):
                self.client = self._connect(await process.launch(weights.model, self._base))
                await self._begin_alive(weights)
        except EngineError as error:
            raise EngineError(f"{self.name} {error}") from error
        except (ServerFault, TimeoutError) as error:
            await process.end()
            words = await process.last_words()
            raise EngineError(f"{error!r} within {seconds:g} s; {words}") from error
        except BaseException:
            await process.end()
            raise

    async def _begin_alive(self, weights: ServedWeights) -> None:
        """Do :meth:`_begin`. Raises :class:`EngineError` if the server dies first."""
        assert self._process is not None
        beginning = asyncio.ensure_future(self._begin(weights))
        death = asyncio.ensure_future(self._death())
        try:
            await asyncio.wait([beginning, death], return_when=asyncio.FIRST_COMPLETED)
            if not beginning.done():
                words = await self._process.last_words()
                raise EngineError(f"{death.result()} before it answered; {words}")
            await beginning
        finally:
            await cancel([beginning, death])

    async def _begin(self, weights: ServedWeights) -> None:
        """Use the weights with which the server was started, or newer ones that came meanwhile."""
        while await self.client.health() != "healthy":
            await asyncio.sleep(POLL_SECONDS)
        await self.client.probe()
        if self.client.versioned:
            await self.client.set_version(weights.version)
        async with self._updating:
            if self.weights is weights:
                await self._use(weights)
            while self.weights is not weights:
                weights = self.weights
                await self._update(from_files(self._settings))
            self.up, self.behind = True, ""

    async def _keep_up(self) -> None:
        """Restart the server whenever it ends, up to the limit of restarts."""
        try:
            while not self.lost:
                await self._restart()
        except Exception as error:  # otherwise requests would wait forever
            logger.exception("%s can't be watched any more", self.name)
            self.up, self.lost = False, f"can't be watched any more: {error!r}"

    async def _death(self) -> str:
        """Wait until the process has ended, and return its status. Kill it if its engine is dead.

        vLLM's API server waits for a dead engine without end if the engine died in a call that updates weights.
        """
        assert self._process is not None
        status = asyncio.ensure_future(self._process.ended())
        try:
            while not (await asyncio.wait([status], timeout=WATCH_SECONDS))[0]:
                if await self.client.health() == "dead":
                    await self._process.kill()
            return status.result()
        finally:
            status.cancel()

    async def _restart(self) -> None:
        assert self._process is not None
        status = await self._death()
        self.up = False
        self._went_down()
        reason = f"{self.name} {status} unexpectedly; {await self._process.last_words()}"
        logger.warning("%s", reason)
        while not self.up and not self.lost:
            if self.restarts == self._settings.restarts:
                self.lost = f"failed after {self.restarts + 1} starts: {reason}"
                break
            await asyncio.sleep(min(0.25 * 2**self.restarts, MAX_PAUSE))
            self.restarts += 1
            weights = self.weights
            try:
                await self._launch()
            except EngineError as error:
                reason = str(error)
                if self.weights is not weights:  # whose folder may be gone
                    self.restarts -= 1
