"""Engines of a run's roles: embedded ones for each step, and servers that load each new version."""

import asyncio
import gc
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import POLICY, Engine, EngineError
from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, is_adapter, load_renderer

if TYPE_CHECKING:
    from coterie.engines.connections import Address
    from coterie.engines.pool import ServerPool
    from coterie.engines.server_process import Servers

Result = TypeVar("Result")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Speaking:
    """Engine with the renderer and the context length of its model."""

    engine: Engine
    renderer: ChatRenderer
    context_length: int


class RunEngines:
    """Engines of one run's roles, each with its own servers; ``base`` is the base model of adapters by default.

    ``servers`` finds room for servers on a cluster instead of this machine.
    """

    def __init__(
        self, settings: EngineSettings, base: str, logs: Path, servers: "Servers | None" = None
    ) -> None:
        self.settings = settings
        self.base = base
        self.logs = logs
        self._servers = servers
        self._runner: asyncio.Runner | None = None
        self._open = AsyncExitStack()
        self._pools: dict[str, ServerPool] = {}
        self._shared: dict[Path, Path] = {}
        """Folder in shared memory of each training."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of a step on the event loop of the servers."""
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(work)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self.end())
            self._runner.close()
            self._runner = None
        for shared in self._shared.values():
            shutil.rmtree(shared, ignore_errors=True)
        self._shared.clear()

    async def speak(
        self,
        version: int | str,
        path: Path | str,
        load: Callable[[], LoadedModel],
        *,
        role: str = POLICY,
        base: str | None = None,
        adapter: str | None = None,
        template_args: Mapping[str, Any] | None = None,
        send: "Callable[[str, Address], None] | None" = None,
        score: Callable[[Sequence[int]], Sequence[float] | None] | None = None,
    ) -> Speaking:
        """Return an engine for a version of a role's weights.

        Servers read weights or a LoRA adapter (of ``base``) at ``path``; ``load`` loads the same weights in this
        process. ``send`` sends them to a server from GPU to GPU, given the kind of transfer and the server's address.
        ``score`` returns the trainer's log-probs of ids after the first, to which the servers' are compared.
        """
        if self.settings.kind == "inprocess":
            loaded = load()
            engine = self.embedded(loaded, version, role=role, adapter=adapter)
            return Speaking(engine, loaded.renderer, loaded.context_length)
        base = base or self.base
        renderer, context = load_renderer(
            base, self.settings.template if template_args is None else template_args
        )
        pool = await self._served(role, base, version, path, renderer, send, score)
        return Speaking(pool, renderer, self.settings.vllm.max_model_len or context)

    def embedded(
        self,
        loaded: LoadedModel,
        version: int | str,
        *,
        role: str = POLICY,
        adapter: str | None = None,
    ) -> InProcessEngine:
        return InProcessEngine(
            loaded,
            policy=role,
            version=str(version),
            adapter=adapter,
            max_batch=self.settings.max_batch,
            cache_bytes=round(self.settings.cache_gib * 2**30),
        )

    def weights_folder(self, folder: Path) -> Path:
        """Return where a training publishes weights for servers: in its folder, or in shared memory."""
        if self.settings.kind == "inprocess" or self.settings.vllm.transfer != "shm":
            return folder
        if folder not in self._shared:
            digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()
            prefix = f"coterie-{digest[:16]}-"
            for abandoned in SHARED_MEMORY.glob(f"{prefix}*"):  # of a killed process of this run
                shutil.rmtree(abandoned, ignore_errors=True)
            # A new folder, which only this user can read: others may have made one under any name.
            self._shared[folder] = Path(tempfile.mkdtemp(prefix=prefix, dir=SHARED_MEMORY))
        return self._shared[folder]

    def make_room(self) -> None:
        """Free the devices for other work, unless servers keep running."""
        if self._runner is not None:
            self._runner.run(self.rest())

    async def rest(self) -> None:
        """Do the work of :meth:`make_room` on the event loop of the servers."""
        if not self.settings.keep_servers:
            await self.end()

    async def _served(
        self,
        role: str,
        base: str,
        version: int | str,
        path: Path | str,
        renderer: ChatRenderer,
        send: "Callable[[str, Address], None] | None",
        score: Callable[[Sequence[int]], Sequence[float] | None] | None,
    ) -> "ServerPool":
        adapter, transfer = is_adapter(path), self.settings.vllm.transfer
        if role not in self._pools:
            from coterie.engines.pool import vllm_pool

            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            logs = self.logs if role == POLICY else self.logs / role
            process_arguments: dict[str, Any] = {}
            if self._servers is not None:
                room = self._servers(self.settings.vllm, logs)
                process_arguments["process"] = await self._open.enter_async_context(room)
            first_version = (
                "unknown" if self.settings.vllm.urls else "0" if adapter else str(version)
            )
            self._pools[role] = await self._open.enter_async_context(
                vllm_pool(
                    base if adapter else path,
                    renderer,
                    self.settings.vllm,
                    logs,
                    policy=role,
                    version=first_version,
                    **process_arguments,
                )
            )
        pool = self._pools[role]
        if pool.version == str(version):
            return pool
        try:
            by_gpu = None
            if send is not None and transfer in ("nccl", "ipc") and not adapter:
                by_gpu = partial(send, transfer)
            expected = score(pool.probe) if score is not None else None
            await pool.load(Path(path), str(version), by_gpu, expected)
        except EngineError as error:
            if not self.settings.vllm.urls:
                raise
            raise UserError(
                f"the servers at {', '.join(self.settings.vllm.urls)} can't load the policy at "
                f"{path}: {error}",
                "serve the run's base model, not quantized, with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out where "
                "they see the run folder under the same path, or let coterie start them (no engine.vllm.urls)",
            ) from error
        return pool

    async def end(self) -> None:
        """Stop the servers, on their event loop."""
        self._pools.clear()
        await self._open.aclose()
