"""The step critic of ``sweet_rl``: its training, and its advantages of candidates. Kinds: see ``CriticSettings``."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from coterie.engines.chat_model import open_chat
from coterie.environments.coding import CRITIC
from coterie.environments.person import REFERENCE
from coterie.models.heads import add_head, load_head
from coterie.models.loading import LoadedModel
from coterie.models.packing import CostRule
from coterie.progress import Progress
from coterie.recipes.base import trained_metrics
from coterie.rewards.judge import Judge, Situation
from coterie.rewards.step_critic import HeadCritic, LikelihoodCritic, StepCritic
from coterie.runs.folder import Run
from coterie.training.classifier import Classifier
from coterie.training.dpo import DPO
from coterie.training.loop import train
from coterie.training.reference import with_reference
from coterie.training.regression import Regression
from coterie.trajectories.item import Metrics
from coterie.trajectories.labelled import Labelled, labelled
from coterie.trajectories.pair import Pair
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn

if TYPE_CHECKING:
    from coterie.recipes.sweet_rl import SweetRL

FIRST = 0
"""The round in which it is trained."""


class TurnCritic(Protocol):
    """Scores candidates of turns of one task."""

    async def advantages(
        self, task: Task, tree: Tree, groups: Sequence[Sequence[Turn]]
    ) -> list[list[float]]:
        """A number for each candidate of each turn, higher for better. Raises ``EngineError``."""
        ...


@dataclass(frozen=True, slots=True)
class TrainedCritic:
    """A critic of tokens, shown each turn's prompt as the settings say."""

    recipe: "SweetRL"
    step: StepCritic
    model: LoadedModel
    """Renders prompts."""

    async def advantages(
        self, task: Task, tree: Tree, groups: Sequence[Sequence[Turn]]
    ) -> list[list[float]]:
        """Those of all turns at once."""
        scored = (
            self.step.advantages(
                self.recipe.context(task, tree, group[0], self.model), [turn.ids for turn in group]
            )
            for group in groups
        )
        return list(await asyncio.gather(*scored))


@dataclass(frozen=True, slots=True)
class JudgeOfTurns:
    """A chat model that compares candidates in words."""

    recipe: "SweetRL"
    judge: Judge

    async def advantages(
        self, task: Task, tree: Tree, groups: Sequence[Sequence[Turn]]
    ) -> list[list[float]]:
        """Shares of comparisons won."""
        return list(await asyncio.gather(*(self._of_turn(task, tree, one) for one in groups)))

    async def _of_turn(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        world = self.recipe.environment
        parent = group[0].parent
        seen = self.recipe.settings.critic.privileged
        situation = Situation(
            f"{task.id}/{parent}",
            str(task.public["question"]),
            task.secrets[REFERENCE].reveal(CRITIC) if seen else "(not shown)",
            world.transcript(tree.path(parent)),
        )
        return await self.judge.wins(situation, [world.visible(turn.text) for turn in group])


@asynccontextmanager
async def open_critic(recipe: "SweetRL", run: Run) -> AsyncIterator[TurnCritic]:
    """The critic that round 0 left, or the judge."""
    s = recipe.settings.critic
    if s.kind == "judge":
        told = s.judge
        if told.url is None and told.model == "policy":
            told = told.model_copy(update={"model": recipe.settings.model})
        async with open_chat(told, run.folder / "judge") as chat:
            yield JudgeOfTurns(
                recipe, Judge(lambda asked: chat.ask(asked, 0), seed=recipe.settings.seed)
            )
        return
    critic = recipe.load_policy(run, FIRST + 1)
    if s.kind == "likelihood":
        engines = recipe.engines(run)
        step: StepCritic = LikelihoodCritic(
            engines.embedded(critic, FIRST + 1),
            engines.embedded(recipe.load_policy(run, 0), 0),
            "none" if s.objective.normalise == "none" else "tokens",
        )
    else:
        load_head(critic.model, run.training_folder(FIRST) / "final")
        rule = CostRule.of(critic.model)
        step = HeadCritic(critic, "mean" if s.kind == "regression" else "last", rule)
    yield TrainedCritic(recipe, step, critic)


def train_critic(
    recipe: "SweetRL", run: Run, model: LoadedModel, pairs: Sequence[Pair], progress: Progress
) -> Metrics:
    """Train the critic of round 0 on pairs of dialogues (a value function: on all dialogues)."""
    s = recipe.settings.critic
    own, folder = recipe.seeded(s.train, FIRST), run.training_folder(FIRST)
    if s.kind == "classifier":
        return _foretell(recipe, run, model, progress)
    if s.kind == "regression":
        add_head(model.model)
        report = train(model.model, pairs, own, folder, objective=Regression(), progress=progress)
    else:
        known = with_reference(
            model.model,
            pairs,
            own,
            folder / "reference",
            normalise=s.objective.normalise,
            progress=progress,
        )
        report = train(
            model.model, known, own, folder, objective=DPO(s.objective), progress=progress
        )
    sides = (side for pair in pairs for side in (pair.chosen, pair.rejected))
    return trained_metrics(
        report, sum(row.target_count for side in sides for row in side) * own.epochs
    )


def _foretell(recipe: "SweetRL", run: Run, model: LoadedModel, progress: Progress) -> Metrics:
    own, folder = recipe.seeded(recipe.settings.critic.train, FIRST), run.training_folder(FIRST)
    items: list[Labelled] = []
    for tree in run.store.trees(FIRST, "rollout"):
        for outcome, _ in tree.trajectories():
            shown = recipe.shown(run, tree, outcome.leaf, model)
            items.append(labelled(shown, outcome.score >= 1, group=tree.task))
    add_head(model.model)
    report = train(model.model, items, own, folder, objective=Classifier(), progress=progress)
    targets = sum(row.target_count for item in items for row in item.rows)
    return trained_metrics(report, targets * own.epochs)
