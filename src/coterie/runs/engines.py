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
from coterie.engines.protocol import POLICY, Engine, EngineError, Sampling
from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, is_adapter, load_renderer
from coterie.rollout.samplers import TokenSampler

if TYPE_CHECKING:
    from coterie.engines.connections import Address
    from coterie.engines.pool import ServerPool
    from coterie.engines.server_process import Servers

Result = TypeVar("Result")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class RoleEngine:
    """Engine with the renderer and the context length of its model."""

    engine: Engine
    renderer: ChatRenderer
    context_length: int

    def sampler(self, sampling: Sampling) -> TokenSampler:
        return TokenSampler.of(self.engine, self.renderer, sampling, self.context_length)


class RunEngines:
    """Engines of one run's roles, each with its own servers.

    ``servers`` finds room for servers on a cluster instead of this machine.
    """

    def __init__(
        self, settings: EngineSettings, logs: Path, servers: "Servers | None" = None
    ) -> None:
        self.settings = settings
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

    async def open_engine(
        self,
        version: int | str,
        path: Path | str,
        load: Callable[[], LoadedModel],
        *,
        role: str = POLICY,
        base: str = "",
        template_args: Mapping[str, Any] | None = None,
        send: "Callable[[str, Address], None] | None" = None,
        score: Callable[[Sequence[int]], Sequence[float] | None] | None = None,
    ) -> RoleEngine:
        """Return an engine for a version of a role's weights.

        Servers read weights or a LoRA adapter (of ``base``) at ``path``; ``load`` loads the same weights in this
        process. ``send`` sends them to a server from GPU to GPU, given the kind of transfer and the server's address.
        ``score`` returns the trainer's log-probs of ids after the first, to which the servers' are compared.
        """
        if self.settings.kind == "inprocess":
            loaded = load()
            engine = self.embedded(loaded, version, role=role)
            return RoleEngine(engine, loaded.renderer, loaded.context_length)
        args = self.settings.template if template_args is None else template_args
        renderer, context = load_renderer(base, args)
        pool = await self._served(role, base, version, path, renderer, send, score)
        return RoleEngine(pool, renderer, self.settings.vllm.max_model_len or context)

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

    async def release_devices(self) -> None:
        """Stop the servers to free the devices for other work, unless they are kept."""
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
        adapter, vllm = is_adapter(path), self.settings.vllm
        if role not in self._pools:
            from coterie.engines.pool import vllm_pool

            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            logs = self.logs if role == POLICY else self.logs / role
            named: dict[str, Any] = {"policy": role}
            if self._servers is not None:
                room = self._servers(vllm, logs)
                named["process"] = await self._open.enter_async_context(room)
            named["version"] = "unknown" if vllm.urls else "0" if adapter else str(version)
            opening = vllm_pool(base if adapter else path, renderer, vllm, logs, **named)
            self._pools[role] = await self._open.enter_async_context(opening)
        pool = self._pools[role]
        if pool.version == str(version):
            return pool
        try:
            by_gpu = None
            if send is not None and vllm.transfer in ("nccl", "ipc") and not adapter:
                by_gpu = partial(send, vllm.transfer)
            expected = score(pool.probe) if score is not None else None
            await pool.load(Path(path), str(version), by_gpu, expected)
        except EngineError as error:
            if not vllm.urls:
                raise
            raise UserError(
                f"the servers at {', '.join(vllm.urls)} can't load the policy at {path}: {error}",
                "serve the run's base model, not quantized, with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out where "
                "they see the run folder under the same path, or let coterie start them (no engine.vllm.urls)",
            ) from error
        return pool

    async def end(self) -> None:
        """Stop the servers, on their event loop."""
        self._pools.clear()
        await self._open.aclose()
