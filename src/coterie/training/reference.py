"""Reference log-probs of preference pairs, computed once and cached on disk.

The reference is a model, a base with its adapters off, or a frozen adapter on it. The cache is keyed by the weights,
the pairs, and the reduction of a side's log-probs to one number.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from coterie.config.folders import flush
from coterie.errors import UserError
from coterie.models.adapters import using
from coterie.models.check import check
from coterie.models.saved import reading, writing
from coterie.models.splitting import Splitter
from coterie.progress import Progress, Silent
from coterie.record.rows import Pair, Row
from coterie.training.checkpoint import hash_items, hash_tensors
from coterie.training.forward import row_logprobs
from coterie.training.prepare import max_row_length
from coterie.training.settings import Normalise, TrainingSettings
from coterie.training.sides import side_statistic

FILE = "reference.safetensors"


def with_reference(
    model: Any,
    pairs: Sequence[Pair],
    settings: TrainingSettings,
    folder: Path,
    *,
    normalise: Normalise,
    adapter: str | None = None,
    progress: Progress | None = None,
) -> list[Pair]:
    """Set ``reference`` of each pair; a pair that is too long to train gets none.

    Args:
        model: Reference model.
        pairs: Pairs of the training.
        settings: Settings of the training: batches are formed in the same way.
        folder: Folder of the cache.
        normalise: Reduction of a side's log-probs, equal to the objective's ``DPOSettings.normalise``.
        adapter: Adapter that is the reference (a frozen copy); ``None``: the base with all adapters off.
        progress: Progress display.

    Raises:
        UserError: A log-prob is not finite.
    """
    identity = {
        "model": _hash(model, adapter),
        "pairs": hash_items(pairs),
        "normalise": normalise,
    }
    sums = _stored(folder / FILE, identity)
    if sums is None:
        with using(model, adapter), torch.no_grad():
            sums = _compute(model, pairs, settings, normalise, progress or Silent())
        _store(folder, sums, identity)
    return [
        pair
        if math.isnan(chosen) or math.isnan(rejected)
        else replace(pair, reference=(chosen, rejected))
        for pair, (chosen, rejected) in zip(pairs, sums.tolist(), strict=True)
    ]


def _compute(
    model: Any,
    pairs: Sequence[Pair],
    settings: TrainingSettings,
    normalise: Normalise,
    progress: Progress,
) -> torch.Tensor:
    """Return reduced log-probs ``[pairs, 2]``, NaN for a side that is too long or has no targets."""
    rule = check(model).packing(settings.packing)
    max_row = max_row_length(model, settings)
    sides = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    splitter = Splitter(
        [[row.ids for row in side] for side in sides], rule, settings.tokens_per_microbatch
    )
    fits = [i for i, side in enumerate(sides) if _fits(side, max_row)]
    sums = torch.full((len(sides),), math.nan, dtype=torch.float64)
    progress.start(len(fits), "reference log-probs")
    for part in splitter.microbatches(splitter.families(fits))[0]:
        logprobs_of_rows = iter(row_logprobs(model, [row for i in part for row in sides[i]], rule))
        for i in part:
            logprobs = [next(logprobs_of_rows).double() for _ in sides[i]]
            total = float(side_statistic(sides[i], logprobs, normalise))
            if not math.isfinite(total):
                raise UserError(
                    f"the reference log-prob of pair {pairs[i // 2].name} is {total}",
                    "check this pair and the weights of the reference model",
                )
            sums[i] = total
        progress.advance(len(part))
    progress.close()
    return sums.view(-1, 2)


def _fits(side: Sequence[Row], max_row: int) -> bool:
    """Return True if a side has targets and none of its rows is too long."""
    return any(row.predicted for row in side) and all(len(row.ids) <= max_row for row in side)


def _store(folder: Path, sums: torch.Tensor, identity: dict[str, str]) -> None:
    """Write the file under a temporary name of this process and rename it; ranks may write at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{FILE}.{os.getpid()}.partial"
    try:
        with writing(folder):
            save_file({"sums": sums}, temporary, metadata=identity)
        flush(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(folder / FILE)


def _stored(file: Path, identity: dict[str, str]) -> torch.Tensor | None:
    if not file.is_file():
        return None
    advice = "remove it; it is then computed again"
    with reading(file, advice), safe_open(file, framework="pt") as opened:
        same = opened.metadata() == identity
        return opened.get_tensor("sums") if same else None


def _hash(model: Any, adapter: str | None) -> str:
    return hash_tensors(
        (name, weight)
        for name, weight in model.named_parameters()
        if ".lora_" not in name or f".{adapter}." in name
    )
