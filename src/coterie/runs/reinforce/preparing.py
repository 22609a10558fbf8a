"""From what a step sampled to what it is trained on: the right paths, their advantages, and what the loss reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from coterie.rewards.advantages import group_advantages, kl_rewards
from coterie.runs.reinforce.advantages import Judged, compared, counts, valued
from coterie.runs.reinforce.learner import Learner
from coterie.runs.reinforce.paths import Path
from coterie.runs.reinforce.sampling import Drawn
from coterie.runs.reinforce.settings import AdvantageSettings, GroupSettings
from coterie.training.recomputed import with_old
from coterie.trajectories.row import Row

OnRows = Callable[[Sequence[Row]], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Rules:
    """How paths become what is trained on."""

    advantage: AdvantageSettings
    recomputed: bool = False
    """Whether the loss reads log-probs that the trainer computes before it changes the weights (``Row.old``)."""
    reference: bool = False
    """Whether it reads log-probs under what a role began as (``Row.reference``)."""
    kl: float = 0.0
    """Weight of the divergence from that as a cost of each token, a part of the reward."""
    entropy: bool = False
    """Whether the loss has an entropy bonus, from which there is something to learn where all rewards are equal."""


def prepare(
    drawn: Drawn,
    policies: Sequence[Learner],
    critic: Learner | None,
    rules: Rules,
    groups: GroupSettings,
    *,
    flat: bool = False,
) -> Judged:
    """The paths to train on, with all that objectives read.

    Paths of other weights than those that a role has now are dropped and counted; all others are compared before any is
    left out. Later updates of the step are by newer weights: their ratios are to what was sampled. Whether a group
    tells something is decided by its rewards, before its tokens cost anything. ``flat``: no reward of the stage has
    differed from another one so far.
    """
    fresh = _fresh(drawn.paths, policies)
    found = {"paths_stale": len(drawn.paths) - len(fresh)}
    if groups.rounds > 1:
        found |= counts(group_advantages([path.sampled for path in fresh], "mean"))
        kept = set(telling(fresh)[: groups.tasks])
        fresh = [path for path in fresh if path.task in kept]
    if rules.reference or rules.kl:
        fresh = _by_role(
            fresh, policies, lambda one, rows: one.with_reference(rows, groups.temperature)
        )
    moved = {agent for one in policies if one.moved for agent in one.what.agents}
    given = fresh
    if rules.kl:
        fresh = [_costly(path, rules.kl) if path.agent in moved else path for path in fresh]
    if critic is not None:
        training = critic.what.settings
        flat = flat and not (rules.kl and moved)
        judged = valued(fresh, critic.trainer.model, training, rules.advantage, flat)
    else:
        judged = compared(fresh, rules.advantage)
        if rules.kl:  # costs differ, and are no reward
            before = compared(given, rules.advantage)
            judged = replace(judged, telling=before.telling, counts=before.counts)
    chosen = [path for path in judged.paths if not _masked(path, rules.advantage)]
    found["paths_masked"] = len(judged.paths) - len(chosen)
    if rules.recomputed:
        chosen = _by_role(
            chosen, policies, lambda one, rows: _with_old(one, rows, groups.temperature)
        )
    return Judged(tuple(chosen), judged.telling, {**judged.counts, **found})


def telling(paths: Sequence[Path]) -> list[str]:
    """Tasks with paths of different rewards, in the order in which they were drawn."""
    found = group_advantages([path.sampled for path in paths], "mean")
    return list(
        dict.fromkeys(path.task for path, value in zip(paths, found.values, strict=True) if value)
    )


def _fresh(paths: Sequence[Path], policies: Sequence[Learner]) -> list[Path]:
    writers = {agent: f"{one.role}@{one.version}" for one in policies for agent in one.what.agents}
    return [
        path
        for path in paths
        if all(target.writer == writers[path.agent] for row in path.rows for target in row.targets)
    ]


def _masked(path: Path, settings: AdvantageSettings) -> bool:
    return settings.truncated == "mask" and path.outcome.ending.truncated


def _with_old(one: Learner, rows: Sequence[Row], temperature: float) -> list[Row]:
    return with_old(one.trainer.model, rows, one.what.settings, temperature=temperature)


def _by_role(
    paths: Sequence[Path],
    policies: Sequence[Learner],
    do: Callable[[Learner, Sequence[Row]], Sequence[Row]],
) -> list[Path]:
    """The paths with what ``do`` puts on the rows of each role; rows go through the model together."""
    done: dict[int, Path] = {}
    for one in policies:
        mine = [n for n, path in enumerate(paths) if path.agent in one.what.agents]
        rows = iter(do(one, [row for n in mine for row in paths[n].rows]))
        for n in mine:
            done[n] = replace(paths[n], rows=tuple(next(rows) for _ in paths[n].rows))
    return [done[n] for n in range(len(paths))]


def _costly(path: Path, weight: float) -> Path:
    """The path with the divergence of each of its tokens taken off (k1); a row without a reference costs nothing."""
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
