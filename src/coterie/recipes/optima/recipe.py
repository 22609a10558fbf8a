"""Optima (arXiv 2410.08115): agents learn to talk shorter and better.

    policy_0 = base
    for i = 0 .. iterations-1, an iteration of SFT (algorithm 1: isft has no others):
        sample         N dialogues a task by policy_i; for i = 0 each under a drawn format prompt
        reward         R = R_task - lambda_token * tokens / max tokens + lambda_loss / R_loss         (equation 1)
        demonstrate    each task's best dialogue, if R >= threshold; the top share of them
        imitate        SFT on each agent's own turns, format prompts dropped -> policy_{i+1}
    or one of DPO (algorithm 2, idpo: all but the first; algorithm 3, isft_dpo: every other one):
        search         a tree of dialogues a task: choose an utterance by value, play rollouts from it  (algorithm 4)
        value          of each utterance: the mean of R over the rollouts through it
        pair           sibling utterances of which one is better by more than theta_diff                (algorithm 5)
        prefer         DPO, in idpo with the chosen side's NLL; policy_i is the reference -> policy_{i+1}
    evaluate           every policy_i, greedily, on held-out tasks

Deviations from the released code, each on purpose: the partner's turns are ``user`` messages; R_loss is computed given
the turn's context, as in the paper (the code scores each turn alone); the threshold comes before the top share, as in
the paper; an utterance that is nearly a sibling is that sibling (``rollout.grower``); values of pairs are those of the
finished tree; a dialogue out of turns keeps its last answer, as in evaluation.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import POLICY
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.optima.data import OptimaData
from coterie.recipes.optima.reward import said, totals
from coterie.recipes.optima.settings import DPORoundSettings, OptimaSettings
from coterie.recipes.trainings import prefer, train_role
from coterie.rewards.conduct import count_leaks, count_repeats
from coterie.rewards.dialogue_reward import DialogueSample, RewardSettings, largest_loss, rewards
from coterie.rewards.likelihood import turn_losses
from coterie.rollout.driver import Driver
from coterie.rollout.episodes import Episode, dialogue_tokens
from coterie.rollout.grower import Rollout
from coterie.rollout.search import Value, growth, node_values
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judgment, TreeSearch
from coterie.runs.folder import Run, Step
from coterie.runs.growing import Growing, grow_trees, grown, rollouts
from coterie.runs.items import Done, going_on, on_trees
from coterie.runs.stage import Stage
from coterie.selection.demonstrations import best_demonstrations, random_demonstrations
from coterie.selection.pairs import PairSettings, sibling_pairs
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Outcome, Tree
from coterie.trajectories.turn import digest
from coterie.trajectories.view import View, view


def nothing_selected(iteration: int, settings: OptimaSettings) -> UserError:
    """No dialogue is good enough to imitate."""
    return UserError(
        f"nothing was selected in iteration {iteration}: no dialogue has a reward of at "
        f"least select.threshold={settings.select.threshold}",
        "lower select.threshold with --fork FOLDER, or look at the rewards in the report",
    )


def nothing_to_compare(iteration: int, settings: DPORoundSettings) -> UserError:
    """No utterance has a sibling that is worse by enough."""
    s = settings.select
    return UserError(
        f"no pair was selected in iteration {iteration}: no utterance has a value above "
        f"dpo.select.theta_filter={s.theta_filter} and a sibling that is worse by "
        f"more than dpo.select.theta_diff={s.theta_diff}",
        "lower them with --fork FOLDER, or grow larger trees (dpo.search)",
    )


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

    async def __call__(self, tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
        """Rewards of finished paths; raises ``EngineError``."""
        new = await self._losses(tree, outcomes) if self.rule.lambda_loss else {}
        self.losses |= new
        paths = [tree.path(outcome.leaf) for outcome in outcomes]
        samples = [
            DialogueSample(
                outcome,
                dialogue_tokens(path),
                largest_loss(self.losses, [turn.id for turn in said(path)]) if self.losses else 0.0,
                count_leaks(said(path), self.agents),
                count_repeats(said(path)),
                tuple(path),
            )
            for outcome, path in zip(outcomes, paths, strict=True)
        ]
        found = []
        for reward in rewards(samples, self.rule, max_tokens=self.max_tokens):
            terms = reward.terms.items()
            own = [Credit(reward.leaf, name, value, self.settings) for name, value in terms]
            found.append(Judgment(reward.total, tuple(own)))
        if found and new:
            nll = tuple(Credit(turn, "nll", loss, self.settings) for turn, loss in new.items())
            found[0] = Judgment(found[0].reward, found[0].credit + nll)
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
        "leaks": sum(count_leaks(said(path), agents) for path in paths),
        "repeats": sum(count_repeats(said(path)) for path in paths),
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


IN_FLIGHT = 64
"""Trees that are scored at a time."""


class Optima(OptimaData):
    """The recipe under given settings, whose method says which iterations are of DPO."""

    def stages(self) -> list[Stage]:
        """Each policy is evaluated, then plays, and is trained; the last one is evaluated too."""
        s, before, found = self.settings, list[Stage](), list[Stage]()
        judged = (s.evaluate.fingerprint(), s.rollout.max_tokens, *s.engine.identity())
        for i, kind in enumerate(s.kinds()):
            found.append(self.evaluation(i, before, judged))
            found += self.sft(i, before) if kind == "sft" else self.dpo(i, before)
            before = found[-1:]
        return [*found, self.evaluation(s.iterations, before, judged)]

    # -- an iteration of SFT --------------------------------------------------------------------

    def sft(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Sample, reward, demonstrate, imitate."""
        s = self.settings
        played = (self.draws(i), s.rollout.fingerprint(), *s.engine.identity())
        scored, learnt = (s.reward.identity(),), (s.train.identity(), s.from_initial)
        rollout = self.stage(i, "rollout", self.sample, before, played)
        reward = self.stage(i, "reward", self.reward, [rollout], scored, alone=True)
        select = self.stage(i, "select", self.demonstrate, [reward], [s.select.fingerprint()])
        train = self.stage(i, "train", self.imitate, [select], learnt, trains=POLICY)
        return [rollout, reward, select, train]

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """N dialogues a task by the newest policy; in iteration 0 each under a format prompt."""
        s = self.settings.rollout
        temperature = s.temperature if i else s.first_temperature
        return await self.play(run, self.episodes(i), temperature, s.top_p, progress)

    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """R of every dialogue, its parts, and the frozen base's loss of every turn, as credit."""
        work = partial(self.scored, self.models(run).embedded(POLICY, 0))
        await on_trees(run.store, i, work, progress, f"reward {i}", in_flight=IN_FLIGHT)
        return totals(run.store, i)

    def demonstrate(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Each task's best dialogue above the threshold, the top share of them, both views."""
        found, s = self.rewards(run, i), self.settings.select
        if s.rule == "best":
            chosen = best_demonstrations(found, s)
        else:
            seed = int(digest("select", self.settings.seed, i)[:15], 16)
            chosen = random_demonstrations(found, s.counts[i], seed)
        context, agents = self.context(i), self.agents
        run.select(i, [Selection(r.leaf, agent, context) for _, r in chosen for agent in agents])
        return {"tasks": len(found), "selected": len(chosen)}

    def imitate(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT on each agent's own turns of the selected dialogues."""
        policy = self.models(run).load_to_train(POLICY, 0 if self.settings.from_initial else i)
        rows = self.rows(run, i, policy)
        if not rows:
            raise nothing_selected(i, self.settings)
        own = self.seeded(self.settings.train, i)
        return train_role(run, i, policy, rows, own, progress, role=POLICY)

    # -- an iteration of DPO --------------------------------------------------------------------

    def dpo(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Search, value, pair, prefer."""
        s, own = self.dpo_settings, self.settings
        played = (
            *("dpo", self.draws(i), s.temperature, s.probe, s.percentile, own.rollout.top_p),
            *(s.search.fingerprint(), s.reward.identity(), own.rollout.max_tokens),
            *own.engine.identity(),
        )
        valued = ("dpo", s.reward.identity())
        learnt = ("dpo", s.objective.fingerprint(), s.train.identity())
        rollout = self.stage(i, "rollout", self.search, before, played)
        reward = self.stage(i, "reward", self.value, [rollout], valued, alone=True)
        select = self.stage(i, "select", self.pair, [reward], ("dpo", s.select.fingerprint()))
        train = self.stage(i, "train", self.prefer, [select], learnt, trains=POLICY)
        return [rollout, reward, select, train]

    async def search(self, run: Run, i: int, progress: Progress) -> Metrics:
        """A tree of dialogues for each task; all grow at once. Fresh dialogues say what tokens are relative to."""
        limit = await probe(self, run, i, progress)
        await grow(self, run, i, limit, progress)
        return {**grown(run.store, i), "token_limit": limit}

    async def value(self, run: Run, i: int, progress: Progress) -> Metrics:
        """The value of every node of every tree, as credit."""
        settings = self.fingerprint(Step(i, "reward"))
        work = partial(valued, rollouts(run.store, i), settings, self.agents)
        await on_trees(run.store, i, work, progress, f"values {i}", in_flight=1)
        return totals(run.store, i, ("trajectories", "truncated", "leaks", "repeats"))

    def pair(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pairs of sibling utterances of each tree."""
        chosen, tasks = list[Selection](), 0
        for tree in run.store.trees(i, "rollout"):
            tasks += 1
            chosen += siblings(tree, self.values(run, tree), self.dpo_settings.select)
        run.select(i, chosen)
        return {"tasks": tasks, "selected": len(chosen)}

    def prefer(self, run: Run, i: int, progress: Progress) -> Metrics:
        """DPO on the pairs; the policy as it is now is the reference."""
        policy, pairs = self.models(run).load_to_train(POLICY, i), list(self.pairs(run, i))
        if not pairs:
            raise nothing_to_compare(i, self.dpo_settings)
        own = self.seeded(self.dpo_settings.train, i)
        return prefer(
            run, i, policy, pairs, self.dpo_settings.objective, own, progress, role=POLICY
        )
