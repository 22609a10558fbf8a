"""Pairs of what was ranked: repeats of a task by their rewards, candidates of a turn by a critic's scores.

SWEET-RL (arXiv 2503.15478): sections 4.2 (trajectories with and without success, for the critic) and 4.3 (candidates
from the upper and the lower half, for the policy).
"""

import random
from collections.abc import Mapping, Sequence

from coterie.config.settings import Settings, key


class RankedPairSettings(Settings):
    """Which candidates of a turn make pairs."""

    count: int = key(
        4, "Pairs a turn, drawn with replacement.", source="SWEET-RL's commands: 4 (code: 8)", ge=1
    )
    top_share: float = key(
        0.5,
        "Chosen ones are drawn from this share of the candidates, the best; rejected ones from as many of the "
        "worst.",
        source="SWEET-RL section 4.3: 0.5",
        gt=0,
        le=0.5,
    )


def trajectory_pairs(
    rewards: Sequence[tuple[str, float]], min_reward: float = 1.0
) -> list[tuple[str, str]]:
    """(chosen, rejected) leaves of one task's repeats, whose rewards in [0, 1] are given in their order.

    Chosen is the first with the highest reward, if that is at least ``min_reward`` (1: a full success);
    rejected is each other one whose reward is lower.
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
    """(chosen, rejected) candidates of one turn: one of the best and one of the worst each, at random.

    Ties go to the earlier candidate. A draw of two equal scores is not a pair and is left out.
    """
    ranked = sorted(scores, key=lambda node: -scores[node])
    share = max(1, int(len(ranked) * settings.top_share))
    if len(ranked) < 2:
        return []
    best, worst = ranked[:share], ranked[-share:]
    chance = random.Random(seed)
    drawn = [(chance.choice(best), chance.choice(worst)) for _ in range(settings.count)]
    return [(chosen, rejected) for chosen, rejected in drawn if scores[chosen] > scores[rejected]]
