"""Server of a pool, external or a child process that is restarted when it dies."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.engines.protocol import EngineError
from coterie.engines.servers.child import Child, Launch
from coterie.engines.servers.client import (
    FinalFault,
    ServedModel,
    ServerClient,
    ServerFault,
    TransientFault,
)
from coterie.engines.servers.vllm import VLLMBackend

logger = logging.getLogger(__name__)
MAX_PAUSE = 10.0
RESET_TRIES = 40
RESET_PAUSE = 0.25
Connect = Callable[[str, str], ServerClient]
"""Creates a client for a URL and the name of a model."""


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """Weights on the servers of a pool."""

    model: str
    """Folder or hub name of a checkpoint."""
    version: str
    adapter: Path | None = None
    """Folder of a LoRA adapter for the checkpoint."""
    adapter_name: str = ""
    """Name of the adapter, new on these servers."""


def absolute(path: Path | str) -> str:
    """Return a folder's absolute path, for other processes; a hub name does not change."""
    return str(Path(path).absolute()) if Path(path).is_dir() else str(path)


class Member:
    """External server, never started or stopped by coterie."""

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
        self.up = True
        self.lost = ""
        """Reason why the server is permanently down, or ""."""
        self.load = 0
        """Number of assigned, unanswered requests."""
        self.slots = asyncio.Semaphore(backend.settings.requests_per_server)
        self.weights = weights
        self.context: int | None = None
        """Maximum sequence length, if the server reports it."""
        self._base = base
        self.backend = backend

    @contextmanager
    def assign(self) -> Iterator[None]:
        """Count a request in :attr:`load` inside the block."""
        self.load += 1
        try:
            yield
        finally:
            self.load -= 1

    def report_stall(self) -> None:
        """Handle a request without an answer for too long."""

    async def serve(self, weights: ServedWeights) -> None:
        """Load other weights in place, and check that the server has them. Raises a ``ServerFault``."""
        before, self.weights = self.weights, weights
        names = {card.id for card in await self.client.models()}
        if before.adapter_name in names:
            body = {"lora_name": before.adapter_name}
            await self.client.post("/v1/unload_lora_adapter", body)
        self.client.model = self._base
        if weights.adapter is None:
            await self.backend.reload(self.client, weights.model)
            await self._reset_cache()
        await self.take_adapter(self.client)
        await self.card(self.client)

    async def take_adapter(self, client: ServerClient) -> None:
        """Load the adapter of the weights, if any, and use it in later requests."""
        if self.weights.adapter is not None:
            body = {
                "lora_name": self.weights.adapter_name,
                "lora_path": absolute(self.weights.adapter),
            }
            await client.post("/v1/load_lora_adapter", body)
            client.model = self.weights.adapter_name

    async def card(self, client: ServerClient) -> ServedModel:
        """Return the server's entry of the model. Raises :class:`FinalFault` if the server does not have it."""
        cards = {card.id: card for card in await client.models()}
        if client.model not in cards:
            raise FinalFault(f"{self.name} serves {', '.join(cards)}, not {client.model}")
        self.context = cards[client.model].max_model_len or self.context
        return cards[client.model]

    async def close(self) -> None:
        await self.client.close()

    async def _reset_cache(self) -> None:
        """Drop cached prefixes of the old weights, with retries because canceled requests may still use some."""
        for _ in range(RESET_TRIES):
            if await self.client.reset_cache():
                return
            await asyncio.sleep(RESET_PAUSE)
        raise TransientFault(f"{self.name} does not drop its prefix cache")


class OwnMember(Member):
    """Server in a child process, which is restarted when it dies."""

    def __init__(
        self,
        index: int,
        policy: str,
        backend: VLLMBackend,
        weights: ServedWeights,
        connect: Connect,
        log_folder: Path,
        went_down: Callable[[int], None],
    ) -> None:
        name = f"vllm-{index}"
        super().__init__(name, policy, backend, weights, connect("http://-", policy))
        self.up = False
        self.restarts = 0
        self._index = index
        self._connect = connect
        self._settings = backend.settings
        self._went_down = went_down
        self._log = log_folder / f"{name}.log"
        self._child: Child | None = None
        self._watch: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the server and watch it. Raises :class:`EngineError` if it can't be started."""
        await self._launch()
        self._watch = asyncio.create_task(self._keep_up())

    def report_stall(self) -> None:
        """Kill the server unless it is healthy; it is then restarted."""
        if self._doubt is None or self._doubt.done():
            self._doubt = asyncio.create_task(self._examine())

    async def _examine(self) -> None:
        child = self._child
        if self.up and child is not None and not await self.client.healthy():
            logger.warning("%s does not answer; killing and restarting it", self.name)
            child.kill()

    async def serve(self, weights: ServedWeights) -> None:
        """Load other weights; a server that dies meanwhile is restarted with them."""
        await self._wait_until_up()
        restarts = self.restarts
        try:
            await super().serve(weights)
        except TransientFault:
            await self._wait_until_up()
            if self.lost or self.restarts == restarts:
                raise

    async def close(self) -> None:
        for task in filter(None, (self._watch, self._doubt)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._child is not None:
            await self._child.end()
        await self.client.close()

    async def _wait_until_up(self) -> None:
        while not self.up and not self.lost:
            await asyncio.sleep(RESET_PAUSE)

    async def _launch(self) -> None:
        model = self.weights.model
        launch = Launch(
            name=self.name,
            command=lambda port: self.backend.command(model, self._base, port),
            environment=self.backend.environment(self._index),
            log=self._log,
            start_seconds=self._settings.start_seconds,
            grace_seconds=self._settings.grace_seconds,
        )
        try:
            self._child = await Child.start(launch, self._healthy)
        except OSError as error:
            raise EngineError(f"{self.name} can't be started: {error}") from error
        await self.client.close()
        self.client = self._connect(self._child.url, self._base)
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                await self.take_adapter(self.client)
                await self.card(self.client)
        except (ServerFault, TimeoutError) as error:
            await self._child.end()
            raise EngineError(f"{error!r}; {self._child.last_words()}") from error
        self.up = True

    async def _healthy(self, url: str) -> bool:
        client = self._connect(url, self._base)
        try:
            return await client.healthy()
        finally:
            await client.close()

    async def _keep_up(self) -> None:
        """Restart the server whenever it ends, up to the limit of restarts."""
        try:
            await self._restart()
        except Exception as error:  # otherwise requests would wait forever
            logger.exception("%s can't be watched any more", self.name)
            self.up, self.lost = False, f"can't be watched any more: {error!r}"

    async def _restart(self) -> None:
        while not self.lost:
            assert self._child is not None
            await self._child.wait()
            self.up = False
            self._went_down(self._index)
            reason = self._child.obituary("unexpectedly")
            logger.warning("%s", reason)
            while not self.up and not self.lost:
                if self.restarts == self._settings.restarts:
                    self.lost = f"failed after {self.restarts + 1} starts: {reason}"
                    break
                await asyncio.sleep(min(0.25 * 2**self.restarts, MAX_PAUSE))
                self.restarts += 1
                try:
                    await self._launch()
                except EngineError as error:
                    reason = str(error)
