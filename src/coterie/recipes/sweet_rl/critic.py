"""Turn-level critics of SWEET-RL that score candidates (kinds: see ``CriticSettings``)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from coterie.engines.chat_model import open_chat
from coterie.engines.endpoint import Utterance
from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.coding import CRITIC, Coding, transcript
from coterie.environments.user_simulator import REFERENCE
from coterie.models.loading import LoadedModel
from coterie.models.packing import CostRule
from coterie.progress import Progress
from coterie.recipes.sweet_rl.data import FIRST, SECOND, SweetData, critic_prompt
from coterie.recipes.sweet_rl.settings import POLICY
from coterie.record.tree import Credit, ItemKey, Metrics, Task, Tree
from coterie.record.turn import Turn
from coterie.rewards.critics import HeadCritic, Judge, LikelihoodCritic, Situation, StepCritic
from coterie.rollout.candidates import candidates
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, on_trees

TREES_IN_FLIGHT = 8
"""Trees scored concurrently."""


class TurnCritic(Protocol):
    """Critic that scores the candidates of a turn."""

    @property
    def counts(self) -> dict[str, int]: ...

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        """Return A(o_t, a_t, c) of each candidate ``a_t`` of one turn. Raises ``EngineError``."""
        ...


async def score_candidates(critic: TurnCritic, task: Task, tree: Tree, settings: str) -> Done:
    """Score a tree's candidates and count the turns that the critic failed on.

    Raises ``EngineGone``.
    """
    groups = candidates(tree)
    results = await asyncio.gather(
        *(critic.advantages(task, tree, group) for group in groups), return_exceptions=True
    )
    credit, errors = [], []
    for group, values in zip(groups, results, strict=True):
        if isinstance(values, EngineError) and not isinstance(values, EngineGone):
            errors.append(values)
        elif isinstance(values, BaseException):
            raise values
        else:
            credit += [
                Credit(turn.id, "advantage", value, settings)
                for turn, value in zip(group, values, strict=True)
            ]
    failure = str(errors[0]) if errors and not credit else None
    metrics = {"turns": len(groups) - len(errors), "unscored": len(errors)}
    return Done(ItemKey(SECOND, "reward", tree.task), metrics, None, tuple(credit), failure)


async def advantages(recipe: SweetData, run: Run, progress: Progress) -> Metrics:
    """Store A(o_t, a_t, c) of every candidate of round 1 as credit."""
    settings = recipe.fingerprint(Step(SECOND, "reward"))
    async with open_critic(recipe, run) as critic:

        async def score(tree: Tree) -> Done:
            return await score_candidates(critic, run.store.task(tree.task), tree, settings)

        title = f"advantages {SECOND}"
        await on_trees(run.store, SECOND, score, progress, title, in_flight=TREES_IN_FLIGHT)
        counts = critic.counts
    tree_metrics = [m for key, m in run.store.metrics(SECOND, "reward").items() if key.task]
    totals = {name: sum(int(m[name]) for m in tree_metrics) for name in ("turns", "unscored")}
    return {**totals, **counts}


@dataclass(frozen=True, slots=True)
class TrainedCritic:
    """Trained critic: ``A = (1/L) sum_l log[pi_theta(a_l | o, a_<l, c) / pi_ref(a_l | o, a_<l, c)]`` (equation 3).

    Regression and classifier critics use their head instead. Without ``privileged`` the prompt omits the reference c.
    """

    step: StepCritic
    model: LoadedModel
    privileged: bool

    @property
    def counts(self) -> dict[str, int]:
        return {}

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        prompt = critic_prompt(task, tree, group[0], self.model, privileged=self.privileged)
        return await self.step.advantages(prompt, [turn.ids for turn in group])


@dataclass(frozen=True, slots=True)
class JudgeCritic:
    """Chat model that compares candidates pairwise."""

    environment: Coding
    judge: Judge
    privileged: bool

    @property
    def counts(self) -> dict[str, int]:
        """Number of comparisons, and of unreadable verdicts, which count as ties."""
        return {"comparisons": self.judge.comparisons, "unreadable": self.judge.unreadable}

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        """Return each candidate's share of comparisons won."""
        parent = group[0].parent
        situation = Situation(
            f"{task.id}/{parent}",
            str(task.public["question"]),
            task.secrets[REFERENCE].reveal(CRITIC) if self.privileged else "(not shown)",
            transcript(self.environment, tree.path(parent)),
        )
        return await self.judge.wins(
            situation, [self.environment.visible(turn.text) for turn in group]
        )


@asynccontextmanager
async def open_critic(recipe: SweetData, run: Run) -> AsyncIterator[TurnCritic]:
    """Open the critic trained in round 0, or the judge."""
    s = recipe.settings.critic
    if s.kind == "judge":
        settings = s.judge
        if settings.url is None and settings.model == POLICY:
            settings = settings.model_copy(update={"model": recipe.settings.model})
        async with open_chat(settings, run.folder / "judge") as chat:

            async def say(messages: list[Utterance]) -> str:
                return (await chat.ask(messages, 0)).text

            judge = Judge(say, seed=recipe.settings.seed)
            yield JudgeCritic(recipe.environment, judge, s.privileged)
        return
    models = recipe.models(run)
    if s.kind == "likelihood":
        engine = models.embedded(CRITIC, FIRST + 1)
        critic = engine.loaded
        step: StepCritic = LikelihoodCritic(
            engine,
            models.embedded(POLICY, 0),
            "none" if s.objective.normalise == "none" else "tokens",
        )
    else:
        critic = models.load(CRITIC, FIRST + 1)
        rule = CostRule.of(critic.model)
        step = HeadCritic(critic, "mean" if s.kind == "regression" else "last", rule)
    yield TrainedCritic(step, critic, s.privileged)
