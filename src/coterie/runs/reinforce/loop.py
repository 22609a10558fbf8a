"""The steps of a reinforcement learning, one after the other within a stage: sample, reward, compare, update.

All that a step samples is in the store before its update, and what the step was like is written after it. Checkpoints
are taken between two steps, of all roles. A run that was killed goes back to the newest step of which all roles have a
checkpoint, and takes the steps after it again from the paths that are stored: in float32 on one CPU process the weights
come out bitwise as if it had never stopped.
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
from coterie.progress import Progress
from coterie.runs.folder import Run
from coterie.runs.reinforce.advantages import Judged
from coterie.runs.reinforce.learner import Learner, Learning, learner, saved_updates
from coterie.runs.reinforce.paths import Path
from coterie.runs.reinforce.preparing import Rules, prepare, telling
from coterie.runs.reinforce.sampling import Drawn, Groups
from coterie.runs.reinforce.settings import StepSettings
from coterie.runs.roles import Roles
from coterie.training.checkpoint import weight_hash
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.row import Row
from coterie.trajectories.store import Store

SUMMED = frozenset({"seconds_left", "step", "rows_dropped"})
"""Of a training, not of a step: no mean is taken of them."""


@dataclass(slots=True)
class Updated:
    """What the optimiser steps of one step were like: of each role the mean of each number."""

    sums: dict[str, list[float]] = field(default_factory=dict)
    updates: int = 0
    too_long: int = 0
    targets: int = 0
    """Target tokens that policies were trained on."""

    def add(self, role: str, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name not in SUMMED:
                self.sums.setdefault(f"{role}/{name}", []).append(value)

    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.sums.items()}


def minibatches(
    tasks: Sequence[str], settings: StepSettings, seed: str
) -> Iterator[frozenset[str]]:
    """The tasks of each optimiser step of a step. An epoch sees each once; sizes differ by one at most.

    There are fewer steps than ``minibatches`` where fewer tasks are left.
    """
    for epoch in range(settings.epochs):
        order = sorted(set(tasks))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        parts = min(settings.minibatches, len(order))
        for part in range(parts):
            yield frozenset(order[part::parts])


def update(
    paths: Sequence[Path],
    learners: Sequence[Learner],
    settings: StepSettings,
    rules: Rules,
    seed: str,
) -> Updated:
    """Train each role on the paths of its agents. Rows that are too long are left out and counted.

    A role takes no optimizer step on rows whose gradient is rounding alone, which Adam would scale up.

    Raises :class:`UserError` if all rows are too long.
    """
    found, fits = Updated(), False
    for tasks in minibatches([path.task for path in paths], settings, seed):
        for one in learners:
            every = _rows(paths, one.what.agents, tasks)
            rows = [row for row in every if len(row.ids) <= one.trainer.longest]
            found.too_long += len(every) - len(rows)
            one.trainer.leave_out(len(every) - len(rows), 0)
            fits = fits or bool(rows)
            if rows and _has_gradient(one, rows, rules):
                if one.what.like is None:  # not a critic
                    found.targets += sum(row.target_count for row in rows)
                found.add(one.role, one.trainer.step(rows))
                found.updates += 1
    if found.too_long and not fits:
        raise UserError(
            f"all {found.too_long} rows of a step are longer than a training takes "
            f"({max(one.trainer.longest for one in learners)} tokens): nothing can be learned from them",
            "raise update.max_length (up to the model's context), or let dialogues be shorter "
            "(rollout.max_tokens, fewer turns)",
        )
    return found


def _has_gradient(one: Learner, rows: Sequence[Row], rules: Rules) -> bool:
    """Whether the loss of a role has a gradient: for a critic always, for a policy from an advantage, an entropy bonus,
    or a divergence from the reference once it has moved."""
    if one.what.like is not None or rules.entropy or (rules.reference and one.moved):
        return True
    return any(any(row.advantages or ()) for row in rows)


def _rows(paths: Sequence[Path], agents: Sequence[str], tasks: frozenset[str]) -> list[Row]:
    mine = (path for path in paths if path.task in tasks and path.agent in agents)
    return [row for path in mine for row in path.rows]


def step_metrics(
    drawn: Drawn, judged: Judged, updated: Updated, seconds: tuple[float, float]
) -> dict[str, float | int | str]:
    """All numbers of a step; ``seconds`` are those of sampling and of training.

    ``reward`` and ``score`` are means over all paths that were graded, those that are not trained on included.
    """
    paths = drawn.paths
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
        "groups_telling": len(judged.telling),
        **judged.counts,
        "paths": len(judged.paths),
        "tasks": len(drawn.tasks),
        "samples": drawn.played,
        "samples_failed": drawn.played - len(outcomes),
        "rounds": drawn.rounds,
        "rows_too_long": updated.too_long,
        "trained_tokens": updated.targets,
        "measures_missing": len(drawn.unmeasured),
        "sampling_seconds": round(sampling, 3),
        "training_seconds": round(training, 3),
        "sampled_tokens_per_second": round(tokens / sampling, 1) if sampling else 0.0,
        **updated.means(),
    }


LEFT_OUT = {
    "paths_failed": "paths without a reward",
    "paths_stale": "paths of other weights",
    "paths_masked": "paths that reached a limit",
    "paths_too_long": "paths that are too long",
    "rows_too_long": "rows that are too long",
    "groups_small": "groups with fewer than two paths",
}
"""What is said of what was left out of a step, by the number that counts it."""


def told(step: int, steps: int, metrics: Metrics) -> str:
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
    """What these steps were not trained on, in words; empty if that is nothing."""
    sums = {what: sum(int(one.get(name, 0)) for one in steps) for name, what in LEFT_OUT.items()}
    return ", ".join(f"{count} {what}" for what, count in sums.items() if count)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


STEP = "step-"
"""With what the items begin that say what a step was like."""
DRAWS = "draws"
"""What is remembered of a step besides its numbers: how often tasks were drawn so far."""


@dataclass(frozen=True, slots=True)
class Reinforcement:
    """The steps of one stage of one run."""

    run: Run
    models: Roles
    groups: Groups
    steps: StepSettings
    rules: Rules
    sampling: Sampling
    policies: Sequence[Learning]
    critic: Learning | None = None

    async def learn(self, progress: Progress) -> Metrics:
        """Take the steps that are left. Gives what is to be remembered of the stage.

        Raises :class:`UserError` if for ``patience`` steps in a row no group had anything better than anything else, or
        all paths of all these steps had the same reward, or none was left to train on.
        """
        records = step_records(self.run.store, self.groups.iteration, self.groups.stage)
        first = self._first(records)
        with self._opened(records, first) as learners:
            for step in range(first, self.steps.count):
                records[step] = await self._step(step, records, learners, progress)
                self._check_hope(step, records)
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
        """Sample, compare, update; writes what it was like."""
        draws = int(records[step - 1][DRAWS]) if step else 0
        began = time.monotonic()
        policies = learners[: len(self.policies)]
        drawn = await self._sample(step, draws, policies, progress)
        await self.models.engines.rest()
        sampled = time.monotonic()
        critic = learners[-1] if self.critic else None
        flat = self._flat([records[n] for n in range(step)], drawn)
        judged = prepare(drawn, policies, critic, self.rules, self.groups.settings, flat=flat)
        seed = f"{self.groups.seed}/{self.groups.iteration}/{step}"
        updated = update(judged.paths, learners, self.steps, self.rules, seed)
        seconds = (sampled - began, time.monotonic() - sampled)
        metrics = {
            **step_metrics(drawn, judged, updated, seconds),
            **{updates_of(one.role): one.trainer.done for one in learners},
            DRAWS: drawn.draws,
        }
        if not self.run.store.finished(self._key(step)):
            self.run.store.finish(self._key(step), metrics=metrics)
        self.run.tracking.step(self.groups.stage, metrics, policies[0].trainer.done)
        progress.say(told(step + 1, self.steps.count, metrics))
        if drawn.unmeasured:
            progress.say(
                f"reward.measures weighs {', '.join(drawn.unmeasured)}, which no dialogue of this step has: it counts "
                "as 0; the environment's page has the names"
            )
        return metrics

    async def _sample(
        self, step: int, draws: int, policies: Sequence[Learner], progress: Progress
    ) -> Drawn:
        samplers = {}
        for one in policies:
            sampler = await one.sampler(self.sampling)
            samplers.update(dict.fromkeys(one.what.agents, sampler))

        def enough(found: Drawn) -> bool:
            return len(telling(found.paths)) >= self.groups.settings.tasks

        return await self.groups.sample(step, draws, samplers, enough, progress)

    # -- where it stands ----------------------------------------------------------------------------

    def _key(self, step: int) -> ItemKey:
        return ItemKey(self.groups.iteration, self.groups.stage, "", f"{STEP}{step:05d}")

    def _first(self, records: Mapping[int, Metrics]) -> int:
        """The step to go on with: the newest one whose beginning all roles have kept."""
        kept = {
            one.role: saved_updates(self.run.training_folder(self.groups.iteration, one.role))
            for one in self._learnings
        }
        for step in sorted(records, reverse=True):
            done = records[step]
            if all(int(done[updates_of(role)]) in known for role, known in kept.items()):
                return step + 1
        return 0

    @property
    def _learnings(self) -> tuple[Learning, ...]:
        return (*self.policies, self.critic) if self.critic else tuple(self.policies)

    @contextmanager
    def _opened(self, records: Mapping[int, Metrics], first: int) -> Iterator[list[Learner]]:
        before = records[first - 1] if first else {}
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    learner(
                        *(self.run, self.models, self.groups.iteration, one),
                        at=int(before.get(updates_of(one.role), 0)),
                    )
                )
                for one in self._learnings
            ]

    def _flat(self, before: Sequence[Metrics], drawn: Drawn) -> bool:
        """Whether nothing of this stage so far was better than anything else, which makes a critic's errors the only
        advantages. With gamma < 1 sooner is better, and rewards of acts tell tokens apart."""
        if self.rules.advantage.gamma < 1 or any(path.sampled.steps for path in drawn.paths):
            return False
        totals = [path.sampled.total for path in drawn.paths]
        known = [total for total in totals if total is not None]
        return not known or _all_equal(
            [*before, *({"reward": t, "reward_error": 0} for t in known)]
        )

    def _check_hope(self, step: int, records: Mapping[int, Metrics]) -> None:
        """Refuse to go on where for a long time nothing could be learned."""
        last = [records[n] for n in range(max(0, step + 1 - self.steps.patience), step + 1)]
        if len(last) < self.steps.patience:
            return
        sooner = self.rules.advantage.gamma < 1  # is better, even if rewards are equal
        told = any(one["groups_telling"] and one["paths"] for one in last)
        if not told or (_all_equal(last) and not sooner):
            raise _hopeless(last)

    def _finish(self, learners: Sequence[Learner], records: Mapping[int, Metrics]) -> Metrics:
        """Publish the final weights of all roles; those that took no optimizer step are as they were."""
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
    """Whether all paths of these steps had one reward. What a critic still makes of it are its own errors."""
    first = float(last[0]["reward"])
    return all(
        not one["reward_error"] and math.isclose(float(one["reward"]), first, abs_tol=1e-12)
        for one in last
    )


def _hopeless(last: Sequence[Metrics]) -> UserError:
    if not any(one["paths"] for one in last) and (missing := left_out(last)):
        return UserError(
            f"in the last {len(last)} steps there was no path to learn from; left out: {missing}",
            "look at some of them (coterie report): a path without a reward was not graded, or its reward was no "
            "number; one that is too long for the critic needs a longer critic.train.max_length; one that reached a "
            "limit needs more turns or tokens, or advantage.truncated=train",
        )
    mean, cut = (
        sum(float(one[name]) for one in last) / len(last) for name in ("reward", "truncated")
    )
    limited = f"; {cut:.0%} of the dialogues reached a limit of turns or tokens" if cut else ""
    return UserError(
        f"in the last {len(last)} steps all paths of each task had the same reward ({mean:.3f} in the mean), so there "
        f"was nothing to learn{limited}",
        "look at some of them (coterie report); a mean near the best or the least reward means that the tasks are too "
        "easy or too hard for this policy: choose others, raise rollout.samples or rollout.temperature, or fine-tune "
        "it first",
    )


def step_records(store: Store, iteration: int, stage: str) -> dict[int, Metrics]:
    found = store.metrics(iteration, stage)
    return {
        int(key.sample.removeprefix(STEP)): metrics
        for key, metrics in found.items()
        if key.sample.startswith(STEP)
    }


def updates_of(role: str) -> str:
    """The name of the number of a role's optimiser steps so far."""
    return f"{role}/updates"
