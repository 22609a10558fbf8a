"""The steps of a reinforcement learning, one after the other within a stage: sample, reward, compare, update.

All that a step samples is in the store before its update, and what the step was like is written after it. Checkpoints
are taken between two steps, of all roles. A run that was killed goes back to the newest step of which all roles have a
checkpoint, and takes the steps after it again from the paths that are stored: in float32 on one CPU process the weights
come out bitwise as if it had never stopped.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from coterie.engines.protocol import Sampling
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.runs.folder import Run
from coterie.runs.reinforce.learner import Learner, Learning, learner, saved_updates
from coterie.runs.reinforce.measured import left_out, step_metrics, told
from coterie.runs.reinforce.preparing import Rules, prepare, telling
from coterie.runs.reinforce.sampling import Drawn, Groups
from coterie.runs.reinforce.settings import StepSettings
from coterie.runs.reinforce.updating import Updated, update
from coterie.runs.roles import Roles
from coterie.training.checkpoint import weight_hash
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.store import Store

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
                draws = int(records[step - 1][DRAWS]) if step else 0
                records[step] = await self._step(step, draws, learners, progress)
                self._check_hope(step, records)
                if (step + 1) % self.steps.save_every == 0:
                    for one in learners:
                        one.trainer.save()
            return self._finish(learners, records)

    async def _step(
        self, step: int, draws: int, learners: Sequence[Learner], progress: Progress
    ) -> Metrics:
        """Sample, compare, update; writes what it was like."""
        began = time.monotonic()
        policies = learners[: len(self.policies)]
        drawn = await self._sample(step, draws, policies, progress)
        await self.models.engines.rest()
        sampled = time.monotonic()
        critic = learners[-1] if self.critic else None
        judged = prepare(drawn, policies, critic, self.rules, self.groups.settings)
        updated = Updated()
        if judged.telling or self.rules.always:
            seed = f"{self.groups.seed}/{self.groups.iteration}/{step}"
            updated = update(judged.paths, learners, self.steps, seed)
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
        """Publish the final weights of all roles. Refuses a run in which nothing was ever learned."""
        if any(one.trainer.report is None and not one.trainer.done for one in learners):
            raise _hopeless(list(records.values()))
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
            "number; one that is too long for the critic needs a longer critic.train.max_length; one that was cut off "
            "needs more turns or tokens, or advantage.truncated=train",
        )
    mean, cut = (
        sum(float(one[name]) for one in last) / len(last) for name in ("reward", "truncated")
    )
    limited = (
        f"; {cut:.0%} of the dialogues were cut off by a limit of turns or tokens" if cut else ""
    )
    return UserError(
        f"in the last {len(last)} steps all paths of each task had the same reward ({mean:.3f} in the mean), so there "
        f"was nothing to learn{limited}",
        "look at some of them (coterie report); a mean near the best or the least reward means that the tasks are too "
        "easy or too hard for this policy: choose others, raise rollout.samples or rollout.temperature, or fine-tune "
        "it first",
    )


def step_records(store: Store, iteration: int, stage: str) -> dict[int, Metrics]:
    """What was written of the steps of a stage that were taken, by number from 0."""
    found = store.metrics(iteration, stage)
    return {
        int(key.sample.removeprefix(STEP)): metrics
        for key, metrics in found.items()
        if key.sample.startswith(STEP)
    }


def updates_of(role: str) -> str:
    """The name of the number of a role's optimiser steps so far."""
    return f"{role}/updates"
