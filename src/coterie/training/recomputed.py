"""Log-probs and values of sampled rows, computed by the trainer before it changes the weights.

    rows = with_old(trainer.model, rows, settings, temperature=1.0)        # log-probs under the sampling weights
    rows = with_row_reference(base, rows, settings, temperature=1.0)       # under a reference
    rows, after = with_values(critic, rows, settings)                      # V before each token, and after the last

The model's current weights are used; the caller ensures that they are the version that sampled (``Target.writer``).
Micro-batches are the same as in a trainer's step on these rows under the same settings, so in float32 on one process
the ratio to ``old`` is exactly 1 until the weights change. A row that is too long to train, or has nothing to train,
gets no values.
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
from coterie.record.rows import UNPREDICTED, Row
from coterie.training.forward import places, row_logprobs
from coterie.training.prepare import max_row_length
from coterie.training.settings import TrainingSettings


def with_old(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, *, temperature: float
) -> list[Row]:
    """Set ``old`` of each row: log-probs of its targets under the current weights (with the active adapter)."""
    logprobs_of_rows = _logprobs(model, rows, settings, temperature)
    return [
        replace(row, old=logprobs) for row, logprobs in zip(rows, logprobs_of_rows, strict=True)
    ]


def with_row_reference(
    model: Any,
    rows: Sequence[Row],
    settings: TrainingSettings,
    *,
    temperature: float,
    adapter: str | None = None,
) -> list[Row]:
    """Set ``reference`` of each row: log-probs of its targets under a reference model.

    Of a model with adapters the reference is ``adapter`` (a frozen copy), or the base if that is ``None``.
    """
    with using(model, adapter):
        logprobs_of_rows = _logprobs(model, rows, settings, temperature)
    return [
        replace(row, reference=logprobs)
        for row, logprobs in zip(rows, logprobs_of_rows, strict=True)
    ]


def with_values(
    model: Any, rows: Sequence[Row], settings: TrainingSettings
) -> tuple[list[Row], list[float | None]]:
    """Set ``values`` of each row: the head's value before each target.

    Also returns the value after each row's last target, which bootstraps a truncated trajectory; ``None`` for a row
    without values.
    """

    def read(part: Sequence[Row], rule: CostRule | None) -> list[list[float]]:
        ids, at = [row.ids for row in part], [places(row) for row in part]
        before = token_values(model, ids, at, rule, before=True)
        last = token_values(model, ids, [places[-1:] for places in at], rule)
        return [[*b.tolist(), *after.tolist()] for b, after in zip(before, last, strict=True)]

    result: list[Row] = []
    after: list[float | None] = []
    for row, values in zip(rows, _read(model, rows, settings, read), strict=True):
        result.append(
            replace(row, values=None if values is None else _of_targets(row, values[:-1]))
        )
        after.append(None if values is None else values[-1])
    return result, after


def _logprobs(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, temperature: float
) -> list[tuple[float, ...] | None]:
    def read(part: Sequence[Row], rule: CostRule | None) -> list[list[float]]:
        return [logprobs.tolist() for logprobs in row_logprobs(model, part, rule, temperature)]

    values = _read(model, rows, settings, read)
    return [
        None if logprobs is None else _of_targets(row, logprobs)
        for row, logprobs in zip(rows, values, strict=True)
    ]


def _read(
    model: Any,
    rows: Sequence[Row],
    settings: TrainingSettings,
    read: Callable[[Sequence[Row], CostRule | None], list[list[float]]],
) -> list[list[float] | None]:
    """Apply ``read`` to the micro-batches of trainable rows; ``None`` for the other rows."""
    rule = check(model).packing(settings.packing)
    values_of_rows: list[list[float] | None] = [None] * len(rows)
    with torch.no_grad():
        for part in _parts(rows, rule, settings, max_row_length(model, settings)):
            for index, values in zip(part, read([rows[i] for i in part], rule), strict=True):
                values_of_rows[index] = values
    return values_of_rows


def _parts(
    rows: Sequence[Row], rule: CostRule | None, settings: TrainingSettings, longest: int
) -> Iterator[list[int]]:
    """Yield micro-batches of row indices as in a :meth:`~coterie.training.trainer.Trainer.step` on one rank."""
    indices = [i for i, row in enumerate(rows) if row.weight and row.predicted]
    indices = [i for i in indices if len(rows[i].ids) <= longest]
    splitter = Splitter([[rows[i].ids] for i in indices], rule, settings.tokens_per_microbatch)
    families = splitter.families(range(len(indices)))
    for part in splitter.microbatches(families)[0] if indices else ():
        yield [indices[i] for i in part]


def _of_targets(row: Row, predicted: Sequence[float]) -> tuple[float, ...]:
    return (*[UNPREDICTED] * row.unpredicted, *predicted)
