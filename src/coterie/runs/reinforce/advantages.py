"""The advantages of a step's paths, put on their rows: by comparing the paths of a task, or by a critic's values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.rewards.advantages import GroupAdvantages, gae, group_advantages, whiten
from coterie.rewards.row_advantages import trained_values, with_advantage, with_advantages
from coterie.runs.reinforce.paths import Path
from coterie.runs.reinforce.settings import AdvantageSettings
from coterie.training.recomputed import with_values
from coterie.training.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class Judged:
    """Paths with their advantages, and what became of the others."""

    paths: tuple[Path, ...]
    """Those that can be trained on; their rows carry advantages."""
    telling: frozenset[str]
    """Tasks in which something is better than something else."""
    counts: Mapping[str, int]
    """Groups, and paths that are left out, by the reason."""


def compared(paths: Sequence[Path], settings: AdvantageSettings) -> Judged:
    """Each path against the others of its task and agent."""
    assert settings.baseline != "values", "values are a critic's"
    found = group_advantages([path.sampled for path in paths], settings.baseline)
    kept, telling = list[Path](), set[str]()
    for path, value in zip(paths, found.values, strict=True):
        if value is None:
            continue
        if value:
            telling.add(path.task)
        kept.append(replace(path, rows=tuple(with_advantage(path.rows, value))))
    return Judged(tuple(kept), frozenset(telling), counts(found))


def counts(found: GroupAdvantages) -> dict[str, int]:
    return {
        "groups": found.groups,
        "groups_flat": found.flat,
        "groups_small": found.small,
        "paths_failed": found.failed,
    }


def valued(
    paths: Sequence[Path],
    critic: object,
    training: TrainingSettings,
    settings: AdvantageSettings,
    flat: bool = False,
) -> Judged:
    """Each token against what the critic, a model with a value head, says before it (GAE).

    A path that a limit cut off is bootstrapped with the value after its last token. Rows also carry the values and the
    returns, for the critic to learn. A path with a row that is too long for a training is left out. Where rewards are
    ``flat``, all advantages are the critic's errors and become 0.
    """
    graded = [path for path in paths if path.sampled.total is not None and path.trained]
    rows = [row for path in graded for row in path.rows]
    known, after = with_values(critic, rows, training)
    kept, estimates = list[Path](), list[tuple[list[float], list[float]]]()
    start = 0
    for path in graded:
        stop = start + len(path.rows)
        own, last = known[start:stop], after[start:stop]
        start = stop
        if any(row.values is None for row in own if row.predicted):
            continue
        ends = [value for value in last if value is not None]
        bootstrap = ends[-1] if path.outcome.ending.truncated else 0.0
        rewards = path.sampled.token_rewards(path.trained)
        values = trained_values(own)
        estimates.append(gae(rewards, values, settings.gamma, settings.lam, bootstrap))
        kept.append(replace(path, rows=tuple(own)))
    advantages = [found for found, _ in estimates]
    if flat:
        advantages = [[0.0] * len(own) for own in advantages]
    elif settings.whiten:
        advantages = whiten(advantages)
    done = tuple(
        replace(path, rows=tuple(with_advantages(path.rows, own, returns)))
        for path, own, (_, returns) in zip(kept, advantages, estimates, strict=True)
    )
    telling = {path.task for path, own in zip(kept, advantages, strict=True) if any(own)}
    left_out = {"paths_failed": len(paths) - len(graded), "paths_too_long": len(graded) - len(kept)}
    return Judged(done, frozenset(telling), left_out)
