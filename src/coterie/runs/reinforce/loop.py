"""Loop of reinforcement learning within a stage. Each step: sample, reward, advantage, update.

Samples of a step are stored before its update, and its metrics after it. Checkpoints of all roles are saved between
steps. A killed run resumes at the newest step for which all roles have a checkpoint, and repeats later steps from the
stored samples. In float32 on one CPU process the resulting weights are bitwise equal to an uninterrupted run.
"""

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import fmean, stdev

from coterie.engines.protocol import Sampling
from coterie.errors import UserError
from coterie.progress import Pace, Progress, duration
from coterie.record.rows import Row
from coterie.record.store import Store
from coterie.record.tree import ItemKey, Metrics
from coterie.runs.folder import Run
from coterie.runs.reinforce.learner import Learner, LearnerConfig, learner, saved_updates
from coterie.runs.reinforce.sampling import (
    AgentPath,
    BatchRules,
    GroupSampler,
    StepBatch,
    StepSamples,
    informative_tasks,
    prepare,
)
from coterie.runs.reinforce.settings import StepSettings
from coterie.runs.roles import Roles
from coterie.training.checkpoint import weight_hash

TOTALS = frozenset({"seconds_left", "step", "rows_dropped"})
"""Metrics of a whole training, which are not averaged over a step."""


@dataclass(slots=True)
class UpdateMetrics:
    """Mean metrics of the optimizer steps within one step, by role."""

    sums: dict[str, list[float]] = field(default_factory=dict)
    updates: int = 0
    too_long: int = 0
    targets: int = 0
    """Target tokens of the policies."""

    def add(self, role: str, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name not in TOTALS:
                self.sums.setdefault(f"{role}/{name}", []).append(value)

    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.sums.items()}


def minibatches(
    tasks: Sequence[str], settings: StepSettings, seed: str
) -> Iterator[frozenset[str]]:
    """Yield the tasks of each minibatch.

    Every epoch has each task once. Sizes differ by at most one. With fewer tasks than ``minibatches``, each task is its
    own minibatch.
    """
    for epoch in range(settings.epochs):
        order = sorted(set(tasks))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        parts = min(settings.minibatches, len(order))
        for part in range(parts):
            yield frozenset(order[part::parts])


def update(
    paths: Sequence[AgentPath],
    learners: Sequence[Learner],
    settings: StepSettings,
    rules: BatchRules,
    seed: str,
) -> UpdateMetrics:
    """Train each role on the paths of its agents. Rows that are too long are left out and counted.

    Skips optimizer steps without a gradient, because Adam would scale up rounding errors.

    Raises :class:`UserError` if all rows are too long.
    """
    metrics, fits = UpdateMetrics(), False
    for tasks in minibatches([path.task for path in paths], settings, seed):
        for one in learners:
            every = _rows(paths, one.config.agents, tasks)
            rows = [row for row in every if len(row.ids) <= one.trainer.longest]
            metrics.too_long += len(every) - len(rows)
            one.trainer.leave_out(len(every) - len(rows), 0)
            fits = fits or bool(rows)
            if rows and _has_gradient(one, rows, rules):
                if one.config.like is None:  # not a critic
                    metrics.targets += sum(row.target_count for row in rows)
                metrics.add(one.role, one.trainer.step(rows))
                metrics.updates += 1
    if metrics.too_long and not fits:
        raise UserError(
            f"all {metrics.too_long} rows of a step are longer than the maximum of the training, "
            f"{max(one.trainer.longest for one in learners)} tokens",
            "raise update.max_length (up to the model's context), or shorten dialogues (rollout.max_tokens, fewer "
            "turns)",
        )
    return metrics


def _has_gradient(one: Learner, rows: Sequence[Row], rules: BatchRules) -> bool:
    """Return True if the loss of a role has a gradient.

    A critic always has one. A policy needs an advantage, an entropy bonus, or a divergence from the reference.
    """
    if one.config.like is not None or rules.entropy or (rules.reference and one.has_moved):
        return True
    return any(any(row.advantages or ()) for row in rows)


def _rows(paths: Sequence[AgentPath], agents: Sequence[str], tasks: frozenset[str]) -> list[Row]:
    mine = (path for path in paths if path.task in tasks and path.agent in agents)
    return [row for path in mine for row in path.rows]


def step_metrics(
    samples: StepSamples,
    batch: StepBatch,
    update_metrics: UpdateMetrics,
    seconds: tuple[float, float],
) -> dict[str, float | int | str]:
    """Return the metrics of a step; ``seconds`` are the times of sampling and training.

    ``reward`` and ``score`` are means over all graded paths, including paths that are not trained on.
    """
    paths = samples.paths
    rewards = [total for path in paths if (total := path.sampled.total) is not None]
    outcomes = {path.outcome.leaf: path.outcome for path in paths}.values()
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    tokens = sum(path.tokens for path in paths)
    thought = _mean([float(path.thought_tokens) for path in paths])
    sampling, training = seconds
    return {
        "reward": _mean(rewards),
        "reward_error": stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0,
        "score": _mean(scores),
        "tokens": _mean([float(path.tokens) for path in paths]),
        **({"thought_tokens": thought} if thought else {}),
        "turns": _mean([float(path.turns) for path in paths]),
        "truncated": _mean([float(outcome.ending.truncated) for outcome in outcomes]),
        "groups_telling": len(batch.informative),
        **batch.counts,
        "paths": len(batch.paths),
        "tasks": len(samples.tasks),
        "samples": samples.sample_count,
        "samples_failed": samples.sample_count - len(outcomes),
        "rounds": samples.rounds,
        "rows_too_long": update_metrics.too_long,
        "trained_tokens": update_metrics.targets,
        "measures_missing": len(samples.unmeasured),
        "sampling_seconds": round(sampling, 3),
        "training_seconds": round(training, 3),
        "sampled_tokens_per_second": round(tokens / sampling, 1) if sampling else 0.0,
        **update_metrics.means(),
    }


LEFT_OUT = {
    "paths_failed": "paths without a reward",
    "paths_stale": "paths of other weights",
    "paths_masked": "paths that reached a limit",
    "paths_too_long": "paths that are too long",
    "rows_too_long": "rows that are too long",
    "groups_small": "groups with fewer than two paths",
}
"""Descriptions of metrics that count paths and rows left out of training."""


def describe_step(step: int, steps: int, metrics: Metrics) -> str:
    """Return the log line of a step."""
    reward, score, tokens = (float(metrics[name]) for name in ("reward", "score", "tokens"))
    parts = [
        f"step {step} of {steps}: reward {reward:.3f}",
        f"score {score:.3f}",
        f"{tokens:.0f} tokens",
        f"{metrics['groups_telling']} groups with an advantage",
    ]
    known: Mapping[str, str] = {"entropy": "entropy", "policy_kl": "KL", "grad_norm": "gradient"}
    for name, value in metrics.items():
        short = known.get(name.rpartition("/")[2])
        if short and not isinstance(value, str) and not name.startswith("critic/"):
            parts.append(f"{short} {value:.3g}")
    if missing := left_out([metrics]):
        parts.append(f"left out: {missing}")
    return ", ".join(parts)


def left_out(steps: Sequence[Metrics]) -> str:
    """Describe the paths and rows left out of steps, or return an empty text."""
    sums = {what: sum(int(one.get(name, 0)) for one in steps) for name, what in LEFT_OUT.items()}
    return ", ".join(f"{count} {what}" for what, count in sums.items() if count)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


STEP = "step-"
"""Prefix of the items with the metrics of a step."""
DRAWS = "draws"
"""Metric of a step that counts draws of tasks over all steps so far."""


@dataclass(frozen=True, slots=True)
class Reinforcement:
    """Reinforcement learning in one stage of a run."""

    run: Run
    models: Roles
    groups: GroupSampler
    steps: StepSettings
    rules: BatchRules
    sampling: Sampling
    policies: Sequence[LearnerConfig]
    critic: LearnerConfig | None = None

    async def learn(self, progress: Progress) -> Metrics:
        """Take the remaining steps and return the metrics of the stage.

        Raises :class:`UserError` if ``patience`` steps in a row have no learning signal: no non-zero advantage, equal
        rewards in all steps, or no paths to train on.
        """
        records = step_records(self.run.store, self.groups.iteration, self.groups.stage)
        first = self._first(records)
        pace = Pace(self.steps.count - first, time.monotonic())
        with self._open_learners(records, first) as learners:
            for step in range(first, self.steps.count):
                records[step] = await self._step(step, records, learners, progress)
                pace.add(1, now := time.monotonic())
                left = pace.left(now, evidence=0.0)
                line = describe_step(step + 1, self.steps.count, records[step])
                progress.say(f"{line}, {duration(left)} left" if left else line)
                self._check_learning_signal(step, records)
                if (step + 1) % self.steps.save_every == 0:
                    for one in learners:
                        one.trainer.save()
            return self._finish(learners, records)

    async def _step(
        self,
        step: int,
        records: Mapping[int, Metrics],
        learners: Sequence[Learner],
        progress: Progress,
    ) -> Metrics:
        """Take one step and write its metrics: sample, reward, advantage, update."""
        draws = int(records[step - 1][DRAWS]) if step else 0
        start = time.monotonic()
        policies = learners[: len(self.policies)]
        samples = await self._sample(step, draws, policies, progress)
        await self.models.engines.rest()
        middle = time.monotonic()
        critic = learners[-1] if self.critic else None
        flat = self._is_flat([records[n] for n in range(step)], samples)
        batch = prepare(samples, policies, critic, self.rules, self.groups.settings, flat=flat)
        seed = f"{self.groups.seed}/{self.groups.iteration}/{step}"
        update_metrics = update(batch.paths, learners, self.steps, self.rules, seed)
        seconds = (middle - start, time.monotonic() - middle)
        metrics = {
            **step_metrics(samples, batch, update_metrics, seconds),
            **{updates_of(one.role): one.trainer.done for one in learners},
            DRAWS: samples.draws,
        }
        if not self.run.store.finished(self._key(step)):
            self.run.store.finish(self._key(step), metrics=metrics)
        self.run.tracker.step(self.groups.stage, metrics, policies[0].trainer.done)
        if samples.unmeasured:
            progress.say(
                f"reward.measures weighs {', '.join(samples.unmeasured)}, which no dialogue of this step has; it "
                "counts as 0. The environment's page lists the names."
            )
        return metrics

    async def _sample(
        self, step: int, draws: int, policies: Sequence[Learner], progress: Progress
    ) -> StepSamples:
        samplers = {}
        for one in policies:
            sampler = await one.sampler(self.sampling)
            samplers.update(dict.fromkeys(one.config.agents, sampler))

        def enough(samples: StepSamples) -> bool:
            return len(informative_tasks(samples.paths)) >= self.groups.settings.tasks

        return await self.groups.sample(step, draws, samplers, enough, progress)

    # -- resuming and stopping ----------------------------------------------------------------------

    def _key(self, step: int) -> ItemKey:
        return ItemKey(self.groups.iteration, self.groups.stage, "", f"{STEP}{step:05d}")

    def _first(self, records: Mapping[int, Metrics]) -> int:
        """Return the step to resume at: the newest step for which all roles have a checkpoint."""
        saved = {
            one.role: saved_updates(self.run.training_folder(self.groups.iteration, one.role))
            for one in self._configs
        }
        for step in sorted(records, reverse=True):
            done = records[step]
            if all(int(done[updates_of(role)]) in known for role, known in saved.items()):
                return step + 1
        return 0

    @property
    def _configs(self) -> tuple[LearnerConfig, ...]:
        return (*self.policies, self.critic) if self.critic else tuple(self.policies)

    @contextmanager
    def _open_learners(self, records: Mapping[int, Metrics], first: int) -> Iterator[list[Learner]]:
        before = records[first - 1] if first else {}
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    learner(
                        *(self.run, self.models, self.groups.iteration, one),
                        at=int(before.get(updates_of(one.role), 0)),
                    )
                )
                for one in self._configs
            ]

    def _is_flat(self, before: Sequence[Metrics], samples: StepSamples) -> bool:
        """Return True if all rewards of the stage so far are equal, so that advantages are only errors of the critic.

        With gamma < 1 or step rewards, tokens have different returns even if the rewards of paths are equal.
        """
        if self.rules.advantage.gamma < 1 or any(path.sampled.steps for path in samples.paths):
            return False
        totals = [path.sampled.total for path in samples.paths]
        known = [total for total in totals if total is not None]
        return not known or _all_equal(
            [*before, *({"reward": t, "reward_error": 0} for t in known)]
        )

    def _check_learning_signal(self, step: int, records: Mapping[int, Metrics]) -> None:
        """Raise ``UserError`` if the last ``patience`` steps had no learning signal."""
        last = [records[n] for n in range(max(0, step + 1 - self.steps.patience), step + 1)]
        if len(last) < self.steps.patience:
            return
        discounted = self.rules.advantage.gamma < 1  # returns differ even if rewards are equal
        has_signal = any(one["groups_telling"] and one["paths"] for one in last)
        if not has_signal or (_all_equal(last) and not discounted):
            raise _no_signal_error(last)

    def _finish(self, learners: Sequence[Learner], records: Mapping[int, Metrics]) -> Metrics:
        """Publish the final weights of all roles, including roles without an optimizer step."""
        for one in learners:
            if one.trainer.report is None:
                one.trainer.save()
        reports = [one.trainer.finish() for one in learners]
        last = [records[step] for step in sorted(records)][-max(self.steps.count // 10, 1) :]
        return {
            "steps": reports[0].steps,
            "rows": reports[0].rows,
            "trained_tokens": sum(int(one["trained_tokens"]) for one in records.values()),
            "dropped": reports[0].dropped_too_long + reports[0].dropped_empty,
            "reward": sum(float(one["reward"]) for one in last) / len(last),
            "weights": weight_hash(reports[0].final),
        }


def _all_equal(last: Sequence[Metrics]) -> bool:
    """Return True if all paths of these steps have the same reward."""
    first = float(last[0]["reward"])
    return all(
        not one["reward_error"] and math.isclose(float(one["reward"]), first, abs_tol=1e-12)
        for one in last
    )


def _no_signal_error(last: Sequence[Metrics]) -> UserError:
    if not any(one["paths"] for one in last) and (missing := left_out(last)):
        return UserError(
            f"the last {len(last)} steps had no path to train on; left out: {missing}",
            "look at some paths with `coterie report`. Paths without a reward were not graded, or their reward is not "
            "a number. For paths too long for the critic raise critic.train.max_length. For paths that were cut off "
            "allow more turns or tokens, or set advantage.truncated=train",
        )
    mean, cut = (
        sum(float(one[name]) for one in last) / len(last) for name in ("reward", "truncated")
    )
    limited = f" {cut:.0%} of the rollouts reached a limit of turns or tokens." if cut else ""
    return UserError(
        f"in the last {len(last)} steps every rollout of a task got the same reward (mean {mean:.3f}), so all "
        f"advantages are zero.{limited}",
        "look at some rollouts with `coterie report`. A mean near the maximum or minimum reward means that the tasks "
        "are too easy or too hard for this policy. Choose other tasks, raise rollout.samples or rollout.temperature, "
        "or fine-tune the policy first",
    )


def step_records(store: Store, iteration: int, stage: str) -> dict[int, Metrics]:
    items = store.metrics(iteration, stage)
    return {
        int(key.sample.removeprefix(STEP)): metrics
        for key, metrics in items.items()
        if key.sample.startswith(STEP)
    }


def updates_of(role: str) -> str:
    """Return the name of the metric that counts a role's optimizer steps so far."""
    return f"{role}/updates"
