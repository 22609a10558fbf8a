"""What a training leaves behind, and what it may go on from: metrics, checkpoints, final weights."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from coterie.errors import UserError
from coterie.training import checkpoint
from coterie.training.batches import Plan
from coterie.training.prepare import longest_row, tokenizer_folder, trainable
from coterie.training.settings import TrainingSettings


@dataclass(frozen=True)
class TrainingReport:
    """What was done. Written to ``final/training.json`` too."""

    final: Path
    """Folder of the trained weights (of the adapter, for lora)."""
    steps: int
    """Optimiser steps."""
    rows: int
    """Items that were trained, each once per epoch."""
    dropped_too_long: int
    """Items left out because a row is longer than the limit."""
    dropped_empty: int
    """Items left out because nothing in them counts (no targets, weight 0)."""
    tokens: int
    """Tokens that went forward and backward, padding not counted."""
    first_loss: float
    """Loss of the first step."""
    last_loss: float
    """Mean loss of the last tenth of the steps."""
    seconds: float
    """Time in steps, over all sessions of a resumed training."""

    @property
    def tokens_per_second(self) -> float:
        """Speed over the whole training."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Record:
    """The folder of one training, and where the training is."""

    def __init__(
        self,
        model: Any,
        objective: Any,
        batches: Plan[Any],
        settings: TrainingSettings,
        folder: Path,
        accelerator: Accelerator,
        *,
        resume: bool,
    ) -> None:
        if not batches.items:
            raise UserError(
                f"no row is left to train ({batches.too_long} longer than "
                f"{longest_row(model, settings)} tokens, {batches.empty} without targets)",
                "raise max_length, or give rows with targets",
            )
        steps = batches.steps_per_epoch * settings.epochs
        self.total = min(steps, settings.max_steps or steps)
        self.settings = settings
        self._model, self._batches, self._folder = model, batches, folder
        self._accelerator = accelerator
        self._step = self._tokens = 0
        self._seconds = 0.0
        self._losses: list[float] = []
        self._saved_at = self._last = time.monotonic()
        self._saved_seconds = 0.0
        self._identity = _identity(model, objective, batches, settings)
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            if not resume:
                checkpoint.remove_training(folder)
            checkpoint.remove_partial(folder)
        accelerator.wait_for_everyone()
        self._session_start = 0

    @property
    def _final(self) -> Path:
        return self._folder / "final"
