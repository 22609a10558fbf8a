"""Demonstrations for SFT: each task's best trajectory, if it is good enough.

Optima (arXiv 2410.08115), algorithm 1: per task the sample of the highest reward; those of at
least the threshold; of these the top share by reward. The released code takes the top share first
and the threshold second; the paper's order is used here.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self, TypeVar

from pydantic import model_validator

from coterie.config.settings import Settings, key


class Rewarded(Protocol):
    """A trajectory with the numbers that decide whether it is trained on."""

    @property
    def sample(self) -> int: ...

    @property
    def total(self) -> float: ...

    @property
    def score(self) -> float: ...


R = TypeVar("R", bound=Rewarded)


class SelectSettings(Settings):
    """Which trajectories become training rows."""

    rule: Literal["best", "random"] = key(
        "best",
        "`best` takes each task's sample of the highest reward; `random` is the control: `counts` "
        "trajectories, drawn at random, at most one a task.",
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
        "Share of the selected tasks, those of the highest reward, to leave out as too easy.",
        source="Optima's code: 0.1 on MATH",
        ge=0,
        lt=1,
    )
    threshold: float = key(
        0.5, "Least reward of a trained trajectory (theta_sft).", source="Optima table 8"
    )
    min_score: float = key(
        0.0,
        "Gate: least task score of a trained trajectory, whatever its reward. 0 is the paper's rule, "
        "by which only the reward counts; with 1 no wrong one is ever selected.",
        ge=0,
        le=1,
    )
    counts: tuple[int, ...] = key(
        (),
        "For `random`: how many trajectories to take in each iteration, such as those that the run "
        "it is compared with took.",
    )

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if (self.rule == "random") != bool(self.counts):
            raise ValueError("select.counts goes with select.rule=random, and only with it")
        if self.skip_share >= self.top_share:
            raise ValueError("select.skip_share must be below select.top_share, or nothing is left")
        return self


def best_demonstrations(
    rewards: Mapping[str, Sequence[R]], settings: SelectSettings
) -> list[tuple[str, R]]:
    """The selected (task, trajectory), highest reward first.

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
    """``count`` tasks at random (fewer if there are not as many), one trajectory at random each."""
    generator = random.Random(seed)
    tasks = sorted(task for task, rs in rewards.items() if rs)
    chosen = sorted(generator.sample(tasks, min(count, len(tasks))))
    return [(task, generator.choice(list(rewards[task]))) for task in chosen]
