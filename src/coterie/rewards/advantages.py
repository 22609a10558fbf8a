"""Advantages of sampled paths: how much better each was than expected, in plain float64 numbers.

    found = group_advantages([SampledPath("task 1", "leaf a", 1.0), SampledPath("task 1", "leaf b", 0.0)], "mean")
    found.values                       # (0.5, -0.5)

Two ways. *Groups*: the paths of one actor on one task are compared with each other, and a path has one advantage for
all its tokens. *GAE*: a value function says what was expected before each token.

What is compared is the path of an actor, however many rows (segments) it has: a path that comes twice is refused. GAE
sees the actor's trained tokens alone, one after another. So observations change nothing (contract 3), however long
they are, and a reward never stands at one.

Advantages come before any filter. A path that is left out of a training afterwards (weight 0) was still compared.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.errors import UserError

Baseline = Literal["mean", "mean_std", "leave_one_out"]
"""``mean``: R - mean (Dr. GRPO, arXiv 2503.20783). ``mean_std``: that divided by the group's unbiased standard
deviation (GRPO, arXiv 2402.03300), which is at least :data:`STD_FLOOR`. ``leave_one_out``: R - mean of the others
(RLOO, arXiv 2402.14740)."""

STD_FLOOR = 1e-3
"""Least standard deviation that advantages are divided by: nearly equal rewards are not blown up."""
WHITEN_FLOOR = 1e-4
"""The same for all tokens of a step (:func:`whiten`)."""


@dataclass(frozen=True, slots=True)
class SampledPath:
    """One path of one actor, with its rewards."""

    group: str
    """What it is compared within: the task."""
    path: str
    reward: float | None
    """Of the path as a whole. ``None`` (or NaN): it has none, and the path has failed."""
    steps: tuple[tuple[int, float], ...] = ()
    """Rewards of steps: (place among the path's trained tokens, reward). A step's place is that of its turn's last
    sampled token."""
    actor: str = ""
    """Actors of one task are never compared with each other."""

    @property
    def total(self) -> float | None:
        """Sum of all rewards; ``None`` if one of them is missing or no finite number."""
        found = [self.reward, *(reward for _, reward in self.steps)]
        known = [reward for reward in found if reward is not None and math.isfinite(reward)]
        return math.fsum(known) if len(known) == len(found) else None

    def token_rewards(self, tokens: int) -> list[float]:
        """A reward for each of the path's trained tokens; that of the whole path stands at the last one.

        Raises ``ValueError`` for a failed path, one without tokens, and a step that is not among them.
        """
        if self.total is None or self.reward is None:
            raise ValueError(f"path {self.path} has failed: it has no reward")
        rewards = [0.0] * tokens
        for place, reward in (*self.steps, (tokens - 1, self.reward)):
            if not 0 <= place < tokens:
                raise ValueError(f"path {self.path} has a reward at token {place} of {tokens}")
            rewards[place] += reward
        return rewards


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of paths, and what became of the groups."""

    values: tuple[float | None, ...]
    """Of each path, in the order given; ``None`` for one that is not to be trained: it failed, or its group was left
    with fewer than two."""
    failed: int
    """Paths without a reward. They left their groups before any mean."""
    groups: int
    small: int
    """Groups with fewer than two paths left: dropped."""
    flat: int
    """Compared groups whose rewards were all equal: their advantages are 0 (a divergence from a reference, if there is
    one in the loss, still counts for them)."""


def group_advantages(paths: Sequence[SampledPath], baseline: Baseline) -> GroupAdvantages:
    """Compare the paths of each group and actor. Equal rewards (their maximum is their minimum) give exactly 0.

    Raises :class:`UserError` for a path without a group, and for one that comes twice.
    """
    _check(paths)
    members: dict[tuple[str, str], list[int]] = {}
    values: list[float | None] = [None] * len(paths)
    totals = [path.total for path in paths]
    for index, path in enumerate(paths):
        members.setdefault((path.group, path.actor), [])
        if totals[index] is not None:
            members[path.group, path.actor].append(index)
    compared = [group for group in members.values() if len(group) > 1]
    flat = 0
    for group in compared:
        rewards = [total for total in (totals[index] for index in group) if total is not None]
        flat += max(rewards) == min(rewards)
        for index, value in zip(group, _against(rewards, baseline), strict=True):
            values[index] = value
    return GroupAdvantages(
        values=tuple(values),
        failed=totals.count(None),
        groups=len(compared),
        small=len(members) - len(compared),
        flat=flat,
    )


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    gamma: float,
    lam: float,
    bootstrap: float = 0.0,
) -> tuple[list[float], list[float]]:
    """Advantages and returns of the trained tokens of one path, in order (Schulman et al. 2016, equation 16).

    ``rewards[t]`` is given for token ``t``, and ``values[t]`` is the value of the state before it. ``bootstrap`` is the
    value of the state after the last token where a limit cut the path off (``Ending.truncated``), and 0 where it ended.

        delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma lam A_{t+1};   return_t = A_t + V_t
    """
    advantages: list[float] = []
    following, after = 0.0, bootstrap
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        following = reward + gamma * after - value + gamma * lam * following
        advantages.append(following)
        after = value
    advantages.reverse()
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def kl_rewards(
    logprobs: Sequence[float], reference: Sequence[float], weight: float
) -> tuple[float, ...]:
    """What divergence from the reference costs each sampled token: ``-weight * (log p - log p_ref)``, k1 in the reward.

    Both at the temperature of sampling. Its sum over a path is an unbiased estimate of KL(p, p_ref), and as a reward
    it has that divergence's gradient (Schulman, "Approximating KL Divergence", 2020).
    """
    return tuple(-weight * (p - q) for p, q in zip(logprobs, reference, strict=True))


def whiten(paths: Sequence[Sequence[float]]) -> list[list[float]]:
    """Advantages of all trained tokens of a step, shifted to mean 0 and scaled to an unbiased standard deviation of 1.

    All tokens of all paths together, each once. Equal ones become 0; the deviation is at least :data:`WHITEN_FLOOR`.
    """
    tokens = [value for path in paths for value in path]
    if not tokens:
        return [[] for _ in paths]
    white = iter(_standard(tokens, WHITEN_FLOOR))
    return [[next(white) for _ in path] for path in paths]


def _check(paths: Iterable[SampledPath]) -> None:
    known: set[tuple[str, str, str]] = set()
    for path in paths:
        if not path.group:
            raise UserError(
                f"path {path.path or '?'} belongs to no group, so there is nothing to compare it with",
                "give the paths of a task the task's id as their group",
            )
        one = (path.group, path.path, path.actor)
        if one in known:
            raise UserError(
                f"path {path.path} of group {path.group} came twice",
                "give each path of an actor once, however many rows it has",
            )
        known.add(one)


def _against(rewards: Sequence[float], baseline: Baseline) -> list[float]:
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    if baseline == "mean_std":
        return _standard(rewards, STD_FLOOR)
    mean = math.fsum(rewards) / len(rewards)
    scale = len(rewards) / (len(rewards) - 1) if baseline == "leave_one_out" else 1.0
    return [scale * (reward - mean) for reward in rewards]


def _standard(values: Sequence[float], floor: float) -> list[float]:
    """(value - mean) / unbiased standard deviation; equal values give exactly 0."""
    if max(values) == min(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    apart = [value - mean for value in values]
    deviation = math.sqrt(math.fsum(a * a for a in apart) / (len(values) - 1))
    return [a / max(deviation, floor) for a in apart]
