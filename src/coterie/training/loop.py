"""Training on rows that are all there, epoch by epoch: a loop over a :mod:`~coterie.training.trainer`.

    report = train(model, rows, TrainingSettings(learning_rate=1e-3), Path("runs/x/train"))

The folder then holds ``final/`` (weights, config, tokenizer files, ``training.json``) and
``metrics.jsonl`` (a line per optimiser step). Until then it holds a checkpoint; calling ``train``
again with the same arguments goes on from it, and in float32 on one CPU process the weights come out
bitwise as if it had never stopped. A finished training is not done again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.progress import Progress, Silent
from coterie.training.batches import Batch, Order, usable
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
    """Train ``model`` in place on ``rows`` (the objective's items; SFT on rows by default).

    With ``method=lora`` a model without adapter gets a fresh one, which is taken off again at the
    end and lives in ``folder/final``; of a model with adapters the one named, or the active one, is
    trained. On one rank of many, give every rank all rows. ``tracker`` is told of every step.

    The mean loss of ``heldout`` items is measured after every ``measure_every`` steps (by default after each epoch) and
    after the last one; it is ``heldout_loss`` in the metrics of that step.

    An objective that reads values needs a model with a value head (``models.heads``), which is trained
    with it; full weights only, and not under FSDP.

    Raises :class:`UserError` for what can't be trained: no rows left, a folder with another
    training, dropout, no head, a loss or gradient that is not finite (the weights are then as they were
    before the step).
    """
    objective = objective or SFT()
    found = usable(rows, objective, max_row_length(model, settings))
    order = Order(found.groups, settings.seed, settings.batch_rows)
    steps = order.steps_per_epoch * settings.epochs
    steps = min(steps, settings.max_steps or steps)
    identity = {"rows": hash_items(found.items)}
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
            _steps(trainer, found, order, steps, watch, heldout, every)
        return trainer.finish()


def _steps(
    trainer: Trainer[Any],
    found: Batch[Any],
    order: Order,
    steps: int,
    progress: Progress,
    heldout: Sequence[Any],
    every: int,
) -> None:
    if trainer.done == 0:
        trainer.leave_out(found.too_long, found.empty)
    try:
        progress.start(steps, f"training {len(found.items)} rows")
        progress.advance(trainer.done)
        for chosen in order.steps(trainer.done, steps):
            number = trainer.done + 1
            measured = heldout if number == steps or number % every == 0 else ()
            progress.advance(1, **trainer.step([found.items[i] for i in chosen], measured))
    finally:
        progress.close()
