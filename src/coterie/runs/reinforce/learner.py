"""Role in reinforcement learning: its model, trainer and engine.

The in-process engine shares the model of the trainer, so updates take effect at once. Servers receive the weights after
each step. A sampled turn records the version of the role: ``2`` at the start of the stage, ``2.5`` after five optimizer
steps.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peft import PeftModel

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Engine, Sampling
from coterie.models.adapters import add_head
from coterie.models.loading import LoadedModel
from coterie.record.rows import Row
from coterie.rollout.samplers import TokenSampler
from coterie.runs.folder import Run
from coterie.runs.roles import Roles
from coterie.training import checkpoint
from coterie.training.losses import Objective
from coterie.training.reference import with_row_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer

KEPT = 2
"""Checkpoints per role. With two, all roles share at least one step wherever a run was killed."""
SERVED = "served-"
"""Prefix of folders that servers load weights from."""


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Training configuration of a role."""

    role: str
    version: int
    agents: tuple[str, ...]
    objective: Objective[Row]
    settings: TrainingSettings
    updates: int
    """Maximum number of optimizer steps, for the learning rate schedule."""
    like: str | None = None
    """Role whose weights a critic starts from, with a new value head. ``None`` for policies."""


class Learner:
    """Open role, made by :func:`learner`."""

    def __init__(
        self,
        models: Roles,
        config: LearnerConfig,
        loaded: LoadedModel,
        trainer: Trainer[Row],
        base: bool,
    ) -> None:
        self.config = config
        self.loaded = loaded
        self.trainer = trainer
        self._models, self._base = models, base
        self._engine: InProcessEngine | None = None
        self._reference: Any = None

    @property
    def role(self) -> str:
        return self.config.role

    @property
    def version(self) -> str:
        done = self.trainer.done
        return f"{self.config.version}.{done}" if done else str(self.config.version)

    @property
    def has_moved(self) -> bool:
        """True if the weights differ from the reference."""
        return self.trainer.done > 0

    async def sampler(self, sampling: Sampling) -> TokenSampler:
        renderer = self.loaded.renderer
        if self._models.settings.kind == "inprocess":
            engine: Engine = self._embedded()
            context = self.loaded.context_length
        else:
            base = self._models.known[self.role].model
            speaking = await self._models.engines.speak(
                *(self.version, self._served(), lambda: self.loaded), role=self.role, base=base
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
        loaded = models.load_to_train(config.role, config.version)
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
