"""Models of a run by role: paths, loading and engines of each version.

Version 0 of a role is its initial model. Version ``i`` is the result of the training in iteration ``i - 1``: full
weights or a LoRA adapter of the initial model. In this process an adapter is merged into float32 weights, and stays
separate beside bfloat16 weights, because merging would round small updates away. Servers serve it as an adapter.
Roles of one model have its weights in memory once, until a training changes them: each has its own modules.
"""

import gc
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from peft import PeftModel

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.engines.settings import EngineSettings
from coterie.models.adapters import DEFAULT, NEW_HEAD, ModelSource, add_lora
from coterie.models.loading import LoadedModel, is_adapter
from coterie.record.rows import Facts, Row, Target
from coterie.rollout.samplers import TokenSampler
from coterie.runs.engines import RoleEngine, RunEngines
from coterie.runs.loop import Role, check_roles
from coterie.runs.run import Run
from coterie.training.losses import Objective
from coterie.training.reference import row_values, with_row_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer

if TYPE_CHECKING:  # most runs have neither servers nor ranks
    from coterie.engines.server_process import Servers
    from coterie.training.rank_trainer import RankTrainer
    from coterie.training.ranks import Ranks


class Roles:
    """Roles of one open run. Must be closed."""

    def __init__(
        self,
        roles: Sequence[Role],
        settings: EngineSettings,
        run: Run,
        dtype: torch.dtype = torch.float32,
        servers: "Servers | None" = None,
        load_in_4bit: bool = False,
    ) -> None:
        check_roles(roles)
        # The objects of the libraries take half a second of each collection, and trainings and servers
        # ask for one whenever they need memory. Models are loaded later, so theirs are collected.
        gc.freeze()
        self.dtype = dtype
        """Data type of the weights of all models in this process."""
        self.load_in_4bit = load_in_4bit
        self.known = {role.name: role for role in roles}
        self.settings = settings
        self.run = run
        self.engines = RunEngines(settings, run.folder / "servers", servers)
        self._bases = WeakValueDictionary[ModelSource, LoadedModel]()
        """Weights that several roles share, as long as one of them uses them."""

    # -- weights --------------------------------------------------------------------------------

    def path(self, name: str, version: int | Path) -> Path | str:
        """Return the weights of a version of a role, which may be the folder of a checkpoint itself."""
        if isinstance(version, Path):
            return version
        if version:
            return self.run.training_folder(version - 1, name) / "final"
        return self.known[name].model

    def load(
        self, name: str, version: int | Path, *, merge: bool | None = None, trainable: bool = False
    ) -> LoadedModel:
        """Load a version of a role, as described by :meth:`source`."""
        source = self.source(name, version, merge=merge, trainable=trainable)
        return self.load_source(source, keeps_base=not trainable)

    def load_source(self, source: ModelSource, *, keeps_base: bool) -> LoadedModel:
        """Load a model, whose weights are shared with other roles of the same model.

        Merged weights are not shared, and without ``keeps_base`` none are: the caller may change them all, and
        otherwise only adapters and value heads.
        """
        device, template = self.settings.device_name, self.settings.template
        is_merged = source.adapter is not None and source.merge
        count = [role.model for role in self.known.values()].count(source.model)
        if is_merged or not keeps_base or count < 2:
            return source.load(device, template)
        # The weights alone: an adapter or a value head belongs to one role.
        key = replace(source, adapter=None, merge=False, trainable=False, head=None)
        base = self._bases.get(key) or key.load(device, template)
        self._bases[key] = base
        return source.load(device, template, base)

    def source(
        self, name: str, version: int | Path, *, merge: bool | None = None, trainable: bool = False
    ) -> ModelSource:
        """Return the weights of a version of a role.

        ``merge`` merges an adapter into its base, loaded in full. Default: into float32 weights, unless trainable.
        """
        role, path = self.known[name], self.path(name, version)
        adapter, head = is_adapter(path), None
        # Merging into bfloat16 or 4-bit weights would round small updates away.
        if merge is None:
            merge = self.dtype == torch.float32 and not self.load_in_4bit
        merge = merge and not trainable
        # The initial model has no trained value head. Training starts with a new one.
        if role.head and (version or trainable):
            head = str(path) if version else NEW_HEAD
        return ModelSource(
            str(role.model if adapter else path),
            str(self.dtype).removeprefix("torch."),
            self.settings.attention,
            load_in_4bit=self.load_in_4bit and not merge,
            adapter=str(path) if adapter else None,
            merge=merge,
            trainable=trainable,
            head=head,
        )

    # -- engines --------------------------------------------------------------------------------

    async def open_engine(self, name: str, version: int) -> RoleEngine:
        role, path = self.known[name], self.path(name, version)
        # Merging would copy a base that roles share on request.
        shares = role.shares or any(r.shares == name for r in self.known.values())
        load = partial(self.load, name, version, merge=False if shares else None)
        return await self.engines.open_engine(version, path, load, role=name, base=role.model)

    def embedded(self, name: str, version: int) -> InProcessEngine:
        """Return an in-process engine of a version of a role, such as a frozen base."""
        return self.engines.embedded(self.load(name, version), version, role=name)

    def release_devices(self) -> None:
        """Free the devices for other work, unless servers keep running."""
        self.engines.run(self.engines.release_devices())

    def close(self) -> None:
        self.engines.close()
        gc.unfreeze()


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
    init_from: str | None = None
    """Role whose weights a critic starts from, with a new value head. ``None`` for policies."""


@dataclass(eq=False)
class Learner:
    """Open role, made by :func:`open_learner`."""

    _models: Roles
    config: LearnerConfig
    loaded: LoadedModel | None
    """Model to sample from; ``None`` if servers sample and ranks train."""
    trainer: "Trainer[Row] | RankTrainer[Row]"
    _base: bool
    """True if the reference is the model without its new adapter."""
    _ranks: "Ranks | None" = None
    _engine: InProcessEngine | None = None
    _reference: Any = None
    taken: list[tuple[int, Sequence[Row], Sequence[tuple[int, Facts]]]] = field(
        default_factory=list
    )
    """Number, rows and facts of the optimizer steps that are not recorded yet."""

    @property
    def role(self) -> str:
        return self.config.role

    @property
    def version(self) -> str:
        done = self.trainer.done
        return f"{self.config.version}.{done}" if done else str(self.config.version)

    @property
    def is_trained(self) -> bool:
        return self.trainer.done > 0

    @property
    def scorer(self) -> Any:
        """Current weights, to compute the values of rows: a model, or ranks."""
        return self.trainer.model if isinstance(self.trainer, Trainer) else self.trainer

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Take an optimizer step and return its metrics."""
        metrics = self.trainer.step(rows)
        self.taken.append((self.trainer.done, rows, self.trainer.facts))
        return metrics

    def score(self, ids: Sequence[int]) -> Sequence[float] | None:
        """Return log-probs of ids after the first under the current weights; ``None`` for too many ids."""
        # Only the first token has no log-prob.
        row = Row(tuple(ids), (Target(1, len(ids), self.role),))
        return row_values(self.scorer, "logprobs", [row], self.config.settings)[0]

    async def sampler(self, sampling: Sampling) -> TokenSampler:
        models = self._models
        if models.settings.kind == "inprocess":
            loaded = self.loaded
            assert loaded is not None
            engine = await self._embedded(loaded)
            return TokenSampler.of(engine, loaded.renderer, sampling, loaded.context_length)
        role_engine = await models.engines.open_engine(
            self.version,
            self.publish_weights(),
            partial(models.load, self.role, 0),
            role=self.role,
            base=models.known[self.role].model,
            send=self.trainer.send,
            score=self.score,
        )
        return role_engine.sampler(sampling)

    def with_reference(self, rows: Sequence[Row], temperature: float) -> list[Row]:
        """Return the rows with log-probs of the role at the start of the stage."""
        models, config = self._models, self.config
        # Loaded at first use. With a new adapter, the model without it is the reference.
        if self._reference is None and not self._base:
            if self._ranks is None:
                self._reference = models.load(self.role, config.version).model
            else:
                # Only trainings on several processes load this module.
                from coterie.training.rank_trainer import RankScorer

                source = models.source(self.role, config.version)
                self._reference = RankScorer(self._ranks, source, config.settings)
        # An adapter that was not merged must stay active in the reference.
        beside = isinstance(self._reference, PeftModel)
        return with_row_reference(
            self._reference or self.scorer,
            rows,
            config.settings,
            temperature=temperature,
            adapter=self._reference.active_adapter if beside else None,
        )

    async def _embedded(self, loaded: LoadedModel) -> InProcessEngine:
        """Return the engine on the trainer's model, or on a copy that gets the weights of the ranks."""
        on_ranks = self._ranks is not None
        if self._engine is None:
            # The engine's copy of the model receives the adapter that the ranks publish.
            adapter = DEFAULT if on_ranks and self.config.settings.method == "lora" else None
            engines, version = self._models.engines, str(self.config.version)
            self._engine = engines.embedded(loaded, version, role=self.role, adapter=adapter)
        if self._engine.version != self.version:
            if on_ranks:
                await self._engine.load(Path(self.publish_weights()), self.version)
            else:
                # The engine samples from the trainer's model itself, so only the name changes.
                self._engine.version = self.version
        return self._engine

    def publish_weights(self) -> Path | str:
        """Return the folder of the current weights for servers. The one before is kept, for servers that restart."""
        if not self.trainer.done:
            return self._models.path(self.role, self.config.version)
        weights_folder = self._models.engines.weights_folder(self.trainer.folder)
        folder = weights_folder / f"{SERVED}{self.trainer.done:08d}"
        if not folder.is_dir():
            _forget_served(weights_folder, keep=1)
            self.trainer.publish(folder)
        return folder


@contextmanager
def open_learner(
    run: Run,
    models: Roles,
    iteration: int,
    config: LearnerConfig,
    *,
    at: int | None = None,
    ranks: "Ranks | None" = None,
) -> Iterator[Learner]:
    """Open a role for training, on ``ranks`` if given.

    Resume it, at the checkpoint after ``at`` optimizer steps if given.
    """
    folder = run.training_folder(iteration, config.role)
    publish_weights = models.engines.weights_folder(folder)
    _forget_served(publish_weights)  # a killed process may have left some
    if config.init_from is None:
        source = models.source(config.role, config.version, trainable=True)
    else:
        merge = not models.load_in_4bit
        policy = models.source(config.init_from, config.version, merge=merge)
        source = replace(policy, head=NEW_HEAD)
    # A new adapter on the initial model, which serves as the reference without it.
    fresh = config.settings.method == "lora" and source.adapter is None
    named: dict[str, Any] = {"steps": config.updates, "keep_last": None, "at": at}
    named["tracker"] = run.tracker.of(config.role)
    # The loop saves all roles at the same step, and removes old checkpoints.
    settings = config.settings.model_copy(update={"save_every_seconds": None})
    engine = models.settings
    # Only policies are sampled from, and servers load the weights themselves.
    samples = engine.kind == "inprocess" and config.init_from is None
    loaded = None
    if ranks is None or samples:
        # Full training changes the weights themselves, so they are not shared.
        loaded = models.load_source(source, keeps_base=config.settings.method == "lora")
    trainer: Any
    if ranks is not None:
        # Only trainings on several processes load this module.
        from coterie.training.rank_trainer import RankTrainer

        trainer = RankTrainer(*(ranks, source, config.objective, settings, folder, Row), **named)
        if loaded is not None and fresh:  # a place for the adapter
            loaded = replace(loaded, model=add_lora(loaded.model, r=1, alpha=1).eval())
    else:
        assert loaded is not None
        trainer = Trainer(loaded.model, config.objective, settings, folder, **named)
        # The trainer may have wrapped the model with an adapter.
        loaded = replace(loaded, model=trainer.model)
    with trainer:
        yield Learner(models, config, loaded, trainer, fresh, ranks)
    _forget_served(publish_weights)


def _forget_served(folder: Path, keep: int = 0) -> None:
    # The numbers have leading zeros, so names sort by age.
    folders = sorted(folder.glob(f"{SERVED}*"))
    for publish_weights in folders[: len(folders) - keep]:
        shutil.rmtree(publish_weights)
