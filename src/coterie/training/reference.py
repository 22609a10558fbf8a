"""Log-probs and values of rows, under the weights before a training and under a reference.

* :func:`with_old`, :func:`with_row_reference`, :func:`with_values`: one number for each target of a row, for policy
  gradients and critics, before each step.
* :func:`with_reference`: one number for each side of a pair, for DPO, once before a training and kept in a file.
* :class:`LossModule`: the forward pass of the trainer, which reads rows by the same functions.

Micro-batches are the same as in a trainer's step on these rows under the same settings, so in float32 on one process
the ratio to ``old`` is exactly 1 until the weights change. The caller ensures that the current weights are the version
that sampled (``Target.writer``). A row that is too long to train, or has nothing to train, gets no values.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from coterie.config.folders import flush
from coterie.errors import UserError
from coterie.models.adapters import token_values, using
from coterie.models.check import check
from coterie.models.loading import reading, writing
from coterie.models.logprobs import sequence_logprobs, token_entropies
from coterie.models.prefix_trie import CostRule, Splitter
from coterie.progress import Progress, Silent
from coterie.record.rows import UNPREDICTED, LabeledTrajectory, Pair, Row, unpair
from coterie.training.batches import max_row_length, rank_microbatches
from coterie.training.checkpoint import hash_items, hash_tensors
from coterie.training.losses import OF_A_HEAD, Item, Objective, Tally, side_statistic
from coterie.training.settings import Reads, Reduction, TrainingSettings


class LossModule(nn.Module, Generic[Item]):
    """Model and objective as one module, so that Accelerate wraps both (ranks, precision)."""

    def __init__(
        self, model: nn.Module, objective: Objective[Item], rule: CostRule | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.rule = rule
        # Accelerate reads this attribute of the wrapped module to shard a model layer by layer.
        self._no_split_modules = getattr(model, "_no_split_modules", None)
        self.tally = Tally()
        self.facts: list[Mapping[str, torch.Tensor]] = []
        """Numbers of the items of the step so far, in the order of the passes."""

    def forward(
        self,
        items: Sequence[Item],
        *,
        counts: bool = True,
        inside: Callable[[nn.Module], Any] | None = None,
    ) -> Any:
        """Return the summed loss of each item, shape ``(items,)``; measure the items if ``counts``.

        Return ``inside(model)`` instead if given: the layers of a sharded model have their weights only in a call of
        this module.
        """
        if inside is not None:
            return inside(self.model)
        objective = self.objective
        # Items (such as pairs) have several rows, which all go through one forward pass.
        groups = [objective.rows(item) for item in items]
        rows = [row for group in groups for row in group]
        settings = objective.reads, self.rule, objective.temperature
        # Regroup the flat list of the rows' values by item.
        tensors = iter(read_rows(self.model, rows, *settings))
        read = [[next(tensors) for _ in group] for group in groups]
        if counts:
            # Metrics are of the same forward pass as the loss, so they take no pass of their own.
            with torch.no_grad():
                detached = [[tensor.detach() for tensor in group] for group in read]
                measures = objective.measures(items, detached)
                self.tally.add(measures)
                self.facts += objective.facts(items, detached, measures)
        return objective.losses(items, read)


def read_rows(
    model: Any,
    rows: Sequence[Row],
    reads: Reads,
    rule: CostRule | None = None,
    temperature: float = 1.0,
) -> list[torch.Tensor]:
    """Compute the values that an objective reads of each row's targets, in order; none for a first token."""
    ids, positions = [row.ids for row in rows], [target_positions(row) for row in rows]
    # A state's value may depend on the tokens before a target only (`before`): it is a baseline of the target.
    if reads in OF_A_HEAD:
        return token_values(model, ids, positions, rule, from_parents=reads == "states")
    if reads == "logprobs":
        return sequence_logprobs(model, ids, positions, rule, temperature=temperature)
    options = {"temperature": temperature, "gradient": reads == "entropies"}
    return sequence_logprobs(model, ids, positions, rule, compute=token_entropies, **options)


def row_logprobs(
    model: Any, rows: Sequence[Row], rule: CostRule | None = None, temperature: float = 1.0
) -> list[torch.Tensor]:
    """Compute the log-probs (nats, float32) of each row's targets, in order; none for a first token."""
    return read_rows(model, rows, "logprobs", rule, temperature)


def target_positions(row: Row) -> list[int]:
    """Return the positions of a row's targets in order, without a target at the first token."""
    return [position for turn in row.predicted for position in turn]


class Scorer(Protocol):
    """Ranks that compute the values of rows in place of a model in this process."""

    def row_values(
        self, kind: "RowValue", rows: Sequence[Row], temperature: float
    ) -> list[tuple[float, ...] | None]: ...


RowValue = Literal["logprobs", "reference", "values"]
"""Log-probs of a row's targets under the current or the reference weights, or values before each and after the last."""


def with_old(
    model: Any | Scorer, rows: Sequence[Row], settings: TrainingSettings, *, temperature: float
) -> list[Row]:
    """Set ``old`` of each row: log-probs of its targets under the current weights (with the active adapter)."""
    values = row_values(model, "logprobs", rows, settings, temperature)
    return [replace(row, old=old) for row, old in zip(rows, values, strict=True)]


def with_row_reference(
    model: Any | Scorer,
    rows: Sequence[Row],
    settings: TrainingSettings,
    *,
    temperature: float,
    adapter: str | None = None,
) -> list[Row]:
    """Set ``reference`` of each row: log-probs of its targets under a reference model.

    Of a model with adapters the reference is ``adapter`` (a frozen copy), or the base if that is ``None``.
    """
    # The frozen adapter is active in this block only. A scorer on ranks switches adapters itself.
    with using(model, adapter):
        values = row_values(model, "reference", rows, settings, temperature)
    return [replace(row, reference=logprobs) for row, logprobs in zip(rows, values, strict=True)]


def with_teacher(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, *, temperature: float
) -> list[Row]:
    """Set ``teacher`` of each row: log-probs of its targets under the teacher of a distillation."""
    values = row_values(model, "logprobs", rows, settings, temperature)
    return [replace(row, teacher=logprobs) for row, logprobs in zip(rows, values, strict=True)]


def with_values(
    model: Any | Scorer, rows: Sequence[Row], settings: TrainingSettings
) -> tuple[list[Row], list[float | None]]:
    """Set ``values`` of each row: the head's value before each target.

    Also returns the value after each row's last target, which bootstraps a truncated trajectory; ``None`` for a row
    without values.
    """
    result: list[Row] = []
    final_values: list[float | None] = []
    for row, values in zip(rows, row_values(model, "values", rows, settings), strict=True):
        result.append(replace(row, values=values and values[:-1]))
        final_values.append(None if values is None else values[-1])
    return result, final_values


def row_values(
    model: Any | Scorer,
    kind: RowValue,
    rows: Sequence[Row],
    settings: TrainingSettings,
    temperature: float = 1.0,
) -> list[tuple[float, ...] | None]:
    """Compute the values of each row, with one for a target at the first token; ``None`` if it can't be trained."""
    # Ranks have their own copies of the model, and split the rows among them.
    if not isinstance(model, nn.Module):
        scorer: Scorer = model
        return scorer.row_values(kind, rows, temperature)
    result: list[tuple[float, ...] | None] = [None] * len(rows)
    for i, values in rank_row_values(model, kind, rows, settings, temperature):
        result[i] = values
    return result


@dataclass(frozen=True, slots=True)
class ShardedModel:
    """Module in whose calls a sharded model has its weights, and the packing rule from before it was sharded."""

    module: Any
    rule: CostRule | None


def rank_row_values(
    model: Any,
    kind: RowValue,
    rows: Sequence[Row],
    settings: TrainingSettings,
    temperature: float = 1.0,
    rank_and_count: tuple[int, int] = (0, 1),
    sharded: ShardedModel | None = None,
) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Yield the indices and values of the rows of one rank, ``rank_and_count`` being its number and their number."""

    # `model` is an argument, since a sharded module passes its own.
    def compute(
        part: Sequence[Row], rule: CostRule | None, model: Any = model
    ) -> list[torch.Tensor]:
        # Values need one more state than log-probs: the state after the last target, from which GAE
        # bootstraps a truncated path.
        if kind != "values":
            return row_logprobs(model, part, rule, temperature)
        ids, positions = [row.ids for row in part], [target_positions(row) for row in part]
        state_values = token_values(model, ids, positions, rule, from_parents=True)
        last_values = token_values(
            model, ids, [row_positions[-1:] for row_positions in positions], rule
        )
        return [torch.cat(pair) for pair in zip(state_values, last_values, strict=True)]

    def compute_sharded(part: Sequence[Row], rule: CostRule | None) -> list[torch.Tensor]:
        assert sharded is not None
        # Shards of a model are gathered by the hooks of the wrapper, so the pass runs inside of it.
        values: list[torch.Tensor] = sharded.module([], inside=partial(compute, part, rule))
        return values

    # A side has the rows that one micro-batch must hold, here a single row. A row of weight 0 is in no step of a
    # trainer. Left out here too, micro-batches are the same, and so is the rounding of log-probs.
    sides = [(row,) if row.weight else () for row in rows]
    # In a tuple, since `None` is a rule, too (no packing).
    packing = (sharded.rule,) if sharded else None
    function = compute_sharded if sharded else compute
    for values_by_side in _side_values(model, sides, settings, function, rank_and_count, packing):
        for i, (values,) in values_by_side:
            # Values of a row are aligned with all its targets, also one that no token predicts.
            yield i, (*[UNPREDICTED] * rows[i].unpredicted, *values.tolist())


Compute = Callable[[Sequence[Row], CostRule | None], list[torch.Tensor]]
"""(rows of a micro-batch, packing rule) -> values of each row's targets."""


def _side_values(
    model: Any,
    sides: Sequence[Sequence[Row]],
    settings: TrainingSettings,
    compute: Compute,
    rank_and_count: tuple[int, int] = (0, 1),
    packing: tuple[CostRule | None] | None = None,
) -> Iterator[list[tuple[int, list[torch.Tensor]]]]:
    """Yield the indices and values of sides that can be trained, in the micro-batches of a trainer's step.

    A side has one or more rows. Rows that are too long, or have nothing to train, are left out. All ranks make the same
    number of calls. The rule of packing is ``packing`` for a sharded model, which can't be checked.
    """
    (rule,) = packing or (check(model).packing(settings.packing),)
    longest = max_row_length(model, settings)
    # The same items as `make_batch` keeps, so that micro-batches equal the step's.
    indices = [i for i, side in enumerate(sides) if any(row.predicted for row in side)]
    indices = [i for i in indices if all(len(row.ids) <= longest for row in sides[i])]
    if not indices:
        return
    sequences = [[row.ids for row in side] for side in sides]
    splitter = Splitter(sequences, rule, settings.tokens_per_microbatch)
    with torch.no_grad():
        for part in rank_microbatches(splitter, splitter.families(indices), *rank_and_count):
            # A rank with an empty part computes any side, and drops the result: all ranks must make
            # the same number of calls.
            values = iter(compute([row for i in part or indices[:1] for row in sides[i]], rule))
            yield [(i, [next(values) for _ in sides[i]]) for i in part]


FILE = "reference.safetensors"


def with_reference(
    model: Any,
    pairs: Sequence[Pair],
    settings: TrainingSettings,
    folder: Path,
    *,
    reduction: Reduction,
    adapter: str | None = None,
    progress: Progress | None = None,
    scorer: Scorer | None = None,
) -> list[Pair]:
    """Set ``reference`` of each pair; a pair that is too long to train gets none.

    Log-probs of a side are summed, or reduced by ``reduction`` like the objective's (``DPOSettings.reduction``), and
    stored in ``folder``. The reference is ``adapter`` (a frozen copy), or ``model`` with all adapters off; a ``scorer``
    has the same weights. Raises ``UserError`` for a log-prob that is not finite.
    """
    # Without the other adapters, which the reference does not use: training changes them, and a
    # resumed run would not recognize its file.
    weights = hash_tensors(
        (name, weight)
        for name, weight in model.named_parameters()
        if ".lora_" not in name or f".{adapter}." in name
    )
    # A resumed run takes the stored numbers, unless weights, pairs or the reduction have changed.
    identity = {"model": weights, "pairs": hash_items(pairs), "reduction": reduction}
    file, sums = folder / FILE, None
    if file.is_file():
        with reading(file, "remove it; it is then computed again"), safe_open(file, "pt") as opened:
            sums = opened.get_tensor("sums") if opened.metadata() == identity else None
    if sums is None:
        with using(model, adapter):
            sums = _compute(model, pairs, settings, reduction, progress or Silent(), scorer)
        folder.mkdir(parents=True, exist_ok=True)
        # Write, flush and rename: a killed process leaves no damaged file under the final name.
        temporary = folder / f".{FILE}.{os.getpid()}.partial"
        try:
            with writing(folder):
                save_file({"sums": sums}, temporary, metadata=identity)
            flush(temporary)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    return [
        pair
        if math.isnan(chosen) or math.isnan(rejected)
        else replace(pair, reference=(chosen, rejected))
        for pair, (chosen, rejected) in zip(pairs, sums.tolist(), strict=True)
    ]


def unpair_with_reference(
    model: Any, pairs: Sequence[Pair], settings: TrainingSettings, folder: Path, **options: Any
) -> list[LabeledTrajectory]:
    """Return the sides of pairs (:func:`unpair`) with ``reference``; options as for :func:`with_reference`."""
    sides = unpair(pairs, max_row_length(model, settings))
    # Log-probs of a side and of its mismatched completion are computed and stored like a side of a pair.
    scored = [Pair(side.rows, side.mismatched or side.rows) for side in sides]
    scored = with_reference(model, scored, settings, folder, **options)
    return [replace(side, reference=p.reference) for side, p in zip(sides, scored, strict=True)]


def _compute(
    model: Any,
    pairs: Sequence[Pair],
    settings: TrainingSettings,
    reduction: Reduction,
    progress: Progress,
    scorer: Scorer | None,
) -> torch.Tensor:
    """Return reduced log-probs ``[pairs, 2]``, NaN for a side that is too long or has no targets."""
    # Sides of a pair are neighbors here, so `view(-1, 2)` restores the pairs at the end.
    sides = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    sums = torch.full((len(sides),), math.nan, dtype=torch.float64)
    progress.start(len(sides), "reference log-probs")
    try:
        if scorer is None:
            parts = _side_values(model, sides, settings, partial(row_logprobs, model))
        else:
            parts = _side_values_on_ranks(scorer, sides)
        for part in parts:
            for i, logprobs in part:
                doubles = [row_logprobs.double() for row_logprobs in logprobs]
                total = float(side_statistic(sides[i], doubles, reduction))
                if not math.isfinite(total):
                    raise UserError(
                        f"the reference log-prob of pair {pairs[i // 2].name} is {total}",
                        "check this pair and the weights of the reference model",
                    )
                sums[i] = total
            progress.advance(len(part))
    finally:
        progress.close()
    return sums.view(-1, 2)


SIDES = 256
"""Sides of one call of ranks."""


def _side_values_on_ranks(
    scorer: Scorer, sides: Sequence[Sequence[Row]]
) -> Iterator[list[tuple[int, list[torch.Tensor]]]]:
    """Yield the indices and log-probs of sides that can be trained."""
    for start in range(0, len(sides), SIDES):
        chunk = sides[start : start + SIDES]
        values = iter(scorer.row_values("reference", [row for side in chunk for row in side], 1.0))
        part = []
        for i, side in enumerate(chunk, start):
            scored = [(row, next(values)) for row in side]
            # Ranks pad the values of a first token, and return `None` for a row that is too long or
            # has nothing to predict. A side needs all rows that have something.
            logprobs = [
                torch.tensor(of_row[row.unpredicted :] if of_row else ())
                for row, of_row in scored
                if of_row or not row.predicted
            ]
            if any(map(len, logprobs)) and len(logprobs) == len(side):
                part.append((i, logprobs))
        yield part
