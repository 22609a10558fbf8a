"""Training batch of a step: filtered paths with advantages and the log-probs that the loss reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from coterie.record.rows import Row
from coterie.rewards.advantages import group_advantages, kl_rewards
from coterie.runs.reinforce.advantages import StepBatch, critic_batch, group_batch, group_counts
from coterie.runs.reinforce.learner import Learner
from coterie.runs.reinforce.paths import AgentPath
from coterie.runs.reinforce.sampling import StepSamples
from coterie.runs.reinforce.settings import AdvantageSettings, GroupSettings
from coterie.training.reference import with_old


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Settings that turn sampled paths into a batch."""

    advantage: AdvantageSettings
    recomputed: bool = False
    """True if the loss reads log-probs of the trainer before the update (``Row.old``)."""
    reference: bool = False
    """True if the loss reads log-probs of the initial weights (``Row.reference``)."""
    kl: float = 0.0
    """Weight of the divergence from the initial weights as a cost in the reward of each token."""
    entropy: bool = False
    """True if the loss has an entropy bonus, whose gradient is non-zero even with equal rewards."""


def prepare(
    samples: StepSamples,
    policies: Sequence[Learner],
    critic: Learner | None,
    rules: BatchRules,
    groups: GroupSettings,
    *,
    flat: bool = False,
) -> StepBatch:
    """Return the batch of a step, with everything that the objectives read.

    Paths sampled with other weights than the current ones are dropped and counted. Advantages are computed before any
    other path is left out. A group is informative if its rewards differ, before the cost of the divergence. ``flat`` is
    True if all rewards of the stage were equal so far.
    """
    fresh = _fresh(samples.paths, policies)
    counts = {"paths_stale": len(samples.paths) - len(fresh)}
    if groups.rounds > 1:
        counts |= group_counts(group_advantages([path.sampled for path in fresh], "mean"))
        tasks = set(informative_tasks(fresh)[: groups.tasks])
        fresh = [path for path in fresh if path.task in tasks]
    if rules.reference or rules.kl:
        fresh = _by_role(
            fresh, policies, lambda one, rows: one.with_reference(rows, groups.temperature)
        )
    moved = {agent for one in policies if one.has_moved for agent in one.config.agents}
    before_kl = fresh
    if rules.kl:
        fresh = [_costly(path, rules.kl) if path.agent in moved else path for path in fresh]
    if critic is not None:
        training = critic.config.settings
        flat = flat and not (rules.kl and moved)
        batch = critic_batch(fresh, critic.trainer.model, training, rules.advantage, flat)
    else:
        batch = group_batch(fresh, rules.advantage)
        if rules.kl:  # the costs differ, but they are not rewards
            before = group_batch(before_kl, rules.advantage)
            batch = replace(batch, informative=before.informative, counts=before.counts)
    chosen = [path for path in batch.paths if not _masked(path, rules.advantage)]
    counts["paths_masked"] = len(batch.paths) - len(chosen)
    if rules.recomputed:
        chosen = _by_role(
            chosen,
            policies,
            lambda one, rows: with_old(
                one.trainer.model, rows, one.config.settings, temperature=groups.temperature
            ),
        )
    return StepBatch(tuple(chosen), batch.informative, {**batch.counts, **counts})


def informative_tasks(paths: Sequence[AgentPath]) -> list[str]:
    """Return the tasks whose paths have different rewards, in the order of drawing."""
    advantages = group_advantages([path.sampled for path in paths], "mean")
    return list(
        dict.fromkeys(
            path.task for path, value in zip(paths, advantages.values, strict=True) if value
        )
    )


def _fresh(paths: Sequence[AgentPath], policies: Sequence[Learner]) -> list[AgentPath]:
    writers = {
        agent: f"{one.role}@{one.version}" for one in policies for agent in one.config.agents
    }
    return [
        path
        for path in paths
        if all(target.writer == writers[path.agent] for row in path.rows for target in row.targets)
    ]


def _masked(path: AgentPath, settings: AdvantageSettings) -> bool:
    return settings.truncated == "mask" and path.outcome.ending.truncated


def _by_role(
    paths: Sequence[AgentPath],
    policies: Sequence[Learner],
    do: Callable[[Learner, Sequence[Row]], Sequence[Row]],
) -> list[AgentPath]:
    """Apply ``do`` to the rows of each role, in one batch per role, and return the changed paths."""
    done: dict[int, AgentPath] = {}
    for one in policies:
        mine = [n for n, path in enumerate(paths) if path.agent in one.config.agents]
        rows = iter(do(one, [row for n in mine for row in paths[n].rows]))
        for n in mine:
            done[n] = replace(paths[n], rows=tuple(next(rows) for _ in paths[n].rows))
    return [done[n] for n in range(len(paths))]


def _costly(path: AgentPath, weight: float) -> AgentPath:
    """Subtract the divergence ``weight * (log p - log p_ref)`` from each token's reward; 0 without a reference."""
    costs: list[float] = []
    for row in path.rows:
        count = row.target_count - row.unpredicted
        if row.reference is None or row.logprobs is None:
            costs += [0.0] * count
        else:
            first = row.unpredicted
            costs += kl_rewards(row.logprobs[first:], row.reference[first:], weight)
    steps = (*path.sampled.steps, *enumerate(costs))
    return replace(path, sampled=replace(path.sampled, steps=steps))
