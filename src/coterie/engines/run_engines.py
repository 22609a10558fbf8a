"""The engines that a run's roles speak by: made when they are first needed, given new weights after.

The embedded engine is made anew for each step. Servers stay up from step to step, on one event loop
that outlives the steps, and load each new version.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import POLICY, Engine, EngineError
from coterie.engines.servers.opening import vllm_pool
from coterie.engines.servers.pool import ServerPool
from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, is_adapter, load_renderer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Speaking:
    """An engine with what is needed to talk to it."""

    engine: Engine
    renderer: ChatRenderer
    context_length: int


class RunEngines:
    """Engines of one run's roles; to be closed. ``logs`` is where servers leave theirs.

    ``base`` is what adapters are of, where a role does not say. Each role has servers of its own.
    """

    def __init__(self, settings: EngineSettings, base: str, logs: Path) -> None:
        self.settings = settings
        self.base = base
        self.logs = logs
        self._runner: asyncio.Runner | None = None
        self._open = AsyncExitStack()
        self._pools: dict[str, ServerPool] = {}

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a step's asynchronous work on the loop that servers live on."""
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(work)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self.end())
            self._runner.close()
            self._runner = None

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
    ) -> Speaking:
        """An engine of a role's ``version``, whose weights (or LoRA adapter) lie at ``path``.

        ``load`` gives the same in this process, where it speaks with ``adapter`` if the model has several.
        ``template_args`` are those of its chat template, if not the settings'.
        """
        if self.settings.kind == "inprocess":
            loaded = load()
            engine = self.embedded(loaded, version, role=role, adapter=adapter)
            return Speaking(engine, loaded.renderer, loaded.context_length)
        base = base or self.base
        renderer, context = load_renderer(
            base, self.settings.template_args if template_args is None else template_args
        )
        pool = await self._served(role, base, version, path, renderer)
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
            timeout=self.settings.timeout,
        )

    def make_room(self) -> None:
        """Let go of devices before other work on them, if servers are not to be kept."""
        if self._runner is not None:
            self._runner.run(self.rest())

    async def rest(self) -> None:
        """The same, on the loop that servers live on."""
        if not self.settings.keep_servers:
            await self.end()

    async def _served(
        self, role: str, base: str, version: int | str, path: Path | str, renderer: ChatRenderer
    ) -> ServerPool:
        adapter = is_adapter(path)
        if role not in self._pools:
            _free_memory()
            first = "unknown" if self.settings.vllm.urls else "0" if adapter else str(version)
            self._pools[role] = await self._open.enter_async_context(
                vllm_pool(
                    base if adapter else path,
                    renderer,
                    self.settings.vllm,
                    self.logs if role == POLICY else self.logs / role,
                    policy=role,
                    version=first,
                )
            )
        if self._pools[role].version != str(version):
            await self._load(self._pools[role], path, str(version))
        return self._pools[role]

    async def _load(self, pool: ServerPool, path: Path | str, version: str) -> None:
        """Load a policy; servers that run already may not let us."""
        try:
            await pool.load(Path(path), version)
        except EngineError as error:
            if not self.settings.vllm.urls:
                raise
            raise UserError(
                f"the servers at {', '.join(self.settings.vllm.urls)} do not take the policy at "
                f"{path}: {error}",
                "start them with VLLM_SERVER_DEV_MODE=1 on this machine, or let coterie start them "
                "(no engine.vllm.urls)",
            ) from error

    async def end(self) -> None:
        """End the servers; on the loop that they were started on."""
        self._pools.clear()
        await self._open.aclose()


def _free_memory() -> None:
    """Give back what finished work in this process still holds of the devices."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
