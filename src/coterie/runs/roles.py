"""Models of a run by role: paths, loading and engines of each version.

Version 0 of a role is its initial model. Version ``i`` is the result of the training in iteration ``i - 1``: full
weights or a LoRA adapter of the initial model. In this process an adapter is merged into float32 weights, and stays
separate beside bfloat16 weights, because merging would round small updates away. Servers serve it as an adapter.
"""

import shutil
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import PeftModel

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Engine, Sampling
from coterie.engines.run_engines import RunEngines, Speaking
from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.models.adapters import add_head, add_lora, load_adapter, load_head, remove_adapter
from coterie.models.loading import LoadedModel, identity, is_adapter, load, reload
from coterie.record.rows import Row
from coterie.record.tree import Selection, Tree
from coterie.rollout.samplers import TokenSampler
from coterie.runs.folder import Run
from coterie.training import checkpoint
from coterie.training.losses import Objective
from coterie.training.reference import with_row_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Role:
    """A named model."""

    name: str
    model: str
    shares: str | None = None
    """Role to share one base model in memory with; both are then adapters."""
    head: bool = False


def check_roles(roles: Sequence[Role]) -> None:
    known: dict[str, Role] = {}
    for role in roles:
        if role.name in known:
            raise UserError(f"two roles are called {role.name!r}", "give each a unique name")
        if not role.model:
            raise UserError(f"no model is named for role {role.name!r}", "set model=NAME_OR_PATH")
        known[role.name] = role
    for role in roles:
        if role.shares is not None:
            _check_shared(role, known)


def _check_shared(role: Role, known: Mapping[str, Role]) -> None:
    other = known.get(role.shares or "")
    if other is None or other is role:
        raise UserError(
            f"the role {role.name!r} shares its base with {role.shares!r}, which is not another role",
            f"name one of: {', '.join(name for name in known if name != role.name)}",
        )
    if other.shares is not None:
        raise UserError(
            f"{role.name!r} shares the base of {other.name!r}, which itself shares the base of {other.shares!r}",
            f"let both share with {other.shares!r}",
        )
    if role.head or other.head:
        raise UserError(
            f"{role.name!r} and {other.name!r} share a base, and one of them has a value head",
            "give the role with the head its own model",
        )
    if identity(role.model) != identity(other.model):
        raise UserError(
            f"{role.name!r} and {other.name!r} share a base, but {role.model} and {other.model} differ "
            "in their weights or tokenizers",
            "give both the same model, or remove `shares` to give each its own model",
        )


class Roles:
    """Roles of one open run. Must be closed."""

    def __init__(
        self,
        roles: Sequence[Role],
        settings: EngineSettings,
        run: Run,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_roles(roles)
        self.dtype = dtype
        """Data type of the weights of all models in this process."""
        self.known = {role.name: role for role in roles}
        self.settings = settings
        self.run = run
        self.engines = RunEngines(settings, roles[0].model, run.folder / "servers")
        self._shared: dict[str, LoadedModel] = {}
        """Base models with the adapters of several roles, by the role that owns the base."""

    # -- weights --------------------------------------------------------------------------------

    def path(self, name: str, version: int) -> Path | str:
        if version:
            return self.run.training_folder(version - 1, name) / "final"
        return self.known[name].model

    def load(
        self, name: str, version: int, *, merge: bool = True, trainable: bool = False
    ) -> LoadedModel:
        """Load a version of a role, with its adapter merged (``merge=False``: only into float32) unless trainable."""
        role, path = self.known[name], self.path(name, version)
        adapter = is_adapter(path)
        loaded = self._load(role.model if adapter else path)
        if adapter and not trainable and (merge or self.dtype == torch.float32):
            reload(loaded, path)
        elif adapter:
            model = load_adapter(loaded.model, Path(path), trainable=trainable)
            loaded = replace(loaded, model=model if trainable else model.eval())
        if role.head and version:
            load_head(loaded.model, Path(path))
        elif role.head and trainable:
            add_head(loaded.model)
        return loaded

    def _load(self, model: Path | str) -> LoadedModel:
        s = self.settings
        return load(
            model,
            dtype=self.dtype,
            device=s.device_name,
            template_args=s.template_args,
            attention=s.attention,
        )

    # -- engines --------------------------------------------------------------------------------

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.engines.run(work)

    async def speak(self, name: str, version: int) -> Speaking:
        role, path = self.known[name], self.path(name, version)
        base = self._base(role)
        if base is None or self.settings.kind != "inprocess":
            load = partial(self.load, name, version, merge=False)
            return await self.engines.speak(version, path, load, role=name, base=role.model)
        shared = self._beside(base, role, version)
        return await self.engines.speak(version, path, lambda: shared, role=name, adapter=name)

    def embedded(self, name: str, version: int) -> InProcessEngine:
        """Return an in-process engine of a version of a role, such as a frozen base."""
        return self.engines.embedded(self.load(name, version, merge=False), version, role=name)

    def make_room(self) -> None:
        self._shared.clear()
        self.engines.make_room()

    def close(self) -> None:
        self._shared.clear()
        self.engines.close()

    def _base(self, role: Role) -> str | None:
        """Return the role that owns the shared base of a role; ``None`` if it does not share."""
        if role.shares is not None:
            return role.shares
        return role.name if any(one.shares == role.name for one in self.known.values()) else None

    def _beside(self, base: str, role: Role, version: int) -> LoadedModel:
        path = self.path(role.name, version)
        if version and not is_adapter(path):
            raise UserError(
                f"{role.name!r} shares a base, but its training wrote full weights to {path}",
                "train it with method=lora, or remove `shares`",
            )
        if base not in self._shared:
            self._shared[base] = self._load(self.known[base].model)
        loaded = self._shared[base]
        if version:
            model: Any = load_adapter(loaded.model, Path(path), name=role.name)
        else:
            model = loaded.model
            if isinstance(model, PeftModel) and role.name in model.peft_config:
                remove_adapter(model, role.name)
            model = add_lora(model, r=1, alpha=1, name=role.name).eval()
        self._shared[base] = replace(loaded, model=model)
        return self._shared[base]


def load_selections(run: Run, iteration: int) -> Iterator[tuple[Tree, Selection]]:
    """Yield each selection of an iteration with its tree."""
    tree: Tree | None = None
    for task, selection in run.store.selections(iteration, "select"):
        if tree is None or tree.task != task:
            tree = run.store.tree(iteration, "rollout", task)
        yield tree, selection


KEPT = 2
"""Checkpoints per role. With two, all roles share at least one step wherever a run was killed."""
SERVED = "served-"


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Training configuration of a role."""

    role: str
    version: int
    agents: tuple[str, ...]
    objective: Objective[Row]
    settings: TrainingSettings
    updates: int
    like: str | None = None
    """Role whose weights a critic starts from, with a new value head. ``None`` for policies."""


@dataclass(eq=False)
class Learner:
    """Open role, made by :func:`learner`."""

    _models: Roles
    config: LearnerConfig
    loaded: LoadedModel
    trainer: Trainer[Row]
    _base: bool
    """True if the reference is the model without its new adapter."""
    _engine: InProcessEngine | None = None
    _reference: Any = None

    @property
    def role(self) -> str:
        return self.config.role

    @property
    def version(self) -> str:
        done = self.trainer.done
        return f"{self.config.version}.{done}" if done else str(self.config.version)

    @property
    def has_moved(self) -> bool:
        return self.trainer.done > 0

    async def sampler(self, sampling: Sampling) -> TokenSampler:
        renderer = self.loaded.renderer
        if self._models.settings.kind == "inprocess":
            engine: Engine = self._embedded()
            context = self.loaded.context_length
        else:
            base = self._models.known[self.role].model
            speaking = await self._models.engines.speak(
                self.version, self._served(), lambda: self.loaded, role=self.role, base=base
            )
            engine, context = speaking.engine, speaking.context_length
        return TokenSampler(
            engine, renderer.render, sampling, context, renderer.calls, renderer.parts
        )

    def with_reference(self, rows: Sequence[Row], temperature: float) -> list[Row]:
        """Return the rows with log-probs of the role at the start of the stage."""
        if self._reference is None and not self._base:
            self._reference = self._models.load(self.role, self.config.version, merge=False).model
        beside = isinstance(self._reference, PeftModel)
        return with_row_reference(
            self._reference or self.trainer.model,
            rows,
            self.config.settings,
            temperature=temperature,
            adapter=self._reference.active_adapter if beside else None,
        )

    def _embedded(self) -> InProcessEngine:
        if self._engine is None:
            self._engine = self._models.engines.embedded(self.loaded, self.version, role=self.role)
        self._engine.version = self.version
        return self._engine

    def _served(self) -> Path | str:
        """Return the folder of the current weights for servers. Only the newest folder is kept."""
        if not self.trainer.done:
            return self._models.path(self.role, self.config.version)
        folder = self.trainer.folder / f"{SERVED}{self.trainer.done:08d}"
        if not folder.is_dir():
            _forget_served(self.trainer.folder)
            self.trainer.publish(folder)
        return folder


@contextmanager
def learner(
    run: Run, models: Roles, iteration: int, config: LearnerConfig, *, at: int | None = None
) -> Iterator[Learner]:
    """Open a role for training and resume it, at the checkpoint after ``at`` optimizer steps if given."""
    if config.like is None:
        loaded = models.load(config.role, config.version, trainable=True)
    else:
        loaded = models.load(config.like, config.version)
        add_head(loaded.model)
    folder = run.training_folder(iteration, config.role)
    between_steps = {"save_every_seconds": None}  # the loop saves all roles at the same step
    _forget_served(folder)  # a killed process may have left some
    with Trainer(
        *(loaded.model, config.objective, config.settings.model_copy(update=between_steps), folder),
        steps=config.updates,
        tracker=run.tracker.of(config.role),
        keep_last=KEPT,
        at=at,
    ) as trainer:
        fresh = config.settings.method == "lora" and not isinstance(loaded.model, PeftModel)
        yield Learner(models, config, replace(loaded, model=trainer.model), trainer, fresh)
    _forget_served(folder)


def _forget_served(folder: Path) -> None:
    for served in folder.glob(f"{SERVED}*"):
        shutil.rmtree(served)


def saved_updates(folder: Path) -> set[int]:
    """Return the numbers of optimizer steps from which a training can resume; 0 is its start."""
    return {0, *checkpoint.saved_steps(folder)}
