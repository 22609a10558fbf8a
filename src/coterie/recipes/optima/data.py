"""Tasks, format prompts, rewards, values, rows and pairs of Optima."""

import random
from collections.abc import Iterator, Mapping
from functools import partial

from coterie.engines.inprocess import InProcessEngine
from coterie.environments.protocol import agents_of, formats_of
from coterie.environments.talk import drop_format
from coterie.models.loading import LoadedModel
from coterie.recipes.base import Recipe
from coterie.recipes.optima.reward import score
from coterie.recipes.optima.settings import (
    DPORoundSettings,
    OptimaDPOSettings,
    OptimaSettings,
    TrainingKind,
)
from coterie.record.rows import Edit, Pair, Row, View, recontext, rows, turn_pair, view
from coterie.record.tree import Selection, Task, Tree
from coterie.record.turn import digest
from coterie.rewards.dialogue_reward import Reward, RewardSettings
from coterie.rollout.episodes import Episode
from coterie.rollout.tree_search import Value
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done
from coterie.runs.roles import load_selections
from coterie.training.settings import TrainingSettings

DROP_FORMAT = "drop_format"
"""Recontext rule of iteration 0: prompts without the format prompt."""


class OptimaData(Recipe):
    """Data of the Optima stages."""

    settings: OptimaSettings
    edits: Mapping[str, Edit] = {DROP_FORMAT: drop_format}

    def __init__(self, settings: OptimaSettings) -> None:
        super().__init__(settings)
        self.agents = agents_of(self.environment)
        settings.reward.custom_terms()
        if isinstance(settings, OptimaDPOSettings):
            settings.dpo.reward.custom_terms()

    def trainings(self) -> dict[str, TrainingSettings]:
        trainings = {"train": self.settings.train}
        if isinstance(self.settings, OptimaDPOSettings):
            trainings["dpo.train"] = self.settings.dpo.train
        return trainings

    def training_tasks(self) -> int:
        return max(self.settings.draws())

    def dialogues(self) -> int:
        """Return the number of sampled dialogues and of tree rollouts, including the probe."""
        count = 0
        for i in range(self.settings.iterations):
            each = self.settings.rollout.samples
            if self.is_dpo(i):
                search = self.dpo_settings.search
                each, count = search.searches * search.rollouts, count + self.dpo_settings.probe
            count += each * len(self.train_tasks(i))
        return count

    @property
    def dpo_settings(self) -> DPORoundSettings:
        assert isinstance(self.settings, OptimaDPOSettings), "this method has no DPO iterations"
        return self.settings.dpo

    def kind(self, iteration: int) -> TrainingKind:
        return self.settings.kinds()[iteration]

    def is_dpo(self, iteration: int) -> bool:
        return iteration < self.settings.iterations and self.kind(iteration) == "dpo"

    # -- tasks and episodes ---------------------------------------------------------------------

    def train_tasks(self, iteration: int) -> list[Task]:
        """Return the training tasks of an iteration. Every iteration continues where the last one stopped."""
        counts = self.settings.draws()
        before, count = counts[:iteration], counts[iteration]
        return self.environment.tasks("train", count, self.settings.seed, before)

    def episodes(self, iteration: int) -> list[Episode]:
        """Return N episodes per task; in iteration 0 each has a random format prompt."""
        return [
            Episode(task, sample, iteration, "rollout", self._format(task, sample, iteration))
            for task in self.train_tasks(iteration)
            for sample in range(self.settings.rollout.samples)
        ]

    def draws(self, iteration: int) -> list[int]:
        """Return the numbers of tasks that the iterations up to this one draw."""
        return self.settings.draws()[: iteration + 1]

    def context(self, iteration: int) -> str | None:
        """Return the recontext rule for scoring and training on an iteration's dialogues."""
        pool = self.settings.rollout.format_pool and bool(formats_of(self.environment))
        return DROP_FORMAT if iteration == 0 and pool else None

    def _format(self, task: Task, sample: int, iteration: int) -> str | None:
        if self.context(iteration) is None:
            return None
        key = digest("format", self.settings.seed, iteration, task.id, sample)
        return random.Random(key).choice(formats_of(self.environment))

    # -- rewards and values ---------------------------------------------------------------------

    def rule(self, iteration: int) -> RewardSettings:
        """Return the reward settings of an iteration, which differ between SFT and DPO."""
        return self.dpo_settings.reward if self.is_dpo(iteration) else self.settings.reward

    async def score_tree(self, engine: InProcessEngine, tree: Tree) -> Done:
        """Compute R(tau) of every dialogue of a tree (equation 1) with the frozen base in ``engine``."""
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        context = self.context(tree.iteration)

        def show(leaf: str, agent: str) -> View:
            return self.training_view(tree, Selection(leaf, agent, context), engine.loaded)

        return await score(engine, tree, show, self.settings.reward, settings, self.agents)

    def rewards(self, run: Run, iteration: int) -> dict[str, list[Reward]]:
        """Read the rewards computed under the current settings, by task. Failed tasks are left out."""
        settings = self.fingerprint(Step(iteration, "reward"))
        parts = {
            name: run.store.credit(settings, name, iteration=iteration, stage="rollout")
            for name in self.rule(iteration).names()
        }
        return {
            tree.task: [
                Reward(leaf, one.sample, {name: part[leaf] for name, part in parts.items()})
                for one, _ in tree.trajectories()
                if (leaf := one.leaf) in parts["task"]
            ]
            for tree in run.store.trees(iteration, "rollout")
        }

    def values(self, run: Run, tree: Tree) -> dict[str, Value]:
        """Read the node values of a tree that the reward stage stored."""
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        credit = partial(run.store.credit, settings, nodes=(tree.root, *tree.turns))
        means, visits = credit("value"), credit("visits")
        return {node: Value(mean, round(visits[node])) for node, mean in means.items()}

    # -- training data --------------------------------------------------------------------------

    def rows(self, run: Run, iteration: int, policy: LoadedModel) -> list[Row]:
        """Return the training rows of an iteration in the order of selection."""
        training_rows: list[Row] = []
        for tree, selection in load_selections(run, iteration):
            training_view = self.training_view(tree, selection, policy)
            training_rows.extend(
                row for row in rows(training_view, selection.weight) if row.targets
            )
        return training_rows

    def pairs(self, run: Run, iteration: int) -> Iterator[Pair]:
        """Yield the selected pairs of an iteration; pairs of one tree share a group."""
        for tree, selection in load_selections(run, iteration):
            assert selection.rejected is not None, "an iteration of DPO selects pairs"
            chosen = view(tree, selection.leaf, selection.agent)
            rejected = view(tree, selection.rejected, selection.agent)
            yield turn_pair(chosen, rejected, weight=selection.weight, group=tree.task)

    def training_view(self, tree: Tree, selection: Selection, model: LoadedModel) -> View:
        """Return an agent's view of a dialogue without the format prompt."""
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
