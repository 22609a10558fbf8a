"""Training loop over the epochs of a data set, with a :mod:`~coterie.training.trainer`.

    report = train(model, rows, TrainingSettings(learning_rate=1e-3), Path("runs/x/train"))

The folder then has ``final/`` (weights, config, tokenizer files, ``training.json``) and ``metrics.jsonl`` (one line per
optimizer step). Until then it has a checkpoint: calling ``train`` again with the same arguments resumes from it, and in
float32 on one CPU process the final weights are bitwise the same as without an interruption. A finished training is not
repeated.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.progress import Progress, Silent
from coterie.training.batches import Batch, Order, make_batch
from coterie.training.checkpoint import hash_items
from coterie.training.objective import Objective
from coterie.training.prepare import max_row_length
from coterie.training.record import TrainingReport
from coterie.training.settings import TrainingSettings
from coterie.training.sft import SFT
from coterie.training.trackers import Tracker
from coterie.training.trainer import Trainer


def train(
    model: Any,
    rows: Sequence[Any],
    settings: TrainingSettings,
    folder: Path,
    *,
    objective: Objective[Any] | None = None,
    adapter: str | None = None,
    resume: bool = True,
    progress: Progress | None = None,
    tracker: Tracker | None = None,
    heldout: Sequence[Any] = (),
    measure_every: int | None = None,
) -> TrainingReport:
    """Train a model in place.

    With ``method=lora`` a model without an adapter gets a new one, which is removed at the end and saved in
    ``folder/final``. An objective that reads values needs a model with a value head (``models.heads``), which is
    trained with it, and not under FSDP.

    Args:
        model: Model, with or without adapters.
        rows: Items of the objective: rows for SFT. Every rank gets all of them.
        settings: Settings of the training.
        folder: Folder of checkpoints, metrics and final weights.
        objective: Objective to minimize; SFT by default.
        adapter: Name of the adapter to train; the active one by default.
        resume: False to remove the earlier training in ``folder``.
        progress: Progress display.
        tracker: Receives the metrics of every step.
        heldout: Items whose mean loss is in the metrics as ``heldout_loss``, at some steps and at the last one.
        measure_every: Steps between two measures of ``heldout``; an epoch by default.

    Raises:
        UserError: No row can be trained, the folder has another training, the model has dropout or lacks a head, or a
            loss or gradient is not finite (the weights then keep their values from before the step).
    """
    objective = objective or SFT()
    batch = make_batch(rows, objective, max_row_length(model, settings))
    order = Order(batch.groups, settings.seed, settings.batch_rows)
    steps = order.steps_per_epoch * settings.epochs
    steps = min(steps, settings.max_steps or steps)
    identity = {"rows": hash_items(batch.items)}
    with Trainer(
        *(model, objective, settings, folder),
        steps=steps,
        adapter=adapter,
        resume=resume,
        tracker=tracker,
        identity=identity,
    ) as trainer:
        if trainer.report is None:
            watch = progress if progress and trainer.is_main else Silent()
            every = measure_every or order.steps_per_epoch
            _steps(trainer, batch, order, steps, watch, heldout, every)
        return trainer.finish()


def _steps(
    trainer: Trainer[Any],
    batch: Batch[Any],
    order: Order,
    steps: int,
    progress: Progress,
    heldout: Sequence[Any],
    every: int,
) -> None:
    if trainer.done == 0:
        trainer.leave_out(batch.too_long, batch.empty)
    try:
        progress.start(steps, f"training {len(batch.items)} rows")
        progress.advance(trainer.done)
        for indices in order.steps(trainer.done, steps):
            number = trainer.done + 1
            measured = heldout if number == steps or number % every == 0 else ()
            progress.advance(1, **trainer.step([batch.items[i] for i in indices], measured))
    finally:
        progress.close()
