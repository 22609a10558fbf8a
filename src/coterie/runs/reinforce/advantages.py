"""Advantages of a step's paths, relative to their group (GRPO, RLOO) or to a critic's values (PPO)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.rewards.advantages import (
    GroupAdvantages,
    gae,
    group_advantages,
    trained_values,
    whiten,
    with_advantage,
    with_advantages,
)
from coterie.runs.reinforce.paths import AgentPath
from coterie.runs.reinforce.settings import AdvantageSettings
from coterie.training.reference import with_values
from coterie.training.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Paths of a step with advantages, and counts of paths left out."""

    paths: tuple[AgentPath, ...]
    """Paths to train on. Their rows have advantages."""
    informative: frozenset[str]
    """Tasks with a non-zero advantage."""
    counts: Mapping[str, int]
    """Numbers of groups, and of paths left out by reason."""


def group_batch(paths: Sequence[AgentPath], settings: AdvantageSettings) -> StepBatch:
    """Set A_i = R_i - baseline for each path i, relative to the paths of the same task and agent.

    ``baseline=mean``: the group's mean reward. ``mean_std``: also divide by its standard deviation. ``leave_one_out``:
    the mean of the other paths.
    """
    assert settings.baseline != "values", "values need a critic"
    advantages = group_advantages([path.sampled for path in paths], settings.baseline)
    trainable, informative = list[AgentPath](), set[str]()
    for path, value in zip(paths, advantages.values, strict=True):
        if value is None:
            continue
        if value:
            informative.add(path.task)
        trainable.append(replace(path, rows=tuple(with_advantage(path.rows, value))))
    return StepBatch(tuple(trainable), frozenset(informative), group_counts(advantages))


def group_counts(advantages: GroupAdvantages) -> dict[str, int]:
    return {
        "groups": advantages.groups,
        "groups_flat": advantages.flat,
        "groups_small": advantages.small,
        "paths_failed": advantages.failed,
    }


def critic_batch(
    paths: Sequence[AgentPath],
    critic: object,
    training: TrainingSettings,
    settings: AdvantageSettings,
    flat: bool = False,
) -> StepBatch:
    """Set the GAE advantage of each token (Schulman et al. 2016): A_t = delta_t + gamma lam A_{t+1}.

    ``delta_t = r_t + gamma V_{t+1} - V_t`` with V from the critic, a model with a value head. A path that a limit cut
    off is bootstrapped with the value after its last token. Rows also get the values and returns that the critic is
    trained on. Paths with rows longer than the training allows are left out. With ``flat`` rewards, all advantages are
    errors of the critic and are set to 0.
    """
    graded = [path for path in paths if path.sampled.total is not None and path.trained]
    rows = [row for path in graded for row in path.rows]
    rows_with_values, after = with_values(critic, rows, training)
    trainable, estimates = list[AgentPath](), list[tuple[list[float], list[float]]]()
    start = 0
    for path in graded:
        stop = start + len(path.rows)
        own, last = rows_with_values[start:stop], after[start:stop]
        start = stop
        if any(row.values is None for row in own if row.predicted):
            continue
        ends = [value for value in last if value is not None]
        bootstrap = ends[-1] if path.outcome.ending.truncated else 0.0
        rewards = path.sampled.token_rewards(path.trained)
        values = trained_values(own)
        estimates.append(gae(rewards, values, settings.gamma, settings.lam, bootstrap))
        trainable.append(replace(path, rows=tuple(own)))
    advantages = [path_advantages for path_advantages, _ in estimates]
    if flat:
        advantages = [[0.0] * len(own) for own in advantages]
    elif settings.whiten:
        advantages = whiten(advantages)
    batch = tuple(
        replace(path, rows=tuple(with_advantages(path.rows, own, returns)))
        for path, own, (_, returns) in zip(trainable, advantages, estimates, strict=True)
    )
    informative = {path.task for path, own in zip(trainable, advantages, strict=True) if any(own)}
    left_out = {
        "paths_failed": len(paths) - len(graded),
        "paths_too_long": len(graded) - len(trainable),
    }
    return StepBatch(batch, frozenset(informative), left_out)
