"""What Optima's stages read: tasks, format prompts, rewards and values from the record, rows and pairs."""

import random
from collections.abc import Iterator, Mapping
from functools import partial

from coterie.engines.inprocess import InProcessEngine
from coterie.environments.talk import drop_format
from coterie.environments.traits import agents_of, formats_of
from coterie.models.loading import LoadedModel
from coterie.recipes.base import Recipe
from coterie.recipes.optima.reward import reward_of, score
from coterie.recipes.optima.settings import (
    DPORoundSettings,
    OptimaDPOSettings,
    OptimaSettings,
    TrainingKind,
)
from coterie.rewards.dialogue_reward import Reward, RewardSettings
from coterie.rollout.episodes import Episode
from coterie.rollout.search import Value
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done
from coterie.runs.selected import selected
from coterie.training.settings import TrainingSettings
from coterie.trajectories.pair import Pair, turn_pair
from coterie.trajectories.row import Row, rows
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import digest
from coterie.trajectories.view import Edit, View, recontext, view

DROP_FORMAT = "drop_format"
"""Name of the recontext rule of iteration 0."""


class OptimaData(Recipe):
    """The data of a run under given settings."""

    settings: OptimaSettings
    edits: Mapping[str, Edit] = {DROP_FORMAT: drop_format}

    def __init__(self, settings: OptimaSettings) -> None:
        super().__init__(settings)
        self.agents = agents_of(self.environment)
        for rule in (settings.reward, *_trees(settings)):
            rule.custom_terms()

    def trainings(self) -> dict[str, TrainingSettings]:
        own = {"train": self.settings.train}
        if isinstance(self.settings, OptimaDPOSettings):
            own["dpo.train"] = self.settings.dpo.train
        return own

    def training_tasks(self) -> int:
        return max(self.settings.draws())

    def dialogues(self) -> int:
        """Samples of each task, or rollouts of each tree and of the probe."""
        found = 0
        for i in range(self.settings.iterations):
            each = self.settings.rollout.samples
            if self.is_dpo(i):
                search = self.dpo_settings.search
                each, found = search.searches * search.rollouts, found + self.dpo_settings.probe
            found += each * len(self.train_tasks(i))
        return found

    @property
    def dpo_settings(self) -> DPORoundSettings:
        assert isinstance(self.settings, OptimaDPOSettings), "this method has no iterations of DPO"
        return self.settings.dpo

    def kind(self, iteration: int) -> TrainingKind:
        return self.settings.kinds()[iteration]

    def is_dpo(self, iteration: int) -> bool:
        return iteration < self.settings.iterations and self.kind(iteration) == "dpo"

    # -- tasks and episodes ---------------------------------------------------------------------

    def train_tasks(self, iteration: int) -> list[Task]:
        """New training tasks for every iteration: one cursor goes through those of the data set."""
        counts = self.settings.draws()
        before, count = counts[:iteration], counts[iteration]
        return self.environment.tasks("train", count, self.settings.seed, before)

    def episodes(self, iteration: int) -> list[Episode]:
        """N dialogues a task; in iteration 0 each under a format prompt."""
        return [
            Episode(task, sample, iteration, "rollout", self._format(task, sample, iteration))
            for task in self.train_tasks(iteration)
            for sample in range(self.settings.rollout.samples)
        ]

    def draws(self, iteration: int) -> list[int]:
        """What decides which tasks a rollout has: the counts of its draw and of those before it."""
        return self.settings.draws()[: iteration + 1]

    def context(self, iteration: int) -> str | None:
        """The recontext rule under which an iteration's dialogues are scored and trained on."""
        pool = self.settings.rollout.format_pool and bool(formats_of(self.environment))
        return DROP_FORMAT if iteration == 0 and pool else None

    def _format(self, task: Task, sample: int, iteration: int) -> str | None:
        if self.context(iteration) is None:
            return None
        key = digest("format", self.settings.seed, iteration, task.id, sample)
        return random.Random(key).choice(formats_of(self.environment))

    # -- rewards and values ---------------------------------------------------------------------

    def rule(self, iteration: int) -> RewardSettings:
        return self.dpo_settings.reward if self.is_dpo(iteration) else self.settings.reward

    async def scored(self, engine: InProcessEngine, tree: Tree) -> Done:
        """R of every dialogue of a tree; losses are under the engine's frozen base."""
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        context = self.context(tree.iteration)

        def show(leaf: str, agent: str) -> View:
            return self.seen(tree, Selection(leaf, agent, context), engine.loaded)

        return await score(engine, tree, show, self.settings.reward, settings, self.agents)

    def rewards(self, run: Run, iteration: int) -> dict[str, list[Reward]]:
        """Rewards by task, as computed under the current settings; failed tasks are left out."""
        settings = self.fingerprint(Step(iteration, "reward"))
        parts = {
            name: run.store.credit(settings, name, iteration=iteration, stage="rollout")
            for name in self.rule(iteration).names()
        }
        return {
            tree.task: [
                reward_of(outcome.leaf, outcome.sample, parts)
                for outcome, _ in tree.trajectories()
                if outcome.leaf in parts["task"]
            ]
            for tree in run.store.trees(iteration, "rollout")
        }

    def values(self, run: Run, tree: Tree) -> dict[str, Value]:
        """Values of the nodes of a tree, as the reward stage left them."""
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        credit = partial(run.store.credit, settings, nodes=(tree.root, *tree.turns))
        means, visits = credit("value"), credit("visits")
        return {node: Value(mean, round(visits[node])) for node, mean in means.items()}

    # -- what is trained on ---------------------------------------------------------------------

    def rows(self, run: Run, iteration: int, policy: LoadedModel) -> list[Row]:
        """The training rows of an iteration, in the order of selection."""
        found: list[Row] = []
        for tree, selection in selected(run, iteration):
            shown = self.seen(tree, selection, policy)
            found.extend(row for row in rows(shown, selection.weight) if row.targets)
        return found

    def pairs(self, run: Run, iteration: int) -> Iterator[Pair]:
        """The selected pairs of an iteration, those of one tree as a group."""
        for tree, selection in selected(run, iteration):
            assert selection.rejected is not None, "an iteration of DPO selects pairs"
            chosen = view(tree, selection.leaf, selection.agent)
            rejected = view(tree, selection.rejected, selection.agent)
            yield turn_pair(chosen, rejected, weight=selection.weight, group=tree.task)

    def seen(self, tree: Tree, selection: Selection, model: LoadedModel) -> View:
        """What an agent saw of a dialogue, without the format prompt."""
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


def _trees(settings: OptimaSettings) -> list[RewardSettings]:
    return [settings.dpo.reward] if isinstance(settings, OptimaDPOSettings) else []
