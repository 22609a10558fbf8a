"""Optima (arXiv 2410.08115): agents learn to talk shorter and better. Method ``isft``, and what the
others stand on (:mod:`coterie.recipes.optima_dpo`).

    policy_0 = base
    for i = 0 .. iterations-1:                                           (algorithm 1)
        rollout   N dialogues a task by policy_i; for i = 0 each under a drawn format prompt
        reward    R = R_task - lambda_token * tokens / max tokens + lambda_loss / R_loss  (equation 1)
        select    each task's best dialogue, if R >= threshold; the top share of them
        train     SFT on each agent's own turns, format prompts dropped -> policy_{i+1}
    evaluate      every policy_i, greedily, on held-out tasks

Deviations from the released code, each on purpose: the partner's turns are ``user`` messages
(templates that want alternation work, and speakers need no name prefix); R_loss is computed given
the turn's context, as in the paper (the code scores each turn alone); the threshold comes before
the top share, as in the paper.
"""

import random
from functools import cached_property
from pathlib import Path

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.engines.run_engines import RunEngines
from coterie.environments.dialogue import drop_format
from coterie.environments.registry import content, environment
from coterie.errors import UserError
from coterie.models.loading import LoadedModel, identity, is_adapter, load, reload
from coterie.progress import Progress
from coterie.recipes.optima_reward import COUNTS, PARTS, Scored, reward_of, score
from coterie.recipes.optima_settings import Kind, OptimaSettings
from coterie.recipes.plan import plan
from coterie.rewards.combined import Reward
from coterie.rollout.episodes import Episode, Player
from coterie.rollout.flight import in_flight
from coterie.rollout.voices import TokenVoice
from coterie.runs.folder import Run, Step
from coterie.runs.play import play, summary
from coterie.selection.demonstrations import best_demonstrations, random_demonstrations
from coterie.training.checkpoint import weight_hash
from coterie.training.loop import train
from coterie.training.record import TrainingReport
from coterie.training.settings import TrainingSettings
from coterie.trajectories.row import Row, rows
from coterie.trajectories.store import ItemKey, Metrics, Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import digest
from coterie.trajectories.view import View, recontext, view

NAME = OptimaSettings.recipe
STAGES = ("evaluate", "rollout", "reward", "select", "train")
DROP_FORMAT = "drop_format"
TREES_IN_FLIGHT = 64


class Optima:
    """The recipe under given settings; those of ``optima/isft`` make every iteration one of SFT."""

    def __init__(self, settings: OptimaSettings) -> None:
        self.settings = settings
        self.name = settings.recipe
        self.environment = environment(settings.dataset, settings.data)
        self._engines: RunEngines | None = None

    # -- what the loop asks -------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """Evaluate, rollout, reward, select, train; and once more evaluate at the end."""
        count = self.settings.iterations
        return [Step(i, s) for i in range(count) for s in STAGES] + [Step(count, "evaluate")]

    def kind(self, iteration: int) -> Kind:
        """What an iteration is."""
        return self.settings.kinds()[iteration]

    def needs(self, step: Step) -> Step | None:
        """Rollouts and evaluation of iteration i need the training of i - 1."""
        before = {"reward": "rollout", "select": "reward", "train": "select"}
        if step.stage in before:
            return Step(step.iteration, before[step.stage])
        return Step(step.iteration - 1, "train") if step.iteration else None

    def fingerprint(self, step: Step) -> str:
        """Hash of the settings that the step's own results depend on."""
        s = self.settings
        common = (self._model, s.dataset, s.data.context, self._content, s.seed)
        return digest(step.stage, *common, *self.depends(step))[:16]

    def depends(self, step: Step) -> tuple[object, ...]:
        """The settings of a step that are its own."""
        s = self.settings
        own: dict[str, tuple[object, ...]] = {
            "evaluate": (s.evaluate.fingerprint(), s.rollout.max_tokens, *s.engine.identity()),
            "rollout": (s.rollout.fingerprint(), *s.engine.identity()),
            "reward": (s.reward.fingerprint(),),
            "select": (s.select.fingerprint(),),
            "train": (s.train.identity(), s.from_initial),
        }
        return own[step.stage]

    @cached_property
    def _model(self) -> str:
        """What the base model is, wherever it lies."""
        return identity(self.settings.model)

    @cached_property
    def _content(self) -> str:
        """What the data set's files hold, wherever they lie."""
        return content(self.settings.dataset, self.settings.data)

    def check(self) -> None:
        """Load what the run needs and refuse what can't work, in seconds."""
        plan(self.settings)

    def do(self, run: Run, step: Step, progress: Progress) -> Metrics:
        """Do one step; finished items of an interrupted one are kept."""
        playing = {"evaluate": self.evaluate, "rollout": self.rollout, "reward": self.reward}
        if step.stage in ("reward", "train"):
            self.engines(run).make_room()
        if step.stage in playing:
            return self.engines(run).run(playing[step.stage](run, step.iteration, progress))
        if step.stage == "select":
            return self.select(run, step.iteration)
        return self.train(run, step.iteration, progress)

    def close(self) -> None:
        """End the servers of its steps."""
        if self._engines is not None:
            self._engines.close()
            self._engines = None

    # -- the algorithm ------------------------------------------------------------------------

    async def rollout(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """N dialogues a task by the newest policy; in iteration 0 each under a format prompt."""
        s = self.settings.rollout
        episodes = [
            Episode(task, sample, iteration, "rollout", self._format(task, sample, iteration))
            for task in self.train_tasks(iteration)
            for sample in range(s.samples)
        ]
        temperature = s.temperature if iteration else s.first_temperature
        return await self._play(run, episodes, temperature, s.top_p, progress)

    async def evaluate(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """One dialogue of policy ``iteration`` on each held-out task."""
        tasks = self.heldout_tasks()
        episodes = [Episode(task, 0, iteration, "evaluate") for task in tasks]
        return await self._play(run, episodes, self.settings.evaluate.temperature, 1.0, progress)

    async def reward(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """R of every dialogue, its parts, and the frozen base's loss of every turn, as credit."""
        finished = run.store.finished_keys(iteration, "reward")
        trees = [
            tree
            for tree in run.store.trees(iteration, "rollout")
            if (tree.task, "") not in finished
        ]
        progress.start(len(trees), f"reward {iteration}")
        base = self.load_policy(run, 0)
        engine = self.engines(run).embedded(base, 0)
        scoring = (self._score(engine, base, tree) for tree in trees)
        async for scored in in_flight(scoring, TREES_IN_FLIGHT):
            key = ItemKey(iteration, "reward", scored.task)
            run.store.finish(
                key, credit=scored.credit, metrics=scored.counts, failure=scored.failure
            )
            progress.advance(1)
        progress.close()
        items = [m for key, m in run.store.metrics(iteration, "reward").items() if key.task]
        return {name: sum(int(metrics[name]) for metrics in items) for name in COUNTS}

    def select(self, run: Run, iteration: int) -> Metrics:
        """Each task's best dialogue above the threshold, the top share of them, both views."""
        found = self.rewards(run, iteration)
        s = self.settings.select
        if s.rule == "best":
            chosen = best_demonstrations(found, s)
        else:
            seed = int(digest("select", self.settings.seed, iteration)[:15], 16)
            chosen = random_demonstrations(found, s.counts[iteration], seed)
        context = DROP_FORMAT if self._has_formats(iteration) else None
        agents = self.environment.agents
        references = [Selection(r.leaf, agent, context) for _, r in chosen for agent in agents]
        if not run.store.finished(ItemKey(iteration, "select", "")):
            run.store.select(iteration, "select", references)
        return {"tasks": len(found), "selected": len(chosen)}

    def train(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """SFT on each agent's own turns of the selected dialogues."""
        policy = self.load_policy(run, 0 if self.settings.from_initial else iteration)
        trained = list(self.rows(run, iteration, policy))
        if not trained:
            raise UserError(
                f"nothing was selected in iteration {iteration}: no dialogue has a reward of at "
                f"least select.threshold={self.settings.select.threshold}",
                "lower select.threshold with --fork FOLDER, or look at the rewards in the report",
            )
        folder = run.training_folder(iteration)
        own = self._seeded(self.settings.train, iteration)
        report = train(policy.model, trained, own, folder, progress=progress)
        return trained_metrics(report, sum(row.target_count for row in trained) * own.epochs)

    # -- its data -----------------------------------------------------------------------------

    def train_tasks(self, iteration: int) -> list[Task]:
        """New training tasks for every iteration."""
        count, seed = self.settings.rollout.tasks, self.settings.seed
        return self.environment.tasks("train", count, seed, iteration)

    def heldout_tasks(self) -> list[Task]:
        """The same held-out tasks for every iteration."""
        return self.environment.tasks("heldout", self.settings.evaluate.tasks, self.settings.seed)

    def rewards(self, run: Run, iteration: int) -> dict[str, list[Reward]]:
        """Rewards by task, as computed under the current settings; failed tasks are left out."""
        settings = self.fingerprint(Step(iteration, "reward"))
        parts = [
            run.store.credit(settings, name, iteration=iteration, stage="rollout") for name in PARTS
        ]
        return {
            tree.task: [
                reward_of(outcome.leaf, outcome.sample, parts)
                for outcome, _ in tree.trajectories()
                if outcome.leaf in parts[0]
            ]
            for tree in run.store.trees(iteration, "rollout")
        }

    def rows(self, run: Run, iteration: int, policy: LoadedModel) -> list[Row]:
        """The training rows of an iteration, in the order of selection."""
        trees: dict[str, Tree] = {}
        found: list[Row] = []
        for task, selection in run.store.selections(iteration, "select"):
            if task not in trees:
                trees = {task: run.store.tree(iteration, "rollout", task)}
            shown = self._view(trees[task], selection, policy)
            found.extend(row for row in rows(shown, selection.weight) if row.targets)
        return found

    def engines(self, run: Run) -> RunEngines:
        """What its policies speak by; open until :meth:`close`."""
        if self._engines is None:
            s = self.settings
            self._engines = RunEngines(s.engine, s.model, run.folder / "servers")
        return self._engines

    def versions(self, run: Run) -> list[int]:
        """The policies that a run has: the base, and what each finished training left."""
        count = self.settings.iterations
        return [0, *(i + 1 for i in range(count) if run.is_finished(Step(i, "train")))]

    def policy_path(self, run: Run, version: int) -> Path | str:
        """Where policy ``version`` is: the base, or what training ``version - 1`` left."""
        return run.training_folder(version - 1) / "final" if version else self.settings.model

    def load_policy(self, run: Run, version: int) -> LoadedModel:
        """Policy ``version`` with its tokenizer and renderer; a LoRA adapter is merged."""
        path, device = self.policy_path(run, version), self.settings.engine.device_name
        if not is_adapter(path):
            return load(path, device=device)
        loaded = load(self.settings.model, device=device)
        reload(loaded, path)
        return loaded

    # -- details ------------------------------------------------------------------------------

    async def _play(
        self,
        run: Run,
        episodes: list[Episode],
        temperature: float,
        top_p: float,
        progress: Progress,
    ) -> Metrics:
        iteration, stage = episodes[0].iteration, episodes[0].stage
        voice = await self.voice(run, iteration, temperature, top_p)
        player = Player(self.environment, voice, self.settings.seed)
        stats = voice.engine.stats
        await play(run.store, player, episodes, progress, lambda: stats.sampled_tokens)
        return summary(run.store, iteration, stage)

    async def voice(
        self, run: Run, iteration: int, temperature: float, top_p: float = 1.0
    ) -> TokenVoice:
        """What the agents of policy ``iteration`` speak by."""
        most, timeout = self.settings.rollout.max_tokens, self.settings.engine.timeout
        sampling = Sampling(temperature, top_p, most, (), timeout)
        path = self.policy_path(run, iteration)
        policy = await self.engines(run).speak(
            iteration, path, lambda: self.load_policy(run, iteration)
        )
        return TokenVoice(policy.engine, policy.renderer.render, sampling, policy.context_length)

    async def _score(self, engine: InProcessEngine, base: LoadedModel, tree: Tree) -> Scored:
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        context = DROP_FORMAT if self._has_formats(tree.iteration) else None

        def show(leaf: str, agent: str) -> View:
            return self._view(tree, Selection(leaf, agent, context), base)

        return await score(
            engine, tree, show, self.settings.reward, settings, self.environment.agents
        )

    def _seeded(self, own: TrainingSettings, iteration: int) -> TrainingSettings:
        """A training's settings with a seed of the run and the iteration."""
        return own.model_copy(update={"seed": own.seed + self.settings.seed * 1000 + iteration})

    def _view(self, tree: Tree, selection: Selection, model: LoadedModel) -> View:
        if selection.context is None:
            return view(tree, selection.leaf, selection.agent)
        return recontext(
            tree,
            selection.leaf,
            selection.agent,
            name=selection.context,
            edit=drop_format,
            render=model.renderer.render,
        )

    def _has_formats(self, iteration: int) -> bool:
        pool = self.settings.rollout.format_pool and bool(self.environment.formats)
        return iteration == 0 and pool

    def _format(self, task: Task, sample: int, iteration: int) -> str | None:
        if not self._has_formats(iteration):
            return None
        key = digest("format", self.settings.seed, iteration, task.id, sample)
        return random.Random(key).choice(self.environment.formats)


def trained_metrics(report: TrainingReport, trained_tokens: int) -> Metrics:
    """What to remember of a training."""
    return {
        "rows": report.rows,
        "dropped": report.dropped_too_long + report.dropped_empty,
        "trained_tokens": trained_tokens,
        "steps": report.steps,
        "loss": report.last_loss,
        "weights": weight_hash(report.final),
    }
