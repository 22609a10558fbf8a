"""Advantages of sampled paths, in plain float64 numbers.

*Group* advantages compare the paths of one actor on one task, also paths that are later excluded from training. A path
has one advantage for all its tokens. *GAE* uses only the actor's trained tokens, in the order of the path, over all of
its rows, so observations change nothing and never carry a reward.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coterie.errors import UserError
from coterie.record.rows import UNPREDICTED, Row

Baseline = Literal["mean", "mean_std", "leave_one_out", "best"]
"""``mean``: R - mean (Dr. GRPO, arXiv 2503.20783). ``mean_std``: that divided by the group's unbiased standard
deviation (GRPO, arXiv 2402.03300), which is at least :data:`STD_FLOOR`. ``leave_one_out``: R - mean of the others
(RLOO, arXiv 2402.14740). ``best``: 1 for the highest rewards and 0 for the others, which imitates the best paths (RAFT,
arXiv 2304.06767)."""

STD_FLOOR = 1e-3
"""Minimum standard deviation to divide by, so that nearly equal rewards are not amplified."""
WHITEN_FLOOR = 1e-4
"""Minimum standard deviation in :func:`whiten`."""


@dataclass(frozen=True, slots=True)
class SampledPath:
    """One path of one actor, with its rewards."""

    group: str
    """Group of paths to compare with: the task."""
    path: str
    reward: float | None
    """Reward of the whole path; ``None`` or NaN if the path failed."""
    steps: tuple[tuple[int, float], ...] = ()
    """Rewards of steps: (index of the turn's last sampled token among the path's trained tokens, reward)."""
    actor: str = ""
    """Different actors of a task are never compared."""

    @property
    def total(self) -> float | None:
        """Sum of all rewards; ``None`` if one is missing or not finite."""
        # One missing reward makes the sum unknown. Treating it as 0 would reward or punish the path
        # for a failure of the grader.
        rewards = [self.reward, *(reward for _, reward in self.steps)]
        finite = [reward for reward in rewards if reward is not None and math.isfinite(reward)]
        return math.fsum(finite) if len(finite) == len(rewards) else None

    def token_rewards(self, tokens: int) -> list[float]:
        """Return a reward for each trained token; the last one includes the reward of the whole path."""
        # A failed path has no advantage, so it must be left out before.
        if self.total is None or self.reward is None:
            raise ValueError(f"path {self.path} has failed: it has no reward")
        rewards = [0.0] * tokens
        for position, reward in (*self.steps, (tokens - 1, self.reward)):
            if not 0 <= position < tokens:
                raise ValueError(f"path {self.path} has a reward at token {position} of {tokens}")
            rewards[position] += reward
        return rewards


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of paths, and counts of groups."""

    values: tuple[float | None, ...]
    """Advantage of each path; ``None`` if it failed or its group has fewer than two paths without a failure."""
    failed: int
    """Number of paths without a reward, which are excluded from the groups."""
    groups: int
    small: int
    """Number of dropped groups, with fewer than two paths."""
    flat: int
    """Number of compared groups with equal rewards, whose advantages are 0 (a KL term of the loss still applies)."""


def group_advantages(paths: Sequence[SampledPath], baseline: Baseline) -> GroupAdvantages:
    """Compare the paths of each group and actor. Equal rewards give exactly 0."""
    _check(paths)
    members: dict[tuple[str, str], list[int]] = {}
    values: list[float | None] = [None] * len(paths)
    totals = [path.total for path in paths]
    for index, path in enumerate(paths):
        # Also for a failed path: a group whose paths have all failed counts as too small.
        members.setdefault((path.group, path.actor), [])
        if totals[index] is not None:
            members[path.group, path.actor].append(index)
    # A single path has no baseline other than itself.
    compared = [group for group in members.values() if len(group) > 1]
    flat = 0
    for group in compared:
        rewards = [total for total in (totals[index] for index in group) if total is not None]
        # Groups of equal rewards teach nothing; their number shows whether tasks are too easy or hard.
        flat += max(rewards) == min(rewards)
        for index, value in zip(group, _relative_to_group(rewards, baseline), strict=True):
            values[index] = value
    groups, small = len(compared), len(members) - len(compared)
    return GroupAdvantages(tuple(values), totals.count(None), groups, small, flat)


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    gamma: float,
    lam: float,
    bootstrap: float = 0.0,
) -> tuple[list[float], list[float]]:
    """Return advantages and returns of one path's trained tokens (Schulman et al. 2016, equation 16).

    ``rewards[t]`` is the reward of token ``t``, and ``values[t]`` the value of the state before it. ``bootstrap`` is
    the value of the state after the last token of a truncated path (``Ending.truncated``), else 0.

        delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma lam A_{t+1};   return_t = A_t + V_t
    """
    advantages: list[float] = []
    # From the last token backwards; these are A_{t+1} and V_{t+1}.
    following, next_value = 0.0, bootstrap
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        # delta_t + gamma lam A_{t+1}, with both terms of the docstring in one expression.
        following = reward + gamma * next_value - value + gamma * lam * following
        advantages.append(following)
        next_value = value
    advantages.reverse()
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def kl_rewards(
    logprobs: Sequence[float], reference: Sequence[float], weight: float
) -> tuple[float, ...]:
    """Return the KL cost of each sampled token, ``-weight * (log p - log p_ref)``: the k1 estimator in the reward.

    Both log-probs are at the sampling temperature. The sum over a path is an unbiased estimate of KL(p, p_ref), and as
    a reward it has the gradient of this divergence (Schulman, "Approximating KL Divergence", 2020).
    """
    return tuple(-weight * (p - q) for p, q in zip(logprobs, reference, strict=True))


def whiten(paths: Sequence[Sequence[float]]) -> list[list[float]]:
    """Normalize the advantages of all trained tokens of a step to mean 0 and unbiased standard deviation 1.

    Equal advantages become 0; the standard deviation is at least :data:`WHITEN_FLOOR`.
    """
    tokens = [value for path in paths for value in path]
    # Mean and deviation are over tokens of all paths, so a long path weighs more than a short one.
    white = iter(_standardize(tokens, WHITEN_FLOOR))
    return [[next(white) for _ in path] for path in paths]


def _check(paths: Iterable[SampledPath]) -> None:
    keys: set[tuple[str, str, str]] = set()
    for path in paths:
        if not path.group:
            raise UserError(f"path {path.path or '?'} has no group", "use the task's id")
        key = (path.group, path.path, path.actor)
        if key in keys:
            raise UserError(
                f"path {path.path} of group {path.group} is a duplicate",
                "pass each path of an actor once, even if it has several rows",
            )
        keys.add(key)


def _relative_to_group(rewards: Sequence[float], baseline: Baseline) -> list[float]:
    # The mean of equal numbers may be rounded, and the difference would not be exactly 0.
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    if baseline == "mean_std":
        return _standardize(rewards, STD_FLOOR)
    if baseline == "best":
        return [float(reward == max(rewards)) for reward in rewards]
    mean = math.fsum(rewards) / len(rewards)
    # R - mean of the others = n / (n - 1) * (R - mean of all n).
    scale = len(rewards) / (len(rewards) - 1) if baseline == "leave_one_out" else 1.0
    return [scale * (reward - mean) for reward in rewards]


def _standardize(values: Sequence[float], floor: float) -> list[float]:
    """(value - mean) / unbiased standard deviation; equal values give exactly 0."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    deltas = [value - mean for value in values]
    # The floor keeps differences that are only rounding from becoming large advantages.
    deviation = math.sqrt(math.fsum(a * a for a in deltas) / (len(values) - 1))
    return [a / max(deviation, floor) for a in deltas]


def with_advantage(rows: Sequence[Row], advantage: float) -> list[Row]:
    """Return the rows with one advantage at every target."""
    # Also a target at the first token, which no loss uses, gets a value to keep the order.
    return [replace(row, advantages=(advantage,) * row.target_count) for row in rows]


def with_advantages(
    rows: Sequence[Row], advantages: Sequence[float], returns: Sequence[float]
) -> list[Row]:
    """Return the rows with the result of :func:`gae` for the trained tokens."""
    # A path's rows follow each other, and so do their tokens in the numbers of the path.
    by_row = zip(rows, _split(rows, advantages), _split(rows, returns), strict=True)
    return [replace(row, advantages=advantages, returns=later) for row, advantages, later in by_row]


def trained_values(rows: Sequence[Row]) -> list[float]:
    """Return the values (``Row.values``) of a path's trained tokens, for :func:`gae`."""
    return [value for row in rows for value in (row.values or ())[row.unpredicted :]]


def turn_ends(rows: Sequence[Row]) -> dict[str, int]:
    """Return the index of each trained turn's last token, which gets its reward, among the path's trained tokens."""
    ends: dict[str, int] = {}
    end = 0
    for row in rows:
        for target in row.targets:
            # A row's first token is never trained (nothing predicts it), so it does not count.
            end += target.stop - max(target.start, 1)
            if target.stop > 1:
                ends[target.turn] = end - 1
    return ends


def _split(rows: Sequence[Row], tokens: Sequence[float]) -> Iterator[tuple[float, ...]]:
    counts = [row.target_count - row.unpredicted for row in rows]
    if sum(counts) != len(tokens):
        raise ValueError(f"{len(tokens)} numbers for {sum(counts)} trained tokens")
    start = 0
    for row, count in zip(rows, counts, strict=True):
        # Fill up the first token's place, so that numbers stay aligned with the row's targets.
        yield (*[UNPREDICTED] * row.unpredicted, *tokens[start : start + count])
        start += count
