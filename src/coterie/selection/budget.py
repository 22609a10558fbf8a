"""Budget of preference pairs: a fixed number of pairs from few or many tasks.

In DensePolicy's experiment, the number of pairs is fixed and the number of their tasks varies. The tasks with the most
pairs are kept; if they have more pairs than the budget, the same share of each task's pairs is drawn with a seed.
"""

import random
from collections.abc import Mapping

from coterie.config.settings import Settings, key


class BudgetSettings(Settings):
    """Numbers of pairs and tasks to train on."""

    tasks: int | None = key(
        None,
        "Number of tasks to take pairs from, those with the most pairs. None: all.",
        source="DensePolicy: MATH 347, AlfWorld cool 20 and put 24, BabyAI 19",
        ge=1,
    )
    pairs: int | None = key(
        None,
        "Total number of pairs; each task keeps the same share of its own. None: all.",
        source="DensePolicy: MATH 22331, AlfWorld cool 665 and put 1170, BabyAI 908",
        ge=1,
    )


def densest(counts: Mapping[str, int], settings: BudgetSettings, seed: int) -> dict[str, list[int]]:
    """Return the indices of the pairs to keep for each task, given the number of pairs of each.

    The total is ``settings.pairs``, if there are at least this many.
    """
    order = sorted((task for task in counts if counts[task]), key=lambda t: (-counts[t], t))
    available = {task: counts[task] for task in order[: settings.tasks]}
    total = sum(available.values())
    budget = total if settings.pairs is None else min(settings.pairs, total)
    return {
        task: sorted(random.Random(f"budget/{seed}/{task}").sample(range(available[task]), share))
        for task, share in _shares(available, budget).items()
    }


def _shares(counts: Mapping[str, int], budget: int) -> dict[str, int]:
    """Divide the budget in proportion to the counts, rounding up the largest remainders."""
    total = sum(counts.values())
    if budget == total:
        return dict(counts)
    shares = {task: count * budget // total for task, count in counts.items()}
    left = budget - sum(shares.values())
    for task in sorted(counts, key=lambda t: (-(counts[t] * budget % total), t))[:left]:
        shares[task] += 1
    return {task: share for task, share in shares.items() if share}
