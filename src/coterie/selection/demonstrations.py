"""Demonstrations for SFT: each task's best trajectory, above a threshold.

Optima (arXiv 2410.08115), algorithm 1: take each task's sample with the highest reward, keep those at or above the
threshold, then the top share by reward. The released code takes the top share before the threshold; this follows the
paper.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self, TypeVar

from pydantic import model_validator

from coterie.config.settings import Settings, key


class Rewarded(Protocol):
    """A trajectory with its reward and score."""

    @property
    def sample(self) -> int: ...

    @property
    def total(self) -> float: ...

    @property
    def score(self) -> float: ...


R = TypeVar("R", bound=Rewarded)


class SelectSettings(Settings):
    """Selection of trajectories to train on."""

    rule: Literal["best", "random"] = key(
        "best",
        "`best` takes each task's sample with the highest reward; `random` is the control: `counts` random "
        "trajectories, at most one a task.",
        source="Optima algorithm 1; `random` is ours",
    )
    top_share: float = key(
        0.7,
        "Share of the selected tasks to keep, by reward.",
        source="Optima section 3.2",
        gt=0,
        le=1,
    )
    skip_share: float = key(
        0.0,
        "Share of the selected tasks with the highest rewards to exclude as too easy.",
        source="Optima's code: 0.1 on MATH",
        ge=0,
        lt=1,
    )
    threshold: float = key(
        0.5, "Minimum reward of a selected trajectory (theta_sft).", source="Optima table 8"
    )
    min_score: float = key(
        0.0,
        "Minimum task score of a selected trajectory, whatever its reward. 0: only the reward counts, as in the "
        "paper; 1: no wrong trajectory is selected.",
        ge=0,
        le=1,
    )
    counts: tuple[int, ...] = key(
        (),
        "For `random`: number of trajectories in each iteration, such as the numbers of the run to compare with.",
    )

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        if (self.rule == "random") != bool(self.counts):
            raise ValueError("select.rule=random needs select.counts, and no other rule allows it")
        if self.skip_share >= self.top_share:
            raise ValueError("select.skip_share must be below select.top_share")
        return self


def best_demonstrations(
    rewards: Mapping[str, Sequence[R]], settings: SelectSettings
) -> list[tuple[str, R]]:
    """Return the selected (task, trajectory), highest reward first.

    Ties go to the earlier sample, then to the smaller task id.
    """
    right = {task: [r for r in rs if r.score >= settings.min_score] for task, rs in rewards.items()}
    best = {task: min(rs, key=lambda r: (-r.total, r.sample)) for task, rs in right.items() if rs}
    good = [(task, r) for task, r in best.items() if r.total >= settings.threshold]
    good.sort(key=lambda item: (-item[1].total, item[0]))
    first, stop = (round(len(good) * s) for s in (settings.skip_share, settings.top_share))
    return good[first:stop]


def random_demonstrations(
    rewards: Mapping[str, Sequence[R]], count: int, seed: int
) -> list[tuple[str, R]]:
    """Draw up to ``count`` tasks, and one trajectory of each."""
    generator = random.Random(seed)
    tasks = sorted(task for task, rs in rewards.items() if rs)
    chosen = sorted(generator.sample(tasks, min(count, len(tasks))))
    return [(task, generator.choice(list(rewards[task]))) for task in chosen]
