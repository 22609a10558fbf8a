"""A budget of pairs, spent on few tasks or on many: density as a dial.

DensePolicy's experiment: the number of pairs is fixed, and the number of tasks that they come from varies. The tasks
with the most pairs are kept; if these hold more pairs than the budget, each gives the same share of its own, drawn by a
seed.
"""

import random
from collections.abc import Mapping

from coterie.config.settings import Settings, key


class BudgetSettings(Settings):
    """How many pairs are trained on, and of how many tasks."""

    tasks: int | None = key(
        None,
        "Tasks that pairs come from: those that have the most. None: all.",
        source="DensePolicy: MATH 347, AlfWorld cool 20 and put 24, BabyAI 19",
        ge=1,
    )
    pairs: int | None = key(
        None,
        "Pairs in all; each task gives the same share of its own. None: all.",
        source="DensePolicy: MATH 22331, AlfWorld cool 665 and put 1170, BabyAI 908",
        ge=1,
    )


def densest(counts: Mapping[str, int], settings: BudgetSettings, seed: int) -> dict[str, list[int]]:
    """Which of each task's pairs are kept, by their places; ``counts`` says how many each has.

    The total is exactly ``settings.pairs`` where there are so many.
    """
    order = sorted((task for task in counts if counts[task]), key=lambda t: (-counts[t], t))
    kept = {task: counts[task] for task in order[: settings.tasks]}
    total = sum(kept.values())
    most = total if settings.pairs is None else min(settings.pairs, total)
    found: dict[str, list[int]] = {}
    for task, share in _shares(kept, most).items():
        places = random.Random(f"budget/{seed}/{task}").sample(range(kept[task]), share)
        found[task] = sorted(places)
    return found


def _shares(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """``most`` in proportion to the counts, whole numbers, the largest remainders rounded up."""
    total = sum(counts.values())
    if most == total:
        return dict(counts)
    shares = {task: count * most // total for task, count in counts.items()}
    left = most - sum(shares.values())
    for task in sorted(counts, key=lambda t: (-(counts[t] * most % total), t))[:left]:
        shares[task] += 1
    return {task: share for task, share in shares.items() if share}
