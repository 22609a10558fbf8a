"""How long a training is, by the target tokens that it sees: what a control needs that is trained on as much."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from coterie.training.batches import Order, usable
from coterie.training.prepare import max_row_length
from coterie.training.settings import TrainingSettings
from coterie.training.sft import SFT
from coterie.trajectories.row import Row


def steps_for_targets(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, tokens: int
) -> tuple[int, int]:
    """How many steps bring the target tokens that SFT sees closest to ``tokens``, at least one; and how many epochs
    these are, of which the last may be cut.

    Rows are taken in the order of the training, and those that are too long are left out, as they are there. Raises
    ``UserError`` if no row is left.
    """
    found = usable(rows, SFT(), max_row_length(model, settings))
    counts = [row.target_count for row in found.items]
    order = Order(found.groups, settings.seed, settings.batch_rows)
    most = -(-tokens // sum(counts)) * order.steps_per_epoch
    seen = list(accumulate(sum(counts[i] for i in step) for step in order.steps(0, most)))
    steps = min(range(most), key=lambda place: abs(seen[place] - tokens)) + 1
    return steps, -(-steps // order.steps_per_epoch)
