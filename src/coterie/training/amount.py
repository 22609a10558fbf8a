"""Number of steps for a given number of target tokens, to match the training of a control."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from coterie.record.rows import Row
from coterie.training.batches import Order, make_batch
from coterie.training.prepare import max_row_length
from coterie.training.settings import TrainingSettings
from coterie.training.sft import SFT


def steps_for_targets(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, tokens: int
) -> tuple[int, int]:
    """Return the number of SFT steps (at least 1) with target tokens closest to ``tokens``, and the epochs they start.

    Order and dropped rows are the same as in the training. Raises ``UserError`` if no row can be trained.
    """
    batch = make_batch(rows, SFT(), max_row_length(model, settings))
    counts = [row.target_count for row in batch.items]
    order = Order(batch.groups, settings.seed, settings.batch_rows)
    most = -(-tokens // sum(counts)) * order.steps_per_epoch
    seen = list(accumulate(sum(counts[i] for i in step) for step in order.steps(0, most)))
    steps = min(range(most), key=lambda place: abs(seen[place] - tokens)) + 1
    return steps, -(-steps // order.steps_per_epoch)
