"""What a server serves: one model under its name, and adapters on it under theirs.

Each adapter is merged into a copy of the model of its own: it answers at the model's full speed and
exactly as the merged policy does, and takes the model's memory once more.

Weights are only loaded while nothing runs, in a thread, so that the server can say meanwhile that
it is loading.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coterie.config.day import pinned
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.errors import UserError
from coterie.models.loading import ADAPTER_FILE, LoadedModel, is_adapter, load, reload


@dataclass(slots=True)
class Gate:
    """Closed while weights are loaded: a request that came in just before must not run on them."""

    loading: str = ""
    """What is being loaded, if anything."""

    def check(self) -> None:
        """Raise :class:`Loading` while closed."""
        if self.loading:
            raise Loading(f"{self.loading} is being loaded")


class GatedEngine(InProcessEngine):
    """An engine that takes requests only while the gate is open."""

    gate: Gate

    async def sample(
        self,
        prompt: Sequence[int],
        seeds: Sequence[int],
        sampling: Sampling,
        *,
        on_token: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """As every engine does."""
        self.gate.check()
        return await super().sample(prompt, seeds, sampling, on_token=on_token)

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """As every engine does."""
        self.gate.check()
        return await super().logprobs(prefix, continuations)


@dataclass(slots=True)
class Policy:
    """One model by name."""

    engine: InProcessEngine
    root: str
    """Folder or name that its weights came from."""
    parent: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.engine.policy


class Busy(EngineError):
    """Something else is going on; to be tried again when it is over."""


class Loading(EngineError):
    """Weights are being loaded; to be tried again soon."""


class Unknown(EngineError):
    """There is no model of that name."""


class Policies:
    """All that can be asked for; the first is the model itself."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        name: str,
        version: str,
        root: str,
        max_batch: int = 128,
        timeout: float = 600.0,
    ) -> None:
        self._max_batch = max_batch
        self._timeout = timeout
        self.gate = Gate()
        self.base = Policy(self._engine(loaded, name, version), root)
        self._adapters: dict[str, Policy] = {}

    def all(self) -> list[Policy]:
        """The model and its adapters."""
        return [self.base, *self._adapters.values()]

    def get(self, name: str) -> Policy:
        """The one of that name; :class:`Unknown` if there is none."""
        for policy in self.all():
            if policy.name == name:
                return policy
        names = ", ".join(policy.name for policy in self.all())
        raise Unknown(f"there is no model {name!r} here, only {names}")

    async def load_checkpoint(self, path: Path, version: str) -> Policy:
        """Replace the model's weights by a checkpoint's, or by its own with an adapter merged in.

        Adapters that were loaded before belong to the old weights, and must have been unloaded.
        Raises ``UserError`` or :class:`Busy`; the old weights then stay.
        """
        if self._adapters:
            raise Busy(
                f"adapters of the present weights are loaded ({', '.join(self._adapters)}); "
                "unload them first"
            )
        with self._idle(f"{path} as version {version}"):
            await asyncio.to_thread(asyncio.run, self.base.engine.load(path, version))
            self.base.root = str(path)
        return self.base

    async def load_adapter(self, name: str, path: Path) -> Policy:
        """Serve the model with a LoRA adapter under a name that is not taken."""
        if name in (policy.name for policy in self.all()):
            raise Busy(f"there is a model {name!r} already; unload it, or use another name")
        with self._idle(f"adapter {name}"):
            engine = await asyncio.to_thread(self._merged, name, path)
            self._adapters[name] = Policy(engine, str(path), self.base.name)
        return self._adapters[name]

    def unload_adapter(self, name: str) -> Policy:
        """Stop serving an adapter."""
        if self.get(name) is self.base:
            raise Unknown(f"{name!r} is the model itself and no adapter")
        if self._adapters[name].engine.busy:
            raise Busy(f"requests of adapter {name!r} are in flight; await them")
        return self._adapters.pop(name)

    def forget(self) -> None:
        """Drop what was kept of prompts; :class:`Busy` while requests are in flight."""
        self._check_idle("forget prefixes")
        for policy in self.all():
            policy.engine.forget()

    def _merged(self, name: str, path: Path) -> InProcessEngine:
        if not is_adapter(path):
            raise UserError(f"{path} is not an adapter: it has no {ADAPTER_FILE}", "check the path")
        base = self.base.engine.loaded
        stacked = is_adapter(self.base.root)
        source = base.source if stacked else self.base.root
        with pinned(base.renderer.template.day):
            merged = load(source, dtype=base.model.dtype, device=base.model.device)
        reload(merged, path)
        return self._engine(merged, name, name)

    def _engine(self, loaded: LoadedModel, name: str, version: str) -> InProcessEngine:
        engine = GatedEngine(
            loaded,
            policy=name,
            version=version,
            max_batch=self._max_batch,
            timeout=self._timeout,
        )
        engine.gate = self.gate
        return engine

    @contextmanager
    def _idle(self, what: str) -> Iterator[None]:
        """Refuse unless nothing is loading or running; then be loading."""
        self._check_idle(f"load {what}")
        self.gate.loading = what
        try:
            yield
        finally:
            self.gate.loading = ""

    def _check_idle(self, what: str) -> None:
        if self.gate.loading:
            raise Busy(f"can't {what}: {self.gate.loading} is being loaded; try again afterwards")
        if any(policy.engine.busy for policy in self.all()):
            raise Busy(f"can't {what}: requests are in flight; await them")
