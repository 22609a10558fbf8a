"""Record of the steps of reinforcement learning: metrics, held-out means, checkpoints, and errors."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from coterie.errors import UserError
from coterie.record.store import Store
from coterie.record.tree import ItemKey, Metrics
from coterie.runs.loop import EVALUATION, REINFORCE
from coterie.runs.run import Run, StageKey

STEP, HELDOUT = "step-", "heldout-"
"""Beginnings of the names of items: metrics of a step (from 0), and held-out means after a number of steps."""
REWARDED = "/paths_rewarded"
"""Metric of each role: number of paths with a reward other than 0."""
GROUPS = "groups_taken"
"""Metric of a step: the groups that it took, as JSON."""
Group = tuple[int, str]
"""Draw and task of a group: the paths of one task in one draw."""
TERM = "reward/"
"""Beginning of the metrics of terms of the reward."""
OF_ROLES = {
    "reward": "reward", "tokens": "tokens", "groups_informative": "groups with an advantage"
}  # fmt: skip
"""Metrics of a step that each of several roles has, too, as ``ROLE/NAME``."""
LEFT_OUT = {
    "paths_failed": "paths without a reward",
    "paths_stale": "paths of other weights",
    "paths_masked": "paths that reached a limit",
    "paths_too_long": "paths that are too long",
    "rows_too_long": "rows that are too long",
    "groups_small": "groups with fewer than two paths",
}
"""Descriptions of metrics that count paths and rows left out of training."""


def groups_taken(metrics: Metrics) -> list[Group]:
    """Return the groups that a step took; none if its groups came from one draw."""
    return [(draw, task) for draw, task in json.loads(str(metrics.get(GROUPS, "[]")))]


def step_stage(stage: str, step: int) -> str:
    return f"{stage}/{step:05d}"


def describe_step(step: int, steps: int, metrics: Metrics) -> str:
    reward, score, tokens = (float(metrics[name]) for name in ("reward", "score", "tokens"))
    parts = [f"step {step} of {steps}: reward {reward:.3f}", f"score {score:.3f}"]
    parts += [f"{tokens:.0f} tokens", f"{metrics['groups_informative']} groups with an advantage"]
    learning_metrics = {
        "grad_norm": "gradient",
        "entropy": "entropy",
        "reference_kl": "KL to the reference",
    }
    roles = trained_roles(metrics)
    for role in roles:
        values = [
            f"{short} {float(metrics[f'{role}/{name}']):.3g}"
            for name, short in {**OF_ROLES, **learning_metrics}.items()
            if f"{role}/{name}" in metrics
        ]
        parts += values if len(roles) == 1 else [f"{role} ({', '.join(values)})"]
    if "staleness" in metrics:
        parts.append(f"staleness {metrics['staleness']:.2g}")
    if missing := left_out([metrics]):
        parts.append(f"left out: {missing}")
    return ", ".join(parts)


def trained_roles(metrics: Metrics) -> list[str]:
    """Return the roles that a step trains, without a critic."""
    return [name.removesuffix(REWARDED) for name in metrics if name.endswith(REWARDED)]


def left_out(steps: Sequence[Metrics]) -> str:
    sums = {name: sum(int(metrics.get(name, 0)) for metrics in steps) for name in LEFT_OUT}
    return ", ".join(f"{sums[name]} {LEFT_OUT[name]}" for name in sums if sums[name])


def is_constant(recent: Sequence[Metrics]) -> bool:
    rewards = [float(metrics["reward"]) for metrics in recent]
    # Means of equal rewards may differ by rounding.
    is_same = all(math.isclose(reward, rewards[0], abs_tol=1e-12) for reward in rewards)
    return is_same and not any(metrics["reward_error"] for metrics in recent)


def is_distilled(recent: Sequence[Metrics]) -> bool:
    """Return True if a policy learns from a teacher, also where all rewards are equal."""
    return any(name.endswith("/teacher_kl") for metrics in recent for name in metrics)


def silent_roles(steps: Sequence[Metrics]) -> list[str]:
    """Return the trained roles that acted in no step."""
    roles = dict.fromkeys(role for metrics in steps for role in trained_roles(metrics))
    # A single role has the tokens of the step.
    names = {role: f"{role}/tokens" if len(roles) > 1 else "tokens" for role in roles}
    return [role for role in roles if not any(metrics[names[role]] for metrics in steps)]


def no_signal_error(recent: Sequence[Metrics], *, siblings: bool) -> UserError:
    """Return the error for steps without an advantage; ``siblings`` if turns of a tree were compared."""
    if not any(metrics["paths"] for metrics in recent) and (missing := left_out(recent)):
        return UserError(
            f"the last {len(recent)} steps had no path to train on; left out: {missing}",
            "look at some paths with `coterie view`. Paths without a reward were not graded, or their reward is not "
            "a number. For paths too long for the critic raise critic.train.max_length. For paths that were cut off "
            "allow more turns or tokens, or set advantage.truncated=train",
        )
    mean, cut = (fmean(float(step[name]) for step in recent) for name in ("reward", "truncated"))
    limited = f" {cut:.0%} of the rollouts reached a limit of turns or tokens." if cut else ""
    equal = (
        "all sibling turns had the same return"
        if siblings
        else "every rollout of a task got the same reward"
    )
    return UserError(
        f"in the last {len(recent)} steps {equal} (mean {mean:.3f}), so all advantages are zero.{limited}",
        "look at some rollouts with `coterie view`. A mean near the maximum or minimum reward means that the tasks "
        "are too easy or too hard for this policy. Choose other tasks, raise rollout.rollouts_per_task or "
        "rollout.temperature, or fine-tune the policy first",
    )


def sampling_warnings(run: Run, iteration: int, *, greedy: bool) -> list[str]:
    """Return a warning if the start is far better in a ``greedy`` evaluation than in the first groups.

    That is if the lower end of the score's interval is above their mean by a quarter of the score.
    """
    from coterie.runs.evaluation import evaluation  # imports environments and samplers

    records = step_records(run.store, iteration, REINFORCE)
    if not greedy or not records or not run.is_finished(StageKey(iteration, EVALUATION)):
        return []
    start, sampled = evaluation(run.store, iteration), float(records[0]["score"])
    # Equal scores of few tasks have a narrow interval, so the rule of three bounds it, too.
    low = min(start.interval[0], start.score - abs(start.score) * 3 / start.n)
    if low - sampled <= abs(start.score) / 4:
        return []
    return [
        f"the starting policy scores {start.score:.3f} greedily, but {sampled:.3f} in the first groups: it mostly "
        "learns to sample what it decodes greedily. Lower rollout.temperature, or set evaluate.temperature=1 to see "
        "this progress"
    ]


def step_records(
    store: Store, iteration: int, stage: str, prefix: str = STEP
) -> dict[int, Metrics]:
    items = store.metrics(iteration, stage).items()
    named = [(key.sample, metrics) for key, metrics in items if key.sample.startswith(prefix)]
    return {int(name.removeprefix(prefix)): metrics for name, metrics in named}


def heldout_means(run: Run, iteration: int) -> dict[int, Metrics]:
    """Return the held-out means by number of steps, from 0 (the starting policy) if it was evaluated."""
    start = run.metrics(StageKey(iteration, EVALUATION))
    steps = step_records(run.store, iteration, REINFORCE, HELDOUT)
    return {**({0: start} if start else {}), **steps}


def kept_steps(run: Run, iteration: int, roles: Sequence[str]) -> list[int]:
    """Return the numbers of steps after which all roles have a checkpoint, in order."""
    from coterie.training.checkpoint import saved_steps  # torch takes seconds to import

    records = step_records(run.store, iteration, REINFORCE)
    saved = {role: saved_steps(run.training_folder(iteration, role)) for role in roles}
    # Records count steps from 0; a checkpoint counts the steps before it.
    numbers = [step + 1 for step in sorted(records)]
    return [n for n in numbers if all(updates_after(records, n, r) in saved[r] for r in roles)]


def step_folder(run: Run, role: str, step: int) -> Path:
    """Return the checkpoint of a role after a step. Raises ``UserError`` if it is not kept."""
    from coterie.training.checkpoint import checkpoint_folder

    available = list[int]()
    for iteration in run.store.iterations(REINFORCE):
        available = kept_steps(run, iteration, [role])
        if step in available:
            updates = updates_after(step_records(run.store, iteration, REINFORCE), step, role)
            return checkpoint_folder(run.training_folder(iteration, role), updates)
    raise UserError(
        f"{run.folder} has no checkpoint of {role} after step {step} of reinforcement learning",
        f"use one of: {', '.join(map(str, available)) or 'none'} (steps.save_every and steps.keep_last say which are "
        "kept)",
    )


def fork_steps(old: Run, new: Run, count: int) -> None:
    """Copy the metrics of the first ``count`` steps, and the checkpoints after them, but no samples.

    Later samples would be of other policies than the new run's, under the same names of versions.
    """
    from coterie.training.checkpoint import fork_checkpoint

    iteration = next(iter(old.store.iterations(REINFORCE)), None)
    if iteration is None:
        raise UserError(
            f"{old.folder} has no reinforcement learning to start from", "leave out --from-step"
        )
    # Steps have numbers from 0, and held-out means the number of steps before them.
    for prefix, stop in ((STEP, count), (HELDOUT, count + 1)):
        for number, metrics in step_records(old.store, iteration, REINFORCE, prefix).items():
            if number < stop:
                key = ItemKey(iteration, REINFORCE, "", f"{prefix}{number:05d}")
                new.store.finish(key, metrics=metrics)
    folders = [*(old.folder / "training").glob(f"*/iteration-{iteration:02d}")]
    if not folders:
        raise UserError(f"{old.folder} has no checkpoints", "leave out --from-step")
    for role in (folder.parent.name for folder in folders):
        fork_checkpoint(step_folder(old, role, count), new.training_folder(iteration, role))


def updates_of(role: str) -> str:
    return f"{role}/updates"


def updates_after(records: Mapping[int, Metrics], step: int, role: str) -> int:
    """Return the number of optimizer steps of a role in the first ``step`` steps."""
    # Records hold totals, so the last one is enough.
    return int(records[step - 1].get(updates_of(role), 0)) if step else 0
