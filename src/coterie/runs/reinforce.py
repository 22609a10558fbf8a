"""Reinforcement learning within a stage. Each step: sample, reward, advantage, update.

A killed run resumes at the newest step for which all roles have a checkpoint, and repeats later steps from the stored
samples. In float32 on one CPU process the resulting weights are bitwise equal to an uninterrupted run. Ctrl-C saves the
newest step. With ``rollout.max_staleness`` steps train in a thread while the engines sample the groups of later steps.
"""

import asyncio
import json
import shlex
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, TypeVar, cast

from coterie.engines.protocol import Sampling
from coterie.environments.protocol import Environment, draw_tasks
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Pace, Progress, Silent, duration
from coterie.record.rows import Update, trained_rows
from coterie.record.tree import STOPPED, ItemKey, Metrics, Outcome, Task, Tree, root_id
from coterie.rewards.dialogue_reward import PathReward
from coterie.rollout.episodes import Driver, Episode, opening_prompts
from coterie.rollout.group_search import GroupSearch
from coterie.rollout.samplers import CandidateSampler, Prompt, TokenSampler
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judgment, Search
from coterie.runs.group_queue import GroupQueue
from coterie.runs.interruption import Interruption
from coterie.runs.joint_critic import JointReader
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import (
    StepBatch,
    StepSamples,
    distribution_metrics,
    informative_tasks,
    paths_of,
    role_metrics,
    running_means,
    shown_rollouts,
    standard_error,
    step_credit,
    with_teacher_prompts,
)
from coterie.runs.reinforce_record import (
    GROUPS,
    HELDOUT,
    STEP,
    describe_step,
    groups_taken,
    heldout_means,
    is_constant,
    is_distilled,
    kept_steps,
    no_signal_error,
    sampling_warnings,
    silent_roles,
    step_records,
    step_stage,
    updates_after,
    updates_of,
)
from coterie.runs.reinforce_settings import ReinforceSettings
from coterie.runs.reinforce_trees import tree_samples
from coterie.runs.roles import Learner, LearnerConfig, Roles, open_learner
from coterie.runs.run import Run, StageKey
from coterie.runs.search_items import MEASURE, TreeWriter, grow_trees, rollouts
from coterie.runs.work_items import Actors, engine_errors, play, sampled_tokens, summary
from coterie.training.checkpoint import finish_with, remove_checkpoints, saved_steps, weight_hash
from coterie.training.distributed import launches
from coterie.training.ranks import Ranks

Result = TypeVar("Result")
GROWN = "grown"
"""Stage of the marks of complete trees."""
MAX_DRAWS = 20
"""Maximum draws of a round that requires pass rates."""
DRAWS = "draws"
"""Metric of a step that counts draws of tasks over all steps so far."""
TrainStep = Callable[
    [StepSamples, Sequence[Learner], Sequence[Learner], ReinforceSettings, str, Collection[str]],
    tuple[StepBatch, dict[str, float]],
]
StepWarnings = Callable[[Mapping[int, Metrics], Mapping[int, Metrics], bool], Sequence[str]]


@dataclass(slots=True)
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
    train_step: TrainStep
    """Trains the policies and their critics on the rollouts of a step (:func:`coterie.recipes.rl.train_step`)."""
    step_warnings: StepWarnings
    """Checks the metrics of the steps so far (:func:`coterie.reports.health.step_warnings`)."""
    policies: Sequence[LearnerConfig]
    critics: Sequence[LearnerConfig] = ()
    """Critic of each policy, or one of the joint state; none without critics."""
    heldout: Sequence[Task] = ()
    heldout_temperature: float = 0.0
    frozen: Mapping[str, str] = field(default_factory=dict)
    """Agents that are played by a role that is not trained, with its name."""
    teacher: str | None = None
    """Role whose log-probs the policies distill."""
    teacher_renderers: Mapping[str, ChatRenderer] = field(default_factory=dict)
    """Renderer of each agent, to distill each policy from itself under prompts with the task's secrets."""
    alternate_steps: int | None = None
    """Number of steps for which one policy trains at a time; ``None`` if all train in each step."""
    _progress: Progress = field(init=False)
    _interruption: Interruption = field(init=False)
    _learners: list[Learner] = field(init=False)
    """Trainers of the policies, then of their critics."""
    _records: dict[int, Metrics] = field(init=False)
    """Metrics by step, also of steps that are repeated after a kill."""
    _step_count: int = field(init=False)
    """Number of steps whose updates the trainers have."""
    _teacher: Any = field(default=None, init=False)
    _rates: dict[str, float] = field(default_factory=dict, init=False)
    """Pass rates of tasks in the first ``_rated_steps`` steps."""
    _rated_steps: int = field(default=0, init=False)
    _best: int | None = field(default=None, init=False)
    """Number of steps of the best policy so far, with ``keep=best``."""

    async def learn(self, progress: Progress) -> Metrics:
        """Take the remaining steps and return the metrics of the stage.

        Raises :class:`UserError` if ``patience`` steps in a row have no learning signal.
        """
        self._progress, steps = progress, self.settings.steps
        self._records = step_records(self.run.store, self.iteration, REINFORCE)
        configs = (*self.policies, *self.critics)
        # Resume where every role has a checkpoint, so that policies and critics match.
        saved = kept_steps(self.run, self.iteration, [config.role for config in configs])
        self._step_count = max(saved, default=0)
        pace = Pace(steps.count - self._step_count, time.monotonic())
        with self._open_learners(configs) as self._learners:
            async with self._queue() as queue:
                self._interruption = Interruption(self._save_newest, self._can_leave, progress)
                with self._interruption:
                    await self._evaluate(queue)
                    for step in range(self._step_count, steps.count):
                        # The next step was taken before a kill: its groups are stored, so none have
                        # to be played.
                        is_repeated = step + 1 in self._records
                        self._records[step] = await self._step(step, queue)
                        self._step_count = step + 1
                        pace.add(1, now := time.monotonic())
                        seconds_left = pace.left(now, evidence=0.0)
                        line = describe_step(self._step_count, steps.count, self._records[step])
                        line += f", {duration(seconds_left)} left" if seconds_left else ""
                        warnings = ", ".join(self._warnings(brief=True))
                        progress.say(f"{line}; warning: {warnings}" if warnings else line)
                        # The first groups show whether sampling is much worse than the start's
                        # greedy score.
                        if step == 0:
                            greedy = not self.heldout_temperature
                            self._warn(sampling_warnings(self.run, self.iteration, greedy=greedy))
                        self._check_learning_signal(step)
                        if queue and self._step_count < steps.count:
                            await self._samplers()  # load the weights
                            queue.advance(self._ages(self._step_count), play=not is_repeated)
                        if self._step_count % steps.save_every == 0:
                            await self._run(self._save)
                        await self._evaluate(queue)
            return self._finish()

    async def _step(self, step: int, queue: GroupQueue | None) -> Metrics:
        """Take one step and write its metrics: sample, reward, advantage, update."""
        start = time.monotonic()
        if queue is None:
            previous = self._records[step - 1] if step else {}
            samples = StepSamples(int(previous.get(DRAWS, 0)))
            await self._sample(step, samples)  # groups of paths, with rewards
            # Servers may stop here, to free the devices for the update.
            await self.models.engines.release_devices()
        else:
            samples = await queue.take(groups_taken(self._records.get(step, {})))
        samples.means = running_means(self._records.get(step - 1, {}))
        samples.trained_roles, samples.teacher = self._trained_roles(step), self._teacher
        # Without a queue each step has its own stage of samples, with the step's number.
        draws = {draw for draw, _ in samples.groups} or {step}
        if self.teacher_renderers:
            stages = [step_stage(REINFORCE, draw) for draw in sorted(draws)]
            samples.paths = with_teacher_prompts(
                samples.paths, self.run.store, self.iteration, stages, self.teacher_renderers
            )
        middle = time.monotonic()
        flat = self._flat_roles([self._records[n] for n in range(step)], samples)
        batch, updates = await self._run(lambda: self._update(step, samples, flat))
        # Beside training, sampling goes on for the whole step; otherwise it ends before the update.
        sampling = time.monotonic() - start if queue else middle - start
        sampled = samples.sampled_tokens
        if sampled is None:
            sampled = sum(path.tokens for path in samples.paths)
        unmeasured = self._unmeasured(draws)
        failed = samples.failed(self.settings.rollout.rollouts_per_task)
        left_out = [*failed, *batch.left_out]
        metrics = {
            **step_metrics(samples, batch, updates, len(failed)),
            **{updates_of(learner.role): learner.trainer.done for learner in self._learners},
            **role_metrics(samples, batch, self.policies),
            "measures_missing": len(unmeasured),
            "sampling_seconds": round(middle - start, 3),
            "training_seconds": round(time.monotonic() - middle, 3),
            "sampled_tokens": sampled,
            "sampled_tokens_per_second": round(sampled / sampling, 1),
            DRAWS: samples.draws,
        }
        if queue:
            staleness = round(samples.staleness, 4)
            metrics |= {"staleness": staleness, "staleness_max": samples.staleness_max}
            metrics |= {GROUPS: json.dumps(samples.groups)}
        key = ItemKey(self.iteration, REINFORCE, "", f"{STEP}{step:05d}")
        trained = [*self._updates_of(step)]
        # A repeated step keeps its first record.
        if not self.run.store.finished(key):
            fingerprint = self.run.start_fingerprint(StageKey(self.iteration, REINFORCE)) or ""
            # Groups of paths and failed rollouts belong to the root of their task's tree.
            draw_of = {task: draw for draw, task in samples.groups}
            for n, entry in enumerate(left_out):
                stage = step_stage(REINFORCE, draw_of.get(entry.task, step))
                node = entry.node or root_id(self.iteration, stage, entry.task)
                left_out[n] = replace(entry, node=node)
            self.run.store.finish(
                key,
                credit=step_credit(samples, batch, fingerprint),
                left_out=left_out,
                updates=trained,
                metrics=metrics,
            )
        tracker, done = self.run.tracker, self._learners[0].trainer.done
        tracker.stage(REINFORCE, metrics, done)
        place = (self.run.store, self.iteration, step)
        tracker.show(shown_rollouts(*place, samples, batch, tracker.samples), done)
        if unmeasured:
            self._progress.say(
                f"reward.measures weighs {', '.join(unmeasured)}, which no dialogue of this step has; it counts as 0. "
                "The environment's page lists the names."
            )
        return metrics

    def _update(
        self, step: int, samples: StepSamples, flat: Collection[str]
    ) -> tuple[StepBatch, dict[str, float]]:
        s, count = self.settings, len(self.policies)
        policies, critics = self._learners[:count], self._learners[count:]
        seed = f"{self.seed}/{self.iteration}/{step}"
        batch, updates = self.train_step(samples, policies, critics, s, seed, flat)
        if s.rollout.max_staleness:  # not on the event loop
            for policy in policies:
                policy.publish_weights()
        return batch, updates

    def _updates_of(self, step: int) -> Iterator[Update]:
        """Yield the optimizer steps of a step with their rows, once."""
        for learner in self._learners:
            arrays = learner.config.settings.keeps_facts(step)
            for number, rows, facts in learner.taken:
                trained = trained_rows(rows, facts, arrays=arrays)
                yield Update(self.iteration, REINFORCE, learner.role, number, trained, step)
            learner.taken.clear()

    async def _run(self, work: Callable[[], Result]) -> Result:
        """Do work of the trainers, in a thread if the engines sample meanwhile."""
        self._interruption.working(True)
        try:
            if not self.settings.rollout.max_staleness:
                return work()
            thread = asyncio.ensure_future(asyncio.to_thread(work))
            # If this task is canceled, the thread still finishes its step and is awaited below.
            try:
                return await asyncio.shield(thread)
            finally:
                await asyncio.wait([thread])  # a trainer is not closed within a step
        finally:
            self._interruption.working(False)

    async def _samplers(self, temperature: float | None = None) -> dict[str, TokenSampler]:
        """Return the sampler of each agent, whose engine has the current weights."""
        s, timeout = self.settings.rollout, self.models.settings.timeout
        temperature = s.temperature if temperature is None else temperature
        sampling = Sampling(temperature, 1.0, s.max_tokens, (), timeout)
        samplers: dict[str, TokenSampler] = {}
        for policy in self._learners[: len(self.policies)]:
            samplers |= dict.fromkeys(policy.config.agents, await policy.sampler(sampling))
        for role in dict.fromkeys(self.frozen.values()):
            model = await self.models.open_engine(role, 0)
            sampler = TokenSampler.of(model.engine, model.renderer, sampling, model.context_length)
            agents = (agent for agent, player in self.frozen.items() if player == role)
            samplers |= dict.fromkeys(agents, sampler)
        return samplers

    @property
    def _agents(self) -> list[str]:
        """Agents whose turns are trained."""
        return [agent for policy in self.policies for agent in policy.agents]

    def _trained_roles(self, step: int) -> list[str]:
        """Return the roles that train in a step: all, or one in turn."""
        roles = [policy.role for policy in self.policies]
        if self.alternate_steps is None:
            return roles
        return [roles[step // self.alternate_steps % len(roles)]]

    @asynccontextmanager
    async def _queue(self) -> AsyncIterator[GroupQueue | None]:
        """Open the queue of groups that are sampled while steps train; ``None`` if these take turns."""
        s, progress = self.settings, self._progress
        if not s.rollout.max_staleness:
            yield None
            return
        samplers = await self._samplers()
        driver, tokens = self.actors.driver(samplers, self.seed), sampled_tokens(samplers.values())
        title = f"{REINFORCE} {self.iteration}"
        with engine_errors(title, progress):
            async with driver.sessions() as sessions:
                queue = GroupQueue(
                    self.run.store,
                    self.iteration,
                    driver,
                    sessions,
                    s.rollout,
                    s.steps,
                    self.reward,
                    self._agents,
                    progress=progress,
                    sampled_tokens=tokens,
                    taken={
                        group for step in self._records.values() for group in groups_taken(step)
                    },
                    step=self._step_count,
                    ages=self._ages(self._step_count),
                )
                steps = s.steps.count - self._step_count
                progress.start(steps * s.rollout.tasks * s.rollout.rollouts_per_task, title)
                try:
                    yield queue
                finally:
                    await queue.close()

    def _ages(self, step: int) -> dict[str, int]:
        """Return the age in steps of the weights before a step and of the ``max_staleness`` versions before them."""
        ages: dict[str, int] = {}
        for policy in self.policies:
            for earlier_step in range(max(step - self.settings.rollout.max_staleness, 0), step + 1):
                done = updates_after(self._records, earlier_step, policy.role)
                # The same names as ``Learner.version``, which samples store as their writer.
                version = f"{policy.version}.{done}" if done else f"{policy.version}"
                # The newest counts if a step changed nothing.
                ages[f"{policy.role}@{version}"] = step - earlier_step
        return ages

    async def _sample(self, step: int, samples: StepSamples) -> None:
        """Play groups of the step's tasks, except for stored samples, until enough have different rewards."""
        s, store, stage = self.settings.rollout, self.run.store, step_stage(REINFORCE, step)
        samplers = await self._samplers()
        tokens = sampled_tokens(samplers.values())
        driver = self.actors.driver(samplers, self.seed)
        # Dynamic sampling (DAPO, section 3.2): draw until enough groups have different rewards.
        while samples.rounds < s.rounds:
            tasks = self._draw(step, samples)
            samples.rounds += 1
            if not tasks:
                break
            names = [task.id for task in tasks]
            samples.tasks += names
            if s.tree != "none":
                await self._grow(stage, driver, tasks, samples, samplers)
            else:
                numbers = range(s.rollouts_per_task)
                episodes = [
                    Episode(task, n, self.iteration, stage) for task in tasks for n in numbers
                ]
                await play(store, driver, episodes, self._progress, tokens)
                samples.sample_count += len(episodes)
                joint = await self._joint_reader(driver, tasks)
                samples.paths += paths_of(
                    store, self.iteration, stage, names, self._agents, self.reward, joint
                )
            if len(informative_tasks(samples.paths)) >= s.tasks:
                break

    def _draw(self, step: int, samples: StepSamples) -> list[Task]:
        """Draw the tasks of a round. With ``pass_rates``, draw until enough tasks are within these bounds."""
        s, tasks = self.settings.rollout, dict[str, Task]()
        count, rates = s.tasks_per_round, self._pass_rates(step) if s.pass_rates else {}
        low, high = s.pass_rates or (0.0, 1.0)
        for _ in range(MAX_DRAWS if s.pass_rates else 1):
            # Tasks repeat only after all have been drawn, so all earlier draws of the stage count.
            previous_counts = [count] * samples.draws
            samples.draws += 1
            for task in draw_tasks(self.environment, "train", count, self.seed, previous_counts):
                # A small data set may repeat a task within the step, but its group is played once.
                is_new = task.id not in samples.tasks and task.id not in tasks
                if is_new and low <= rates.get(task.id, low) <= high:
                    tasks[task.id] = task
            if len(tasks) >= count:
                break
        return list(tasks.values())[:count]

    def _pass_rates(self, step: int) -> dict[str, float]:
        """Return the mean score of each task in the newest earlier step that played it."""
        # Only of earlier steps, so that a repeated step draws the same tasks.
        for earlier in range(self._rated_steps, step):
            scores: dict[str, list[float]] = {}
            stage = step_stage(REINFORCE, earlier)
            for tree in self.run.store.outlines(self.iteration, stage):
                results = [o for o in tree.outcomes.values() if o.ending != STOPPED]
                of_tree = [outcome.score or 0.0 for outcome in results]
                scores.setdefault(tree.task, []).extend(of_tree)
            self._rates |= {task: fmean(values) for task, values in scores.items() if values}
        self._rated_steps = step
        return self._rates

    async def _joint_reader(self, driver: Driver, tasks: Sequence[Task]) -> JointReader | None:
        """Return the reader of the joint states of tasks, which begins each of them once more."""
        if self.settings.critic.view == "agent":
            return None
        prompts = dict[str, dict[str, Prompt]]()
        async with driver.sessions() as sessions:
            for task in tasks:
                branches = driver.branches(task, Tree(task.id, "opening", 0), sessions)
                prompts[task.id] = await opening_prompts(branches)
        model = self.models.known[self.critics[0].role].model
        renderer, _ = load_renderer(model, self.models.settings.template)
        return JointReader(renderer, {task.id: task for task in tasks}, prompts)

    async def _grow(
        self,
        stage: str,
        driver: Driver,
        tasks: Sequence[Task],
        samples: StepSamples,
        samplers: Mapping[str, TokenSampler],
    ) -> None:
        """Grow the tree of each task, except for stored searches, and add its groups to the samples."""
        store, rollout = self.run.store, self.settings.rollout
        store.put_tasks(tasks)
        tokens = sampled_tokens(samplers.values())
        writer = TreeWriter(store, self.iteration, Silent(), tokens, stage=stage)
        is_full, is_crossed = rollout.tree == "full", rollout.joint == "crossed"
        from_best = rollout.continue_with == "best"
        roles = self._trained_roles(self._step_count)
        trained = [agent for p in self.policies if p.role in roles for agent in p.agents]
        shape = (rollout.rollouts_per_task, is_full, rollout.tree_depth, from_best, is_crossed)
        stops = self.settings.stops_alternatives
        # A mark of each complete tree spares a resumed run the replay of its environment.
        mark = stage.replace(REINFORCE, GROWN)

        def begin(driver: Driver, sessions: Sessions, task: Task) -> GroupSearch:
            tree, recorded = writer.load(task)
            branches = driver.branches(task, tree, sessions)
            players = cast(Mapping[str, CandidateSampler], driver.samplers)
            return GroupSearch(
                *(branches, score_of, players, trained, *shape, stops),
                rollouts=recorded,
                seed=self.seed,
            )

        def on_finish(search: Search) -> None:
            store.finish(ItemKey(self.iteration, mark, search.tree.task))
            self._progress.advance(1, sampled_tokens=tokens())

        finished_tasks = {task for task, _ in store.finished_keys(self.iteration, mark)}
        left = [task for task in tasks if task.id not in finished_tasks]
        title = f"{stage} {self.iteration}"
        self._progress.start(len(left), title)
        with engine_errors(title, self._progress):
            await grow_trees(driver, writer, left, begin, driver.in_flight, on_finish)
        names, settings = [task.id for task in tasks], (rollout, self.settings.advantage)
        place = (store, self.iteration, stage, names, self._agents)
        trees = tree_samples(*place, self.reward, settings)
        if trees.rollouts and len(trees.failures) == trees.rollouts:
            by_task = rollouts(store, self.iteration, stage=stage)
            failure = next(r.failure for name in names for r in by_task.get(name, ()))
            raise UserError(
                f"all {trees.rollouts} rollouts of a step failed; the first with: {failure}",
                "fix the cause, and run again in a new folder or with --fork",
            )
        samples.paths += trees.turns
        samples.measured = [*(samples.measured or ()), *trees.paths]
        samples.sampled_tokens = (samples.sampled_tokens or 0) + trees.tokens
        samples.sample_count += trees.rollouts
        samples.failures = [*(samples.failures or ()), *trees.failures]

    async def _evaluate(self, queue: GroupQueue | None) -> None:
        """Play the held-out tasks with the newest weights, if due, and record the means."""
        s, store, step = self.settings.steps, self.run.store, self._step_count
        key = ItemKey(self.iteration, REINFORCE, "", f"{HELDOUT}{step:05d}")
        is_due = s.evaluate_every and step and (step % s.evaluate_every == 0 or step == s.count)
        if is_due and not store.finished(key):
            stage = step_stage("heldout", step)
            samplers = await self._samplers(self.heldout_temperature)
            driver = self.actors.driver(samplers, self.seed)
            episodes = [Episode(task, 0, self.iteration, stage) for task in self.heldout]
            # Beside asynchronous sampling, held-out episodes share its sessions and show no
            # progress.
            progress, sessions = (Silent(), queue.sessions) if queue else (self._progress, None)
            tokens = sampled_tokens(samplers.values())
            await play(store, driver, episodes, progress, tokens, sessions)
            await self.models.engines.release_devices()
            metrics = summary(store, self.iteration, stage)
            store.finish(key, metrics=metrics)
            self.run.tracker.stage("heldout", metrics, self._learners[0].trainer.done)
            self._progress.say(f"held-out score after step {step}: {metrics['score']:.3f}")
        if s.keep == "best":
            means = heldout_means(self.run, self.iteration)
            # Of equal scores, the latest counts.
            self._best = max(means, key=lambda n: (means[n]["score"], n), default=None)
            # Later updates change the weights, so the best ones are saved at once.
            if self._best == step:
                await self._run(self._save)

    def _unmeasured(self, draws: set[int]) -> list[str]:
        """Return the names in ``reward.measures`` that no dialogue of these draws has."""
        weighted, measured = self.settings.reward.measures, set[str]()
        for stage in (step_stage(REINFORCE, draw) for draw in draws if weighted):
            metrics = self.run.store.metrics(self.iteration, stage).items()
            # Trees store the metrics of a grade beside their own, with a prefix.
            names = (name for key, measures in metrics if key.task for name in measures)
            measured.update(name.removeprefix(MEASURE) for name in names)
        return [name for name in weighted if name not in measured]

    # -- resuming and stopping ----------------------------------------------------------------------

    @contextmanager
    def _open_learners(self, configs: Sequence[LearnerConfig]) -> Iterator[list[Learner]]:
        settings, device = self.policies[0].settings, self.models.settings.device_name
        with ExitStack() as stack:
            # Policies and critics train on the same ranks.
            ranks = None
            if launches(settings):
                folder = self.run.training_folder(self.iteration, self.policies[0].role)
                launch = self.run.launch
                ranks = stack.enter_context(Ranks(settings, device, folder, **launch))
            learners = list[Learner]()
            for config in configs:
                # Roles differ in optimizer steps, because steps without a gradient are skipped.
                step = updates_after(self._records, self._step_count, config.role)
                run = (self.run, self.models, self.iteration)
                opened = open_learner(*run, config, at=step, ranks=ranks)
                learners.append(stack.enter_context(opened))
            if self.teacher is not None:
                self._teacher = self.models.load(self.teacher, 0).model.eval()
            yield learners

    def _save(self) -> None:
        """Write a checkpoint of each role, then remove old ones, so that all roles share a step at any time."""
        for learner in self._learners:
            if learner.trainer.done not in saved_steps(learner.trainer.folder):
                learner.trainer.save()
        for learner in self._learners:
            best = None if self._best is None else self._updates(self._best, learner)
            remove_checkpoints(learner.trainer.folder, self.settings.steps.keep_last, best)

    def _save_newest(self) -> None:
        self._save()
        folder, step = shlex.quote(str(self.run.folder)), self._step_count
        saved = f"step {step} is saved in {folder}" if step else "no step was finished"
        self._progress.say(f"{saved}; continue with: coterie run --folder {folder}")

    def _can_leave(self) -> bool:
        """Return True if an update may be left, because no weight has changed since the last step."""
        # An update in a thread cannot be left; otherwise check that no weight has changed.
        return not self.settings.rollout.max_staleness and all(
            not learner.trainer.torn
            and learner.trainer.done == self._updates(self._step_count, learner)
            for learner in self._learners
        )

    def _updates(self, step: int, learner: Learner) -> int:
        return updates_after(self._records, step, learner.role)

    def _warnings(self, *, brief: bool = False) -> Sequence[str]:
        return self.step_warnings(self._records, heldout_means(self.run, self.iteration), brief)

    def _warn(self, warnings: Sequence[str]) -> None:
        for warning in warnings:
            self._progress.say(f"warning: {warning}")

    def _flat_roles(self, earlier: Sequence[Metrics], samples: StepSamples) -> list[str]:
        """Return the roles whose rewards were equal so far, so that advantages are only errors of their critic.

        With gamma < 1 or step rewards, tokens have different returns even if the rewards of paths are equal.
        """
        flat = list[str]()
        for policy in self.policies:
            paths = [path for path in samples.paths if path.agent in policy.agents]
            if self.settings.advantage.gamma < 1 or any(path.sampled.steps for path in paths):
                continue
            totals = [path.sampled.total for path in paths]
            new = [{"reward": total, "reward_error": 0} for total in totals if total is not None]
            # Several roles have metrics of their own, see `role_metrics`.
            prefix = f"{policy.role}/" if len(self.policies) > 1 else ""
            names = ("reward", "reward_error")
            old = [{name: step[f"{prefix}{name}"] for name in names} for step in earlier]
            flat += [policy.role] if not new or is_constant([*old, *new]) else []
        return flat

    def _check_learning_signal(self, step: int) -> None:
        patience = self.settings.steps.patience
        recent = [self._records[n] for n in range(max(0, step + 1 - patience), step + 1)]
        if len(recent) < patience or is_distilled(recent):
            return
        # Returns differ even if the rewards of rollouts are equal: by discounts, of turns, or in trees.
        s, is_tree = self.settings.advantage, self.settings.rollout.tree != "none"
        differ = s.gamma < 1 or s.group in ("turn", "state") or is_tree
        has_signal = any(step["groups_informative"] and step["paths"] for step in recent)
        if not has_signal or (is_constant(recent) and not differ):
            raise no_signal_error(recent, siblings=is_tree)

    def _finish(self) -> Metrics:
        """Publish the final weights of all roles, including roles without an optimizer step."""
        self._save()
        report, *_ = [learner.trainer.finish() for learner in self._learners]
        # The stage's result is then the checkpoint of the best step.
        if self._best is not None:
            for learner in self._learners:
                finish_with(learner.trainer.folder, self._updates(self._best, learner))
        self._warn(self._warnings())
        silent = silent_roles([*self._records.values()])
        self._warn([f"{role} is not trained: it acted in no step" for role in silent])
        # A single step's reward is noisy, so the last tenth of the steps is reported.
        tenth = max(self.settings.steps.count // 10, 1)
        steps = [self._records[step] for step in sorted(self._records)]
        rewards = [float(metrics["reward"]) for metrics in steps[-tenth:]]
        return {
            "steps": report.steps,
            "rows": report.rows,
            "trained_tokens": sum(int(metrics["trained_tokens"]) for metrics in steps),
            "dropped": report.dropped_too_long + report.dropped_empty,
            "reward": fmean(rewards),
            "weights": weight_hash(report.final),
            **({} if self._best is None else {"best_step": self._best}),
        }


async def score_of(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    """Judge paths of a search by their score: the rewards of a step are computed from the record."""
    return [Judgment(outcome.score or 0.0) for outcome in outcomes]


def step_metrics(
    samples: StepSamples, batch: StepBatch, updates: Mapping[str, float], failed: int
) -> dict[str, float | int | str]:
    """Return the metrics of a step; means are over all graded paths, also those that are not trained on."""
    paths = samples.paths if samples.measured is None else samples.measured
    rewards = [total for path in paths if (total := path.sampled.total) is not None]
    # Several agents of an episode have a path each, but share one outcome. Equal rollouts of a tree
    # share a leaf, too, and each counts.
    outcomes = {(path.outcome.leaf, path.outcome.sample): path.outcome for path in paths}.values()
    thought = _mean([float(path.thought_tokens) for path in paths])
    ungraded = {path.outcome.leaf for path in paths if path.sampled.total is None}
    return {
        "reward": _mean(rewards),
        "reward_error": standard_error(rewards),
        "score": _mean([outcome.score for outcome in outcomes if outcome.score is not None]),
        "tokens": _mean([float(path.tokens) for path in paths]),
        **({"thought_tokens": thought} if thought else {}),
        "turns": _mean([float(path.turns) for path in paths]),
        "truncated": _mean([float(outcome.ending.truncated) for outcome in outcomes]),
        "failed_share": (failed + len(ungraded)) / max(samples.sample_count, 1),
        **distribution_metrics(paths),
        "groups_informative": len(batch.informative),
        **batch.counts,
        "paths": len(batch.paths),
        "tasks": len(samples.tasks),
        "samples": samples.sample_count,
        "samples_failed": failed,
        "rounds": samples.rounds,
        **updates,
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
