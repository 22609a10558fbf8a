"""The step critic of ``sweet_rl``: its advantages of candidates. Kinds: see ``CriticSettings``."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from coterie.engines.chat_model import open_chat
from coterie.environments.coding import CRITIC, Coding
from coterie.environments.person import REFERENCE
from coterie.models.heads import load_head
from coterie.models.loading import LoadedModel
from coterie.models.packing import CostRule
from coterie.recipes.base import PolicyRecipe
from coterie.recipes.sweet_data import FIRST, critic_prompt
from coterie.recipes.sweet_settings import POLICY, CriticSettings
from coterie.rewards.judge import Judge, Situation
from coterie.rewards.step_critic import HeadCritic, LikelihoodCritic, StepCritic
from coterie.runs.folder import Run
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn


class TurnCritic(Protocol):
    """Scores candidates of turns of one task."""

    @property
    def counts(self) -> dict[str, int]:
        """What is to be remembered of how it went."""
        ...

    async def advantages(
        self, task: Task, tree: Tree, groups: Sequence[Sequence[Turn]]
    ) -> list[list[float]]:
        """A number for each candidate of each turn, higher for better. Raises ``EngineError``."""
        ...


@dataclass(frozen=True, slots=True)
class TrainedCritic:
    """A critic of tokens, shown each turn's prompt as the settings say."""

    step: StepCritic
    model: LoadedModel
    """Renders prompts."""
    privileged: bool
    """Whether these hold the reference."""

    @property
    def counts(self) -> dict[str, int]:
        """Nothing."""
        return {}

    async def advantages(
        self, task: Task, tree: Tree, groups: Sequence[Sequence[Turn]]
    ) -> list[list[float]]:
        """Those of all turns at once."""
        scored = (
            self.step.advantages(
                critic_prompt(task, tree, group[0], self.model, privileged=self.privileged),
                [turn.ids for turn in group],
            )
            for group in groups
        )
        return list(await asyncio.gather(*scored))


@dataclass(frozen=True, slots=True)
class JudgeOfTurns:
    """A chat model that compares candidates in words."""

    world: Coding
    judge: Judge
    privileged: bool
    """Whether it is shown the reference."""

    @property
    def counts(self) -> dict[str, int]:
        """Comparisons in this process, and how many of them were no verdict, which is a tie."""
        return {"comparisons": self.judge.comparisons, "unreadable": self.judge.unreadable}

    async def advantages(
        self, task: Task, tree: Tree, groups: Sequence[Sequence[Turn]]
    ) -> list[list[float]]:
        """Shares of comparisons won."""
        return list(await asyncio.gather(*(self._of_turn(task, tree, one) for one in groups)))

    async def _of_turn(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        parent = group[0].parent
        situation = Situation(
            f"{task.id}/{parent}",
            str(task.public["question"]),
            task.secrets[REFERENCE].reveal(CRITIC) if self.privileged else "(not shown)",
            self.world.transcript(tree.path(parent)),
        )
        return await self.judge.wins(situation, [self.world.visible(turn.text) for turn in group])


@asynccontextmanager
async def open_critic(
    recipe: PolicyRecipe, run: Run, s: CriticSettings, world: Coding
) -> AsyncIterator[TurnCritic]:
    """The critic that round 0 left, or the judge."""
    if s.kind == "judge":
        told = s.judge
        if told.url is None and told.model == POLICY:
            told = told.model_copy(update={"model": recipe.settings.model})
        async with open_chat(told, run.folder / "judge") as chat:
            judge = Judge(lambda asked: chat.ask(asked, 0), seed=recipe.settings.seed)
            yield JudgeOfTurns(world, judge, s.privileged)
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
    yield TrainedCritic(step, critic, s.privileged)
