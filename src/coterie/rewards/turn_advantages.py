"""Advantages of turns: each sampled turn is compared with other turns, instead of whole paths with paths.

With r_k the reward of an agent's k-th turn (the reward of the whole path counts for its last turn), the return to go of
turn k of path i is

    G_ik = r_ik + gamma r_i,k+1 + gamma^2 r_i,k+2 + ...

*By turn* (:func:`turn_advantages`): A_ik = G_ik - mean over the other paths j of the same task and agent of G_jk, where
G_jk = 0 if path j ended before turn k. The number of terms never depends on path i, so with ``leave_one_out`` the
estimate of the policy gradient is unbiased, also if the policy decides when to stop. (A mean over the paths that are
still alive at turn k is biased: it scales turn k by the probability that another path gets there.)

*By state* (GiGPO, arXiv 2505.10978): A_ik = A_i + w * (G_ik - mean of G over all turns of the task and agent that
follow an equal observation), with A_i the advantage of the path. A turn that is alone in its state adds 0.

*By role* (RAE of SPIRAL, arXiv 2506.24119): A_i = R_i - b, with a running mean b of the agent's rewards over all steps,
which is updated after path i: b := d b + (1 - d) R_i. For roles with opposite rewards.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.record.rows import Row
from coterie.rewards.advantages import Baseline, SampledPath, group_advantages


@dataclass(frozen=True, slots=True)
class TurnPath:
    """Path of one agent, with its turns."""

    sampled: SampledPath
    ends: tuple[int, ...]
    """Index of each turn's last token among the path's trained tokens."""
    states: tuple[str, ...] = ()
    """What the agent saw before each turn, for advantages by state."""


TurnValues = list[list[float] | None]
"""Advantages by path and turn; ``None`` for a path that failed or has no other path to compare with."""


@dataclass(frozen=True, slots=True)
class TurnAdvantages:
    """Advantages of turns, and the groups that they come from."""

    values: TurnValues
    groups: int
    """Number of compared groups: of turns, and by state also of paths."""
    equal: tuple[tuple[int, int, float], ...]
    """Path, turn and return of the first turn of each group of turns with equal returns, which teaches nothing."""


def turn_rewards(path: SampledPath, ends: Sequence[int]) -> list[float]:
    """Return the reward of each turn. The last one includes the reward of the whole path.

    Raises ``ValueError`` if the path has failed.
    """
    if path.reward is None or path.total is None:
        raise ValueError(f"path {path.path} has failed: it has no reward")
    rewards = [0.0] * len(ends)
    for position, reward in path.steps:
        rewards[bisect_left(ends, position)] += reward
    rewards[-1] += path.reward
    return rewards


def turn_returns(path: TurnPath, gamma: float, immediate: bool = False) -> list[float]:
    """Return the return to go of each turn, or its reward alone."""
    rewards = turn_rewards(path.sampled, path.ends)
    if immediate:
        return rewards
    returns, following = list[float](), 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]


def turn_advantages(
    paths: Sequence[TurnPath], baseline: Baseline, gamma: float = 1.0, immediate: bool = False
) -> TurnAdvantages:
    """Compare the k-th turns of the paths of a task and agent; ended paths count as 0."""
    graded = [path.sampled.total is not None for path in paths]
    returns = [
        turn_returns(path, gamma, immediate) if is_graded else []
        for path, is_graded in zip(paths, graded, strict=True)
    ]
    # Each turn number is a group of its own. All graded paths of the task are in it, also those that
    # have ended: leaving them out would tell a turn how many others got as far.
    longest: dict[tuple[str, str], int] = {}
    for path, path_returns in zip(paths, returns, strict=True):
        key = (path.sampled.group, path.sampled.actor)
        longest[key] = max(longest.get(key, 0), len(path_returns))
    samples, owners = list[SampledPath](), list[tuple[int, int]]()
    for index, (path, path_returns) in enumerate(zip(paths, returns, strict=True)):
        turns = longest[path.sampled.group, path.sampled.actor] if graded[index] else 0
        for turn in range(turns):
            value = path_returns[turn] if turn < len(path_returns) else 0.0
            group = f"{path.sampled.group}/{turn}"
            samples.append(replace(path.sampled, group=group, reward=value, steps=()))
            owners.append((index, turn))
    compared = group_advantages(samples, baseline)
    result: TurnValues = [[0.0] * len(path_returns) for path_returns in returns]
    for (index, turn), advantage in zip(owners, compared.values, strict=True):
        row = result[index]
        if advantage is None or row is None:  # the only graded path of its task
            result[index] = None
        elif turn < len(row):
            row[turn] = advantage
    values = [row if is_graded else None for row, is_graded in zip(result, graded, strict=True)]
    return TurnAdvantages(values, compared.groups, _equal(paths, samples, owners))


def state_advantages(
    paths: Sequence[TurnPath],
    baseline: Baseline,
    gamma: float = 1.0,
    weight: float = 1.0,
    immediate: bool = False,
) -> TurnAdvantages:
    """Add to each path's advantage those of its turns among the turns of the task that follow an equal state."""
    of_paths = group_advantages([path.sampled for path in paths], baseline)
    samples, owners = list[SampledPath](), list[tuple[int, int]]()
    for index, (path, path_advantage) in enumerate(zip(paths, of_paths.values, strict=True)):
        if path_advantage is None:
            continue
        returns = turn_returns(path, gamma, immediate)
        for turn, (value, state) in enumerate(zip(returns, path.states, strict=True)):
            # A path may come to one state several times.
            name, group = f"{path.sampled.path}/{turn}", f"{path.sampled.group}/{state}"
            sample = replace(path.sampled, group=group, path=name, reward=value, steps=())
            samples.append(sample)
            owners.append((index, turn))
    result: TurnValues = [
        None if value is None else [value] * len(path.ends)
        for path, value in zip(paths, of_paths.values, strict=True)
    ]
    of_states = group_advantages(samples, baseline)
    for (index, turn), of_state in zip(owners, of_states.values, strict=True):
        # A state that only one turn was in tells nothing.
        if of_state is not None and (row := result[index]) is not None:
            row[turn] += weight * of_state
    groups = of_paths.groups + of_states.groups
    return TurnAdvantages(result, groups, _equal(paths, samples, owners))


def _equal(
    paths: Sequence[TurnPath], samples: Sequence[SampledPath], owners: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int, float], ...]:
    """Return the first turn of each group of several turns with equal returns (``TurnAdvantages.equal``)."""
    groups: dict[tuple[str, str], list[tuple[int, int, float]]] = {}
    for sample, (index, turn) in zip(samples, owners, strict=True):
        member = (index, turn, sample.reward or 0.0)
        groups.setdefault((sample.group, sample.actor), []).append(member)
    return tuple(
        # A path that ended earlier is in the group, but has no such turn.
        next(member for member in members if member[1] < len(paths[member[0]].ends))
        for members in groups.values()
        if len(members) > 1 and len({value for *_, value in members}) == 1
    )


def role_advantages(
    paths: Sequence[SampledPath], means: Mapping[str, float], decay: float
) -> tuple[list[float | None], dict[str, float]]:
    """Return R - b for each path, and the running means b by agent after the last one, which begin at 0."""
    means, values = dict(means), list[float | None]()
    for path in paths:
        mean = means.get(path.actor, 0.0)
        if (total := path.total) is None:
            values.append(None)
            continue
        # The old mean is the baseline: one that contains the path's own reward would shrink it.
        values.append(total - mean)
        means[path.actor] = decay * mean + (1 - decay) * total
    return values, means


def with_turn_advantages(rows: Sequence[Row], advantages: Mapping[str, float]) -> list[Row]:
    """Return the rows with the advantage of each target's turn, by the turn's id, at all of its tokens."""
    return [
        replace(
            row,
            advantages=tuple(
                advantages.get(target.turn, 0.0)
                for target in row.targets
                for _ in range(target.start, target.stop)
            ),
        )
        for row in rows
    ]
