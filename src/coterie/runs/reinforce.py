"""Reinforcement learning within a stage. Each step: sample, reward, advantage, update.

A killed run resumes at the newest step for which all roles have a checkpoint, and repeats later steps from the stored
samples. In float32 on one CPU process the resulting weights are bitwise equal to an uninterrupted run. With
``rollout.max_staleness`` steps train in a thread while the engines sample the groups of later steps.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from coterie.engines.protocol import Sampling
from coterie.environments.protocol import Environment, draw_tasks
from coterie.errors import UserError
from coterie.progress import Pace, Progress, duration
from coterie.record.rows import Row
from coterie.record.store import Store
from coterie.record.tree import ItemKey, Metrics
from coterie.rewards.dialogue_reward import PathReward
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.folder import Run
from coterie.runs.group_queue import GROUPS, GroupQueue, groups_taken
from coterie.runs.items import Actors, going_on, play, sampled_tokens
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import (
    AgentPath,
    StepBatch,
    StepSamples,
    informative_tasks,
    paths_of,
    prepare,
    step_stage,
)
from coterie.runs.reinforce_settings import ReinforceSettings, StepSettings
from coterie.runs.roles import Learner, LearnerConfig, Roles, learner, saved_updates
from coterie.training.checkpoint import weight_hash
from coterie.training.distributed import launches
from coterie.training.ranks import Ranks

Result = TypeVar("Result")
STEP = "step-"
DRAWS = "draws"
"""Metric of a step that counts draws of tasks over all steps so far."""
TOTALS = frozenset({"seconds_left", "step", "rows_dropped"})
"""Metrics of a whole training, which are not averaged over a step."""
LEFT_OUT = {
    "paths_failed": "paths without a reward",
    "paths_stale": "paths of other weights",
    "paths_masked": "paths that reached a limit",
    "paths_too_long": "paths that are too long",
    "rows_too_long": "rows that are too long",
    "groups_small": "groups with fewer than two paths",
}
"""Descriptions of metrics that count paths and rows left out of training."""


@dataclass(frozen=True, slots=True)
class ReinforcementLoop:
    """Steps of one stage: sample, reward, advantage, update. Can be resumed."""

    run: Run
    iteration: int
    environment: Environment
    actors: Actors
    models: Roles
    settings: ReinforceSettings
    reward: PathReward
    seed: int
    policies: Sequence[LearnerConfig]
    critic: LearnerConfig | None = None

    async def learn(self, progress: Progress) -> Metrics:
        """Take the remaining steps and return the metrics of the stage.

        Raises :class:`UserError` if ``patience`` steps in a row have no learning signal.
        """
        records = step_records(self.run.store, self.iteration, REINFORCE)
        first, steps = self._first(records), self.settings.steps
        pace = Pace(steps.count - first, time.monotonic())
        with self._open_learners(records, first) as learners:
            async with self._queue(first, records, learners, progress) as queue:
                for step in range(first, steps.count):
                    is_repeated = step + 1 in records
                    records[step] = await self._step(step, records, learners, progress, queue)
                    pace.add(1, now := time.monotonic())
                    left = pace.left(now, evidence=0.0)
                    line = describe_step(step + 1, steps.count, records[step])
                    progress.say(f"{line}, {duration(left)} left" if left else line)
                    self._check_learning_signal(step, records)
                    if queue and step + 1 < steps.count:
                        await self._samplers(learners[: len(self.policies)])  # load the weights
                        queue.advance(self._ages(step + 1, records), play=not is_repeated)
                    if (step + 1) % steps.save_every == 0:
                        for one in learners:
                            await self._run(one.trainer.save)
            return self._finish(learners, records)

    async def _step(
        self,
        step: int,
        records: Mapping[int, Metrics],
        learners: Sequence[Learner],
        progress: Progress,
        queue: GroupQueue | None,
    ) -> Metrics:
        """Take one step and write its metrics: sample, reward, advantage, update."""
        policies = learners[: len(self.policies)]
        start = time.monotonic()
        if queue is None:
            samples = StepSamples(int(records[step - 1][DRAWS]) if step else 0)
            await self._sample(step, samples, policies, progress)  # groups of paths, with rewards
            await self.models.engines.rest()
        else:
            samples = await queue.take(groups_taken(records.get(step, {})))
        middle = time.monotonic()
        flat = self._is_flat([records[n] for n in range(step)], samples)
        batch, updates = await self._run(lambda: self._update(step, samples, learners, flat))
        sampling = time.monotonic() - start if queue else middle - start
        unmeasured = self._unmeasured({draw for draw, _ in samples.groups} or {step})
        metrics = {
            **step_metrics(samples, batch, updates),
            **{updates_of(one.role): one.trainer.done for one in learners},
            "measures_missing": len(unmeasured),
            "sampling_seconds": round(middle - start, 3),
            "training_seconds": round(time.monotonic() - middle, 3),
            "sampled_tokens_per_second": round(
                sum(path.tokens for path in samples.paths) / sampling, 1
            ),
            DRAWS: samples.draws,
        }
        if queue:
            staleness = round(samples.staleness, 4)
            metrics |= {"staleness": staleness, GROUPS: json.dumps(samples.groups)}
        if not self.run.store.finished(self._key(step)):
            self.run.store.finish(self._key(step), metrics=metrics)
        self.run.tracker.stage(REINFORCE, metrics, policies[0].trainer.done)
        if unmeasured:
            progress.say(
                f"reward.measures weighs {', '.join(unmeasured)}, which no dialogue of this step has; it counts as 0. "
                "The environment's page lists the names."
            )
        return metrics

    def _update(
        self, step: int, samples: StepSamples, learners: Sequence[Learner], flat: bool
    ) -> tuple[StepBatch, dict[str, float]]:
        s, policies = self.settings, learners[: len(self.policies)]
        critic = learners[-1] if self.critic else None
        batch = prepare(samples, policies, critic, s, flat=flat)  # advantages
        updates = update(batch.paths, learners, s, f"{self.seed}/{self.iteration}/{step}")
        if s.rollout.max_staleness:  # not on the event loop
            for one in policies:
                one.served()
        return batch, updates

    async def _run(self, work: Callable[[], Result]) -> Result:
        """Do work of the trainers, in a thread if the engines sample meanwhile."""
        if not self.settings.rollout.max_staleness:
            return work()
        thread = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(thread)
        finally:
            await asyncio.wait([thread])  # a trainer is not closed within a step

    async def _samplers(self, policies: Sequence[Learner]) -> dict[str, TokenSampler]:
        """Return the sampler of each agent, whose engine has the current weights."""
        s, timeout = self.settings.rollout, self.models.settings.timeout
        sampling = Sampling(s.temperature, 1.0, s.max_tokens, (), timeout)
        samplers: dict[str, TokenSampler] = {}
        for one in policies:
            samplers |= dict.fromkeys(one.config.agents, await one.sampler(sampling))
        return samplers

    @asynccontextmanager
    async def _queue(
        self,
        first: int,
        records: Mapping[int, Metrics],
        learners: Sequence[Learner],
        progress: Progress,
    ) -> AsyncIterator[GroupQueue | None]:
        """Open the queue of groups that are sampled while steps train; ``None`` if these take turns."""
        s = self.settings
        if not s.rollout.max_staleness:
            yield None
            return
        samplers = await self._samplers(learners[: len(self.policies)])
        driver, tokens = self.actors.driver(samplers, self.seed), sampled_tokens(samplers.values())
        title = f"{REINFORCE} {self.iteration}"
        with going_on(title, progress):
            async with driver.sessions() as sessions:
                queue = GroupQueue(
                    *(self.run.store, self.iteration, driver, sessions, s.rollout, s.steps),
                    *(self.reward, [*samplers]),
                    progress=progress,
                    sampled_tokens=tokens,
                    taken={group for one in records.values() for group in groups_taken(one)},
                    step=first,
                    ages=self._ages(first, records),
                )
                progress.start((s.steps.count - first) * s.rollout.tasks * s.rollout.samples, title)
                try:
                    yield queue
                finally:
                    await queue.close()

    def _ages(self, step: int, records: Mapping[int, Metrics]) -> dict[str, int]:
        """Return the age in steps of the weights before a step and of the ``max_staleness`` versions before them."""
        ages: dict[str, int] = {}
        for one in self.policies:
            for before in range(max(step - self.settings.rollout.max_staleness, 0), step + 1):
                done = int(records[before - 1][updates_of(one.role)]) if before else 0
                version = f"{one.version}.{done}" if done else f"{one.version}"
                # The newest counts if a step changed nothing.
                ages[f"{one.role}@{version}"] = step - before
        return ages

    async def _sample(
        self, step: int, samples: StepSamples, policies: Sequence[Learner], progress: Progress
    ) -> None:
        """Play groups of the step's tasks, except for stored samples, until enough have different rewards."""
        s, store, stage = self.settings.rollout, self.run.store, step_stage(REINFORCE, step)
        samplers = await self._samplers(policies)
        tokens = sampled_tokens(samplers.values())
        driver = self.actors.driver(samplers, self.seed)
        while samples.rounds < s.rounds:
            before = [s.draw_count] * samples.draws
            tasks = draw_tasks(self.environment, "train", s.draw_count, self.seed, before)
            seen = set(samples.tasks)
            tasks = [task for task in tasks if task.id not in seen]
            samples.draws += 1
            samples.rounds += 1
            if not tasks:
                break
            episodes = [
                Episode(task, n, self.iteration, stage) for task in tasks for n in range(s.samples)
            ]
            await play(store, driver, episodes, progress, tokens)
            names = [task.id for task in tasks]
            samples.tasks += names
            samples.sample_count += len(episodes)
            samples.paths += paths_of(store, self.iteration, stage, names, [*samplers], self.reward)
            if len(informative_tasks(samples.paths)) >= s.tasks:
                break

    def _unmeasured(self, draws: set[int]) -> list[str]:
        """Return the names in ``reward.measures`` that no dialogue of these draws has."""
        weighted, known = self.settings.reward.measures, set[str]()
        for stage in (step_stage(REINFORCE, draw) for draw in draws if weighted):
            metrics = self.run.store.metrics(self.iteration, stage).items()
            known.update(name for key, measures in metrics if key.task for name in measures)
        return [name for name in weighted if name not in known]

    # -- resuming and stopping ----------------------------------------------------------------------

    def _key(self, step: int) -> ItemKey:
        return ItemKey(self.iteration, REINFORCE, "", f"{STEP}{step:05d}")

    def _first(self, records: Mapping[int, Metrics]) -> int:
        saved = {
            one.role: saved_updates(self.run.training_folder(self.iteration, one.role))
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
        settings, device = self.policies[0].settings, self.models.settings.device_name
        with ExitStack() as stack:
            ranks = None
            if launches(settings):
                folder = self.run.training_folder(self.iteration, self.policies[0].role)
                launch = self.run.launch
                ranks = stack.enter_context(Ranks(settings, device, folder, key="update", **launch))
            learners = list[Learner]()
            for one in self._configs:
                at = int(before.get(updates_of(one.role), 0))
                opened = learner(self.run, self.models, self.iteration, one, at=at, ranks=ranks)
                learners.append(stack.enter_context(opened))
            yield learners

    def _is_flat(self, before: Sequence[Metrics], samples: StepSamples) -> bool:
        """Return True if all rewards of the stage so far are equal, so that advantages are only errors of the critic.

        With gamma < 1 or step rewards, tokens have different returns even if the rewards of paths are equal.
        """
        if self.settings.advantage.gamma < 1 or any(path.sampled.steps for path in samples.paths):
            return False
        totals = [path.sampled.total for path in samples.paths]
        known = [{"reward": one, "reward_error": 0} for one in totals if one is not None]
        return not known or _all_equal([*before, *known])

    def _check_learning_signal(self, step: int, records: Mapping[int, Metrics]) -> None:
        patience = self.settings.steps.patience
        last = [records[n] for n in range(max(0, step + 1 - patience), step + 1)]
        if len(last) < patience:
            return
        discounted = self.settings.advantage.gamma < 1  # returns differ even if rewards are equal
        has_signal = any(one["groups_telling"] and one["paths"] for one in last)
        if not has_signal or (_all_equal(last) and not discounted):
            raise _no_signal_error(last)

    def _finish(self, learners: Sequence[Learner], records: Mapping[int, Metrics]) -> Metrics:
        """Publish the final weights of all roles, including roles without an optimizer step."""
        for one in learners:
            if one.trainer.report is None:
                one.trainer.save()
        report, *_ = [one.trainer.finish() for one in learners]
        tenth = max(self.settings.steps.count // 10, 1)
        last = [float(records[step]["reward"]) for step in sorted(records)][-tenth:]
        return {
            "steps": report.steps,
            "rows": report.rows,
            "trained_tokens": sum(int(one["trained_tokens"]) for one in records.values()),
            "dropped": report.dropped_too_long + report.dropped_empty,
            "reward": sum(last) / len(last),
            "weights": weight_hash(report.final),
        }


def minibatches(
    tasks: Sequence[str], settings: StepSettings, seed: str
) -> Iterator[frozenset[str]]:
    """Yield the tasks of each minibatch. Every epoch has each task once; sizes differ by at most one."""
    for epoch in range(settings.epochs):
        order = sorted(set(tasks))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        parts = min(settings.minibatches, len(order))
        for part in range(parts):
            yield frozenset(order[part::parts])


def update(
    paths: Sequence[AgentPath], learners: Sequence[Learner], s: ReinforceSettings, seed: str
) -> dict[str, float]:
    """Train each role on the paths of its agents, and return the mean metrics of the optimizer steps.

    Rows that are too long are left out and counted. Skips optimizer steps without a gradient, because Adam would scale
    up rounding errors. Raises :class:`UserError` if all rows are too long.
    """
    sums: dict[str, list[float]] = {}
    too_long = trained = 0
    fits = False
    for tasks in minibatches([path.task for path in paths], s.steps, seed):
        for one in learners:
            every = _rows(paths, one.config.agents, tasks)
            rows = [row for row in every if len(row.ids) <= one.trainer.longest]
            too_long += len(every) - len(rows)
            one.trainer.leave_out(len(every) - len(rows), 0)
            fits = fits or bool(rows)
            if rows and _has_gradient(one, rows, s):
                if one.config.like is None:  # not a critic
                    trained += sum(row.target_count for row in rows)
                for name, value in one.trainer.step(rows).items():
                    if name not in TOTALS:
                        sums.setdefault(f"{one.role}/{name}", []).append(value)
    if too_long and not fits:
        raise UserError(
            f"all {too_long} rows of a step are longer than the maximum of the training, "
            f"{max(one.trainer.longest for one in learners)} tokens",
            "raise update.max_length (up to the model's context), or shorten dialogues (rollout.max_tokens, fewer "
            "turns)",
        )
    means = {name: sum(values) / len(values) for name, values in sums.items()}
    return {"rows_too_long": too_long, "trained_tokens": trained, **means}


def _has_gradient(one: Learner, rows: Sequence[Row], s: ReinforceSettings) -> bool:
    """Return True for a critic, and for a policy with an advantage, an entropy bonus, or a divergence."""
    if one.config.like is not None or s.loss.entropy or (s.loss.kl and one.has_moved):
        return True
    return any(any(row.advantages or ()) for row in rows)


def _rows(paths: Sequence[AgentPath], agents: Sequence[str], tasks: frozenset[str]) -> list[Row]:
    mine = (path for path in paths if path.task in tasks and path.agent in agents)
    return [row for path in mine for row in path.rows]


def step_metrics(
    samples: StepSamples, batch: StepBatch, updates: Mapping[str, float]
) -> dict[str, float | int | str]:
    """Return the metrics of a step; means are over all graded paths, also those that are not trained on."""
    paths = samples.paths
    rewards = [total for path in paths if (total := path.sampled.total) is not None]
    outcomes = {path.outcome.leaf: path.outcome for path in paths}.values()
    thought = _mean([float(path.thought_tokens) for path in paths])
    return {
        "reward": _mean(rewards),
        "reward_error": stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0,
        "score": _mean([outcome.score for outcome in outcomes if outcome.score is not None]),
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
        **updates,
    }


def describe_step(step: int, steps: int, metrics: Metrics) -> str:
    reward, score, tokens = (float(metrics[name]) for name in ("reward", "score", "tokens"))
    parts = [f"step {step} of {steps}: reward {reward:.3f}", f"score {score:.3f}"]
    parts += [f"{tokens:.0f} tokens", f"{metrics['groups_telling']} groups with an advantage"]
    known = {"entropy": "entropy", "reference_kl": "KL to the reference", "grad_norm": "gradient"}
    for name, value in metrics.items():
        short = known.get(name.rpartition("/")[2])
        if short and not isinstance(value, str) and not name.startswith("critic/"):
            parts.append(f"{short} {value:.3g}")
    if "staleness" in metrics:
        parts.append(f"staleness {metrics['staleness']:.2g}")
    if missing := left_out([metrics]):
        parts.append(f"left out: {missing}")
    return ", ".join(parts)


def left_out(steps: Sequence[Metrics]) -> str:
    sums = {what: sum(int(one.get(name, 0)) for one in steps) for name, what in LEFT_OUT.items()}
    return ", ".join(f"{count} {what}" for what, count in sums.items() if count)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _all_equal(last: Sequence[Metrics]) -> bool:
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
    return f"{role}/updates"
