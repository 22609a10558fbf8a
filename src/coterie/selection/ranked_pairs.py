"""Preference pairs from rankings: trajectories of a task by reward, candidates of a turn by critic score.

SWEET-RL (arXiv 2503.15478): sections 4.2 (successful and failed trajectories, for the critic) and 4.3 (candidates of
the upper and the lower half, for the policy).
"""

import random
from collections.abc import Mapping, Sequence

from coterie.config.settings import Settings, key


class RankedPairSettings(Settings):
    """Pairs of a turn's candidates."""

    count: int = key(
        4,
        "Number of pairs of a turn, drawn with replacement.",
        source="SWEET-RL's commands: 4 (code: 8)",
        ge=1,
    )
    top_share: float = key(
        0.5,
        "Share of the best candidates to draw chosen ones from; rejected ones are drawn from the same share of the "
        "worst.",
        source="SWEET-RL section 4.3: 0.5",
        gt=0,
        le=0.5,
    )


def trajectory_pairs(
    rewards: Sequence[tuple[str, float]], min_reward: float = 1.0
) -> list[tuple[str, str]]:
    """Return (chosen, rejected) leaves of a task's trajectories, given (leaf, reward in [0, 1]) in order.

    Chosen is the first trajectory of the highest reward, if it is at least ``min_reward`` (1: full success). Each
    trajectory with a lower reward is rejected once.
    """
    if not rewards:
        return []
    best = max(reward for _, reward in rewards)
    if best < min_reward:
        return []
    chosen = next(leaf for leaf, reward in rewards if reward == best)
    return [(chosen, leaf) for leaf, reward in rewards if reward < best]


def ranked_pairs(
    scores: Mapping[str, float], settings: RankedPairSettings, seed: str
) -> list[tuple[str, str]]:
    """Draw (chosen, rejected) candidates of one turn from the best and the worst ones.

    Ties go to the earlier candidate. A draw of two equal scores is dropped.
    """
    ranking = sorted(scores, key=lambda node: -scores[node])
    share = max(1, int(len(ranking) * settings.top_share))
    if len(ranking) < 2:
        return []
    best, worst = ranking[:share], ranking[-share:]
    rng = random.Random(seed)
    pairs = [(rng.choice(best), rng.choice(worst)) for _ in range(settings.count)]
    return [(chosen, rejected) for chosen, rejected in pairs if scores[chosen] > scores[rejected]]
