"""What a model says of rows that were sampled, put on them before a training changes its weights.

    rows = with_old(trainer.model, rows, settings, temperature=1.0)        # log-probs under the sampling weights
    rows = with_row_reference(base, rows, settings, temperature=1.0)       # under a reference
    rows, after = with_values(critic, rows, settings)                      # V before each token, and after the last

Each is of the model as it is now: that ``old`` belongs to the version that sampled (``Target.writer``) is for the
caller to see to. It is computed in the micro-batches in which a trainer under the same settings takes a step of these
rows, so in float32 on one process a ratio to ``old`` is exactly 1 until the weights change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from coterie.models.adapters import using
from coterie.models.check import check
from coterie.models.heads import token_values
from coterie.models.packing import CostRule
from coterie.models.splitting import Splitter
from coterie.training.forward import places, row_logprobs
from coterie.training.prepare import max_row_length
from coterie.training.settings import TrainingSettings
from coterie.trajectories.row import UNPREDICTED, Row


def with_old(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, *, temperature: float
) -> list[Row]:
    """The rows with ``old``, the log-probs of their targets under the model (and its active adapter) as it is now.

    Rows that are too long for a training, or have nothing to train, are passed on without.
    """
    known = _logprobs(model, rows, settings, temperature)
    return [replace(row, old=found) for row, found in zip(rows, known, strict=True)]


def with_row_reference(
    model: Any,
    rows: Sequence[Row],
    settings: TrainingSettings,
    *,
    temperature: float,
    adapter: str | None = None,
) -> list[Row]:
    """The rows with ``reference``, the log-probs of their targets under a reference: a model, of one with adapters the
    one named (a frozen copy), or the base alone.

    Rows that are too long for a training, or have nothing to train, are passed on without.
    """
    with using(model, adapter):
        known = _logprobs(model, rows, settings, temperature)
    return [replace(row, reference=found) for row, found in zip(rows, known, strict=True)]


def with_values(
    model: Any, rows: Sequence[Row], settings: TrainingSettings
) -> tuple[list[Row], list[float | None]]:
    """The rows with ``values``, what the model's head says before each target; and what it says after each row's last
    target, with which a path that was cut off there is bootstrapped.

    A row that is too long for a training, or has nothing to train, is passed on without, and has ``None``.
    """

    def read(part: Sequence[Row], rule: CostRule | None) -> list[list[float]]:
        ids, at = [row.ids for row in part], [places(row) for row in part]
        before = token_values(model, ids, at, rule, before=True)
        last = token_values(model, ids, [places[-1:] for places in at], rule)
        return [[*b.tolist(), *after.tolist()] for b, after in zip(before, last, strict=True)]

    found: list[Row] = []
    after: list[float | None] = []
    for row, values in zip(rows, _read(model, rows, settings, read), strict=True):
        found.append(replace(row, values=None if values is None else _of_targets(row, values[:-1])))
        after.append(None if values is None else values[-1])
    return found, after


def _logprobs(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, temperature: float
) -> list[tuple[float, ...] | None]:
    def read(part: Sequence[Row], rule: CostRule | None) -> list[list[float]]:
        return [found.tolist() for found in row_logprobs(model, part, rule, temperature)]

    known = _read(model, rows, settings, read)
    return [
        None if found is None else _of_targets(row, found)
        for row, found in zip(rows, known, strict=True)
    ]


def _read(
    model: Any,
    rows: Sequence[Row],
    settings: TrainingSettings,
    read: Callable[[Sequence[Row], CostRule | None], list[list[float]]],
) -> list[list[float] | None]:
    """What ``read`` gives for each row that a training takes, micro-batch by micro-batch."""
    rule = check(model).packing(settings.packing)
    found: list[list[float] | None] = [None] * len(rows)
    with torch.no_grad():
        for part in _parts(rows, rule, settings, max_row_length(model, settings)):
            for index, values in zip(part, read([rows[i] for i in part], rule), strict=True):
                found[index] = values
    return found


def _parts(
    rows: Sequence[Row], rule: CostRule | None, settings: TrainingSettings, longest: int
) -> Iterator[list[int]]:
    """Indices of rows, as :meth:`~coterie.training.trainer.Trainer.step` cuts a step of them on one rank."""
    kept = [i for i, row in enumerate(rows) if row.weight and row.predicted]
    kept = [i for i in kept if len(rows[i].ids) <= longest]
    splitter = Splitter([[rows[i].ids] for i in kept], rule, settings.tokens_per_microbatch)
    families = splitter.families(range(len(kept)))
    for part in splitter.microbatches(families)[0] if kept else ():
        yield [kept[i] for i in part]


def _of_targets(row: Row, predicted: Sequence[float]) -> tuple[float, ...]:
    return (*[UNPREDICTED] * row.unpredicted, *predicted)
