"""A role that learns from what it samples: its model, the trainer that changes it, the engine that speaks by it.

In this process trainer and engine have one model, so an update is sampled from at once. Servers are given the weights
after each step. A sampled turn names the version that said it: ``2`` is what the role had when the stage began, ``2.5``
what five optimiser steps have made of it.
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
from coterie.models.heads import add_head
from coterie.models.loading import LoadedModel
from coterie.rollout.samplers import TokenSampler
from coterie.runs.folder import Run
from coterie.runs.roles import Roles
from coterie.training import checkpoint
from coterie.training.objective import Objective
from coterie.training.recomputed import with_row_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer
from coterie.trajectories.row import Row

KEPT = 2
"""Checkpoints that are kept of each role, so that all can go on from one step, whenever they were killed."""
SERVED = "served-"
"""With what folders begin from which servers load."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What a role is trained with."""

    role: str
    version: int
    agents: tuple[str, ...]
    objective: Objective[Row]
    settings: TrainingSettings
    updates: int
    """Optimiser steps that there are at most, by which the learning rate goes."""
    like: str | None = None
    """The role that it begins as, with a fresh value head: of a critic. ``None``: itself."""


class Learner:
    """An open role; made by :func:`learner`."""

    def __init__(
        self, models: Roles, what: Learning, loaded: LoadedModel, trainer: Trainer[Row], base: bool
    ) -> None:
        self.what = what
        self.loaded = loaded
        self.trainer = trainer
        self._models, self._base = models, base
        self._engine: InProcessEngine | None = None
        self._reference: Any = None

    @property
    def role(self) -> str:
        return self.what.role

    @property
    def version(self) -> str:
        done = self.trainer.done
        return f"{self.what.version}.{done}" if done else str(self.what.version)

    @property
    def moved(self) -> bool:
        """Whether its weights differ from those of its reference."""
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
        """The rows with log-probs under what the role was when the stage began."""
        if self._reference is None and not self._base:
            self._reference = self._models.load(self.role, self.what.version, merge=False).model
        beside = isinstance(self._reference, PeftModel)
        return with_row_reference(
            self._reference or self.trainer.model,
            rows,
            self.what.settings,
            temperature=temperature,
            adapter=self._reference.active_adapter if beside else None,
        )

    def _embedded(self) -> InProcessEngine:
        if self._engine is None:
            self._engine = self._models.engines.embedded(self.loaded, self.version, role=self.role)
        self._engine.version = self.version
        return self._engine

    def _served(self) -> Path | str:
        """Where servers find its weights as they are now; a folder for each version, of which the last one stays."""
        if not self.trainer.done:
            return self._models.path(self.role, self.what.version)
        folder = self.trainer.folder / f"{SERVED}{self.trainer.done:08d}"
        if not folder.is_dir():
            _forget_served(self.trainer.folder)
            self.trainer.publish(folder)
        return folder


@contextmanager
def learner(
    run: Run, models: Roles, iteration: int, what: Learning, *, at: int | None = None
) -> Iterator[Learner]:
    """A role that learns in an iteration, where its training stands, or stood after ``at`` optimiser steps."""
    if what.like is None:
        loaded = models.load_to_train(what.role, what.version)
    else:
        loaded = models.load(what.like, what.version)
        add_head(loaded.model)
    folder = run.training_folder(iteration, what.role)
    between_steps = {"save_every_seconds": None}  # all roles save together, which clocks do not
    _forget_served(folder)  # a killed process may have left some
    with Trainer(
        *(loaded.model, what.objective, what.settings.model_copy(update=between_steps), folder),
        steps=what.updates,
        tracker=run.tracking.of(what.role),
        keep_last=KEPT,
        at=at,
    ) as trainer:
        fresh = what.settings.method == "lora" and not isinstance(loaded.model, PeftModel)
        yield Learner(models, what, replace(loaded, model=trainer.model), trainer, fresh)
    _forget_served(folder)


def _forget_served(folder: Path) -> None:
    for served in folder.glob(f"{SERVED}*"):
        shutil.rmtree(served)


def saved_updates(folder: Path) -> set[int]:
    """The numbers of optimiser steps after which a training in a folder can be gone on with; 0 is its beginning."""
    return {0, *checkpoint.saved_steps(folder)}
