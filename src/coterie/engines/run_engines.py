"""Engines of a run's roles: embedded ones for each step, and servers that load each new version."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
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
    from coterie.engines.pool import ServerPool

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Speaking:
    """Engine with the renderer and the context length of its model."""

    engine: Engine
    renderer: ChatRenderer
    context_length: int


class RunEngines:
    """Engines of one run's roles, each with its own servers; ``base`` is the base model of adapters by default."""

    def __init__(self, settings: EngineSettings, base: str, logs: Path) -> None:
        self.settings = settings
        self.base = base
        self.logs = logs
        self._runner: asyncio.Runner | None = None
        self._open = AsyncExitStack()
        self._pools: dict[str, ServerPool] = {}

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of a step on the event loop of the servers."""
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
        """Return an engine for a version of a role's weights.

        Servers read weights or a LoRA adapter (of ``base``) at ``path``; ``load`` loads the same weights in this
        process.
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
        )

    def make_room(self) -> None:
        """Free the devices for other work, unless servers keep running."""
        if self._runner is not None:
            self._runner.run(self.rest())

    async def rest(self) -> None:
        """Do the work of :meth:`make_room` on the event loop of the servers."""
        if not self.settings.keep_servers:
            await self.end()

    async def _served(
        self, role: str, base: str, version: int | str, path: Path | str, renderer: ChatRenderer
    ) -> "ServerPool":
        adapter = is_adapter(path)
        if role not in self._pools:
            from coterie.engines.pool import vllm_pool

            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
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
        pool = self._pools[role]
        if pool.version == str(version):
            return pool
        try:
            await pool.load(Path(path), str(version))
        except EngineError as error:
            if not self.settings.vllm.urls:
                raise
            raise UserError(
                f"the servers at {', '.join(self.settings.vllm.urls)} can't load the policy at "
                f"{path}: {error}",
                "start them with VLLM_SERVER_DEV_MODE=1 on this machine, or let coterie start them "
                "(no engine.vllm.urls)",
            ) from error
        return pool

    async def end(self) -> None:
        """Stop the servers, on their event loop."""
        self._pools.clear()
        await self._open.aclose()
