"""What ``optima``'s iterations of DPO need of trees: rewards while they grow, and their record."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.run_engines import POLICY
from coterie.progress import Progress
from coterie.recipes.optima.data import OptimaData
from coterie.recipes.optima.reward import said
from coterie.rewards.combined import RewardSettings, Sampled, largest_loss, rewards
from coterie.rewards.conduct import leaks, repeats
from coterie.rewards.likelihood import turn_losses
from coterie.rollout.driver import Driver
from coterie.rollout.episodes import Episode, dialogue_tokens
from coterie.rollout.grower import Rollout
from coterie.rollout.search import Value, growth, node_values
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judged, TreeSearch
from coterie.runs.folder import Run, Step
from coterie.runs.growing import Growing, grow_trees
from coterie.runs.items import Done, going_on
from coterie.selection.pairs import PairSettings, sibling_pairs
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Outcome, Tree
from coterie.trajectories.view import View, view

PROBE = "probe"
"""The stage under which the dialogues are kept that say how long dialogues are."""


class TreeJudge:
    """Rewards of dialogues as their tree grows, by equation 1; keeps each turn's loss.

    Tokens are over ``max_tokens``; losses are under ``base``; ``settings`` keys the credit.
    """

    def __init__(
        self,
        rule: RewardSettings,
        max_tokens: int,
        base: InProcessEngine,
        agents: tuple[str, ...],
        *,
        settings: str,
    ) -> None:
        self.rule = rule
        self.max_tokens = max_tokens
        self.base = base
        self.agents = agents
        self.settings = settings
        self.losses: dict[str, float] = {}
        """By turn, in nats a token under the frozen base."""

    async def __call__(self, tree: Tree, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Rewards of finished paths; raises ``EngineError``."""
        new = await self._losses(tree, outcomes) if self.rule.lambda_loss else {}
        self.losses |= new
        paths = [tree.path(outcome.leaf) for outcome in outcomes]
        samples = [
            Sampled(
                outcome,
                dialogue_tokens(path),
                largest_loss(self.losses, [turn.id for turn in said(path)]) if self.losses else 0.0,
                leaks(said(path), self.agents),
                repeats(said(path)),
                tuple(path),
            )
            for outcome, path in zip(outcomes, paths, strict=True)
        ]
        found = []
        for reward in rewards(samples, self.rule, max_tokens=self.max_tokens):
            terms = reward.terms.items()
            own = [Credit(reward.leaf, name, value, self.settings) for name, value in terms]
            found.append(Judged(reward.total, tuple(own)))
        if found and new:
            nll = tuple(Credit(turn, "nll", loss, self.settings) for turn, loss in new.items())
            found[0] = Judged(found[0].reward, found[0].credit + nll)
        return found

    async def _losses(self, tree: Tree, outcomes: Sequence[Outcome]) -> dict[str, float]:
        views: list[View] = []
        for outcome in outcomes:
            path = tree.path(outcome.leaf)
            speakers = {t.speaker.name: None for t in said(path) if t.id not in self.losses}
            views += [view(tree, outcome.leaf, agent) for agent in speakers]
        found = await turn_losses(self.base, views) if views else {}
        return {turn: loss for turn, loss in found.items() if turn not in self.losses}


async def probe(recipe: OptimaData, run: Run, iteration: int, progress: Progress) -> int:
    """The tokens that the token term is relative to: a percentile of fresh dialogues, plus 1."""
    s, tasks = recipe.dpo_settings, recipe.train_tasks(iteration)
    episodes = [
        Episode(tasks[number % len(tasks)], number // len(tasks), iteration, PROBE)
        for number in range(s.probe)
    ]
    await recipe.play(run, episodes, s.temperature, recipe.settings.rollout.top_p, progress)
    found = run.store.metrics(iteration, PROBE).values()
    lengths = [int(metrics["tokens"]) for metrics in found if int(metrics["tokens"])]
    return int(np.percentile(lengths, s.percentile)) + 1


async def grow(
    recipe: OptimaData, run: Run, iteration: int, max_tokens: int, progress: Progress
) -> None:
    """Grow the trees of an iteration, by its policy; tokens are relative to ``max_tokens``."""
    s, tasks = recipe.dpo_settings, recipe.train_tasks(iteration)
    sampler = await recipe.sampler(run, iteration, s.temperature, recipe.settings.rollout.top_p)
    base = recipe.models(run).embedded(POLICY, 0)
    settings = recipe.fingerprint(Step(iteration, "reward"))
    judge = TreeJudge(s.reward, max_tokens, base, recipe.agents, settings=settings)
    judge.losses = run.store.credit(settings, "nll", iteration=iteration, stage="rollout")
    run.store.put_tasks(tasks)
    stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
    growing = Growing(run.store, iteration, progress, lambda: stats.sampled_tokens - before)
    rule, samplers = growth(s.search), dict.fromkeys(recipe.agents, sampler)

    def search(driver: Driver, sessions: Sessions, task: Task) -> TreeSearch:
        tree, known = growing.begun(task)
        branches = driver.branches(task, tree, sessions)
        return TreeSearch(branches, samplers, judge, rule, known, seed=driver.seed)

    title = f"searches {iteration}"
    progress.start(growing.left(tasks, s.search.searches), title)
    with going_on(title, progress):
        async with recipe.cast(run) as cast:
            driver = cast.driver(samplers, recipe.settings.seed)
            await grow_trees(driver, growing, tasks, search, s.trees_in_flight)


async def valued(
    played: Mapping[str, Sequence[Rollout]], settings: str, agents: tuple[str, ...], tree: Tree
) -> Done:
    """The values of a tree's nodes as credit, keyed by ``settings``; ``played`` are rollouts by task."""
    credit = [
        Credit(node, name, number, settings)
        for node, value in node_values(tree, played[tree.task]).items()
        for name, number in (("value", value.mean), ("visits", float(value.visits)))
    ]
    paths = [path for _, path in tree.trajectories()]
    counts = {
        "trajectories": len(paths),
        "truncated": sum(outcome.ending == LENGTH for outcome in tree.outcomes.values()),
        "leaks": sum(leaks(said(path), agents) for path in paths),
        "repeats": sum(repeats(said(path)) for path in paths),
    }
    return Done(ItemKey(tree.iteration, "reward", tree.task), counts, credit=tuple(credit))


def siblings(
    tree: Tree, values: Mapping[str, Value], settings: PairSettings
) -> Iterator[Selection]:
    for pair in sibling_pairs(tree, values, settings, _mean_scores(tree).__getitem__):
        yield Selection(pair.chosen.id, pair.chosen.speaker.name, rejected=pair.rejected.id)


def _mean_scores(tree: Tree) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for outcome, path in tree.graded():
        for turn in path:
            found.setdefault(turn.id, []).append(outcome.score or 0.0)
    return {node: sum(scores) / len(scores) for node, scores in found.items()}
