"""Folder of a training: metrics, checkpoints, final weights and report."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from pydantic import TypeAdapter
from torch import nn

from coterie.config.folders import flush
from coterie.errors import UserError
from coterie.models.saved import reading
from coterie.training import checkpoint
from coterie.training.prepare import tokenizer_folder
from coterie.training.settings import TrainingSettings


@dataclass(frozen=True)
class TrainingReport:
    """Result of a training, also in ``final/training.json``."""

    final: Path
    """Folder of the trained weights (of the adapter, for lora)."""
    steps: int
    rows: int
    """Items of all steps, counted again in each epoch."""
    dropped_too_long: int
    """Items with a row longer than the limit."""
    dropped_empty: int
    """Items with a count of 0 (no targets, weight 0)."""
    tokens: int
    """Tokens of all trained rows, without padding."""
    targets: int
    """Target tokens."""
    computed_tokens: int
    """Tokens of the forward and backward passes; a shared prefix counts once."""
    first_loss: float
    last_loss: float
    """Mean loss of the last tenth of the steps."""
    seconds: float
    """Time spent in steps, over all sessions of a resumed training."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Counts:
    """Counts of a training so far, as in :class:`TrainingReport`."""

    rows: int
    too_long: int
    empty: int
    tokens: int
    targets: int
    computed_tokens: int


@dataclass(frozen=True, slots=True)
class State:
    """State of a training in a checkpoint."""

    identity: dict[str, str]
    step: int
    seconds: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class Finished:
    """Contents of ``final/training.json``."""

    identity: dict[str, str]
    report: dict[str, Any]


class Record:
    """Progress of one training and its files."""

    def __init__(
        self,
        model: Any,
        folder: Path,
        settings: TrainingSettings,
        accelerator: Accelerator,
        total: int | None,
        identity: Mapping[str, str],
        keep_last: int = 1,
    ) -> None:
        self.total = total
        self._keep_last = keep_last
        self.settings = settings
        self._model, self._folder, self._accelerator = model, folder, accelerator
        self._identity = identity
        self.counts = Counts(0, 0, 0, 0, 0, 0)
        self._losses: list[float] = []
        self._seconds = self._seconds_before = 0.0
        self._tokens_before = 0
        self._saved_at = time.monotonic()

    @property
    def done(self) -> int:
        return len(self._losses)

    def finished(self) -> TrainingReport | None:
        """Load the weights of a finished training and return its report; ``None`` if it has not finished."""
        final = self._folder / "final"
        if not final.exists():
            return None
        identity, report = read_report(final)
        self._check(identity)
        checkpoint.load_final(self._model, final)
        return report

    def restore(
        self, weights: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        """Resume from the newest checkpoint, if there is one."""
        newest = checkpoint.newest_checkpoint(self._folder)
        if newest is not None:
            facts = checkpoint.read_facts(newest)
            with reading(newest, _again(self._folder)):
                state = TypeAdapter(State).validate_python(facts)
            self._check(state.identity)
            checkpoint.load_checkpoint(newest, weights, optimizer)
            self.counts = state.counts
            self._tokens_before = self.counts.tokens
            self._seconds = self._seconds_before = state.seconds
            with reading(self._metrics, _again(self._folder)), self._metrics.open() as file:
                self._losses = [json.loads(file.readline())["loss"] for _ in range(state.step)]
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            self._cut_metrics(len(self._losses))
        self._saved_at = time.monotonic()

    def add(
        self,
        *,
        loss: float,
        grad_norm: float,
        learning_rate: float,
        seconds: float,
        measures: Mapping[str, float],
    ) -> dict[str, float]:
        """Append a step to ``metrics.jsonl`` and return its metrics; ``measures`` come from the objective."""
        self._losses.append(loss)
        self._seconds += seconds
        counts = self.counts
        speed = (counts.tokens - self._tokens_before) / (self._seconds - self._seconds_before)
        metrics = {
            "step": self.done,
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "tokens_per_second": speed,
            "rows_dropped": counts.too_long + counts.empty,
            **measures,
        }
        if self.total is not None:
            remaining = self.total - self.done
            metrics["seconds_left"] = remaining * counts.tokens / self.done / speed
        if self._accelerator.is_main_process:
            with self._metrics.open("a") as file:
                file.write(json.dumps(metrics) + "\n")
        return metrics

    @property
    def save_is_due(self) -> bool:
        """True if a checkpoint is due by steps or time, the same on all ranks; False at the last step."""
        every = self.settings.save_every_steps
        due = every is not None and self.done % every == 0
        if (seconds := self.settings.save_every_seconds) is not None:
            due = due or time.monotonic() - self._saved_at >= seconds
        return _from_main_rank(due, self._accelerator) and self.done != self.total

    def save(self, weights: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        if write := self._accelerator.is_main_process:
            flush(self._metrics)
        facts = {
            "identity": self._identity,
            "counts": asdict(self.counts),
            "seconds": self._seconds,
        }
        checkpoint.save_checkpoint(
            *(self._folder, self.done, weights, optimizer, facts),
            write=write,
            keep_last=self._keep_last,
        )
        self._saved_at = time.monotonic()

    def finish(self) -> TrainingReport:
        """Save the final weights and remove the checkpoints."""
        report, final = self._report(), self._folder / "final"
        facts = {
            "identity": self._identity,
            "settings": self.settings.model_dump(mode="json"),
            "report": {k: v for k, v in asdict(report).items() if k != "final"},
        }
        write = self._accelerator.is_main_process
        checkpoint.save_final(self._model, final, facts, tokenizer_folder(self._model), write=write)
        if write:
            checkpoint.remove_checkpoints(self._folder)
        self._accelerator.wait_for_everyone()
        return report

    def _report(self) -> TrainingReport:
        tail = self._losses[-max(len(self._losses) // 10, 1) :]
        return TrainingReport(
            final=self._folder / "final",
            steps=len(self._losses),
            rows=self.counts.rows,
            dropped_too_long=self.counts.too_long,
            dropped_empty=self.counts.empty,
            tokens=self.counts.tokens,
            targets=self.counts.targets,
            computed_tokens=self.counts.computed_tokens,
            first_loss=self._losses[0] if self._losses else 0.0,
            last_loss=sum(tail) / max(len(tail), 1),
            seconds=self._seconds,
        )

    @property
    def _metrics(self) -> Path:
        return self._folder / "metrics.jsonl"

    def _cut_metrics(self, steps: int) -> None:
        """Remove the metrics of steps after the checkpoint, which run again."""
        with self._metrics.open("a+b") as file:
            file.seek(0)
            for _ in range(steps):
                file.readline()
            file.truncate(file.tell())

    def _check(self, identity: Mapping[str, str]) -> None:
        other = [name for name, value in self._identity.items() if identity.get(name) != value]
        if other:
            raise UserError(
                f"{self._folder} has a training that differs in its {', '.join(other)}",
                "use another folder, restart the training (resume=False), or repeat the arguments of the "
                "earlier training (with the starting weights as first loaded)",
            )


def read_report(final: Path) -> tuple[dict[str, str], TrainingReport]:
    """Return the identity and the report of a finished training.

    Raises ``UserError`` if the file is damaged or lacks fields.
    """
    file = final / "training.json"
    with reading(file, _again(final.parent)):
        record = TypeAdapter(Finished).validate_python(json.loads(file.read_text()))
        fields = {**record.report, "final": final}
        return record.identity, TypeAdapter(TrainingReport).validate_python(fields)


def _again(folder: Path) -> str:
    return f"remove {folder}; the training then starts again"


def _from_main_rank(due: bool, accelerator: Accelerator) -> bool:
    """Return the main rank's value: clocks differ, and all ranks have to save together."""
    if accelerator.num_processes == 1:
        return due
    flags: list[bool] = broadcast_object_list([due])
    return flags[0]


def open_folder(
    folder: Path, accelerator: Accelerator, *, resume: bool, at: int | None = None
) -> None:
    """Make the folder of a training and remove incomplete files.

    Args:
        folder: Folder of the training.
        accelerator: Accelerate, open on all ranks.
        resume: False to remove the earlier training.
        at: Optimizer step after which checkpoints are removed.
    """
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.remove_partial(folder)
        if not resume:
            checkpoint.remove_training(folder)
        if at is not None:
            checkpoint.go_back(folder, at)
    accelerator.wait_for_everyone()
