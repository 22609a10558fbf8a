"""Optima (arXiv 2410.08115): agents learn to talk shorter and better. Method ``isft``, and what the
others stand on (:mod:`coterie.recipes.optima.dpo`).

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

from coterie.engines.inprocess import InProcessEngine
from coterie.environments.registry import make_question_environment
from coterie.environments.talk import drop_format
from coterie.environments.traits import QuestionEnvironment, agents_of
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.base import STAGES, PolicyRecipe, trained_metrics
from coterie.recipes.optima.reward import COUNTS, PARTS, ScoredTask, reward_of, score
from coterie.recipes.optima.settings import OptimaSettings, TrainingKind
from coterie.recipes.plan import RunPlan, plan
from coterie.rewards.combined import Reward
from coterie.rollout.episodes import Episode
from coterie.rollout.flight import in_flight
from coterie.runs.folder import Run, Step
from coterie.selection.demonstrations import best_demonstrations, random_demonstrations
from coterie.training.loop import train
from coterie.trajectories.row import Row, rows
from coterie.trajectories.store import ItemKey, Metrics, Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import digest
from coterie.trajectories.view import View, recontext, view

NAME = OptimaSettings.recipe
DROP_FORMAT = "drop_format"
TREES_IN_FLIGHT = 64


class Optima(PolicyRecipe):
    """The recipe under given settings; those of ``optima/isft`` make every iteration one of SFT."""

    settings: OptimaSettings
    environment: QuestionEnvironment

    def __init__(self, settings: OptimaSettings) -> None:
        super().__init__()
        self.settings = settings
        self.name = settings.recipe
        self.environment = make_question_environment(settings.dataset, settings.data)
        self.agents = agents_of(self.environment)

    # -- what the loop asks -------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """Evaluate, rollout, reward, select, train; and once more evaluate at the end."""
        count = self.settings.iterations
        return [Step(i, s) for i in range(count) for s in STAGES] + [Step(count, "evaluate")]

    def kind(self, iteration: int) -> TrainingKind:
        """What an iteration is."""
        return self.settings.kinds()[iteration]

    def needs(self, step: Step) -> list[Step]:
        """Rollouts and evaluation of iteration i need the training of i - 1."""
        before = {"reward": "rollout", "select": "reward", "train": "select"}
        if step.stage in before:
            return [Step(step.iteration, before[step.stage])]
        return [Step(step.iteration - 1, "train")] if step.iteration else []

    def depends(self, step: Step) -> tuple[object, ...]:
        """The settings of a step that are its own."""
        s = self.settings
        own: dict[str, tuple[object, ...]] = {
            "evaluate": (s.evaluate.fingerprint(), s.rollout.max_tokens, *s.engine.identity()),
            "rollout": (self._draws(step), s.rollout.fingerprint(), *s.engine.identity()),
            "reward": (s.reward.fingerprint(),),
            "select": (s.select.fingerprint(),),
            "train": (s.train.identity(), s.from_initial),
        }
        return own[step.stage]

    def plan(self) -> RunPlan:
        """What the run costs."""
        return plan(self.settings)

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
        return await self.play(run, episodes, temperature, s.top_p, progress)

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
        async with in_flight(scoring, TREES_IN_FLIGHT) as results:
            async for scored in results:
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
        agents = self.agents
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
        own = self.seeded(self.settings.train, iteration)
        report = train(policy.model, trained, own, folder, progress=progress)
        return trained_metrics(report, sum(row.target_count for row in trained) * own.epochs)

    # -- its data -----------------------------------------------------------------------------

    def train_tasks(self, iteration: int) -> list[Task]:
        """New training tasks for every iteration: one cursor goes through those of the data set."""
        counts = self.settings.draws()
        before, count = counts[:iteration], counts[iteration]
        return self.environment.tasks("train", count, self.settings.seed, before)

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

    # -- details ------------------------------------------------------------------------------

    def _draws(self, step: Step) -> list[int]:
        """What decides which tasks a rollout has: the counts of its draw and of those before it."""
        return self.settings.draws()[: step.iteration + 1]

    async def _score(self, engine: InProcessEngine, base: LoadedModel, tree: Tree) -> ScoredTask:
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        context = DROP_FORMAT if self._has_formats(tree.iteration) else None

        def show(leaf: str, agent: str) -> View:
            return self._view(tree, Selection(leaf, agent, context), base)

        return await score(engine, tree, show, self.settings.reward, settings, self.agents)

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
