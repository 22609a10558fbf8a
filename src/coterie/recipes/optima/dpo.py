"""Optima's other two methods (arXiv 2410.08115): ``idpo`` and ``isft_dpo``.

    idpo       iteration 0 is one of SFT (recipes.optima), all others are of DPO    (algorithm 2)
    isft_dpo   SFT and DPO in turn                                                  (algorithm 3)

An iteration of DPO:

    rollout   probe: how long dialogues of policy_i are; then a tree of dialogues a task,
              searches times: choose an utterance by value, play rollouts from it    (algorithm 4)
    reward    the value of each utterance: the mean of R over the rollouts through it
    select    sibling utterances of which one is better by more than theta_diff      (algorithm 5)
    train     DPO, with the chosen side's NLL in idpo; policy_i is the reference -> policy_{i+1}

Deviations from the released code, each on purpose: an utterance that is nearly a sibling is that sibling
(see ``rollout.grower``); values of pairs are those of the finished tree; a dialogue out of turns
keeps its last answer, as in evaluation.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import trained_metrics
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.optima.settings import OptimaDPOSettings
from coterie.recipes.optima.trees import Growing, TreeJudge, rollouts
from coterie.rewards.conduct import leaks, repeats
from coterie.rollout.driver import Driver
from coterie.rollout.episodes import Episode
from coterie.rollout.flight import in_flight
from coterie.rollout.search import Value, growth, node_values
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import TreeSearch
from coterie.runs.folder import Run, Step
from coterie.selection.pairs import sibling_pairs
from coterie.training.dpo import DPO
from coterie.training.loop import train
from coterie.training.reference import with_reference
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.pair import Pair, turn_pair
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Tree
from coterie.trajectories.view import view

PROBE = "probe"
"""The stage under which the dialogues are kept that say how long dialogues are."""


class OptimaDPO(Optima):
    """The recipe under settings of ``optima/idpo`` or ``optima/isft_dpo``."""

    settings: OptimaDPOSettings

    def is_dpo(self, iteration: int) -> bool:
        """Whether an iteration is one of DPO."""
        return iteration < self.settings.iterations and self.kind(iteration) == "dpo"

    def depends(self, step: Step) -> tuple[object, ...]:
        """The settings of a step that are its own."""
        if step.stage == "evaluate" or not self.is_dpo(step.iteration):
            return super().depends(step)
        s, own = self.settings.dpo, self.settings
        depends: dict[str, tuple[object, ...]] = {
            "rollout": (
                *(self._draws(step), s.temperature, s.probe, s.percentile, own.rollout.top_p),
                *(s.search.fingerprint(), s.reward.fingerprint(), own.rollout.max_tokens),
                *own.engine.identity(),
            ),
            "reward": (s.reward.fingerprint(),),
            "select": (s.select.fingerprint(),),
            "train": (s.objective.fingerprint(), s.train.identity()),
        }
        return ("dpo", *depends[step.stage])

    # -- the algorithm ------------------------------------------------------------------------

    async def rollout(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """A tree of dialogues for each task; all grow at once."""
        if not self.is_dpo(iteration):
            return await super().rollout(run, iteration, progress)
        s, tasks = self.settings.dpo, self.train_tasks(iteration)
        max_tokens = await self.probe(run, iteration, tasks, progress)
        sampler = await self.sampler(run, iteration, s.temperature, self.settings.rollout.top_p)
        base = self.engines(run).embedded(self.load_policy(run, 0), 0)
        judge = TreeJudge(
            s.reward, max_tokens, base, self.agents,
            settings=self.fingerprint(Step(iteration, "reward")),
        )  # fmt: skip
        judge.losses = run.store.credit(judge.settings, "nll", iteration=iteration, stage="rollout")
        run.store.put_tasks(tasks)
        before = sampler.engine.stats.sampled_tokens
        growing = Growing(
            run.store, iteration, progress, lambda: sampler.engine.stats.sampled_tokens - before
        )
        progress.start(growing.left(tasks, s.search.searches), f"searches {iteration}")
        rule, samplers = growth(s.search), dict.fromkeys(self.agents, sampler)

        def search(driver: Driver, sessions: Sessions, task: Task) -> TreeSearch:
            tree, rollouts_ = growing.begun(task)
            branches = driver.branches(task, tree, sessions)
            return TreeSearch(branches, samplers, judge, rule, rollouts_, seed=driver.seed)

        try:
            async with self.cast(run) as cast:
                driver = cast.driver(sampler, self.settings.seed)
                async with driver.sessions() as sessions:
                    trees = (search(driver, sessions, t).grow(growing.record) for t in tasks)
                    async with in_flight(trees, s.trees_in_flight) as grown:
                        async for _ in grown:
                            pass
        except EngineGone as error:
            raise UserError(
                f"the trees of iteration {iteration} can't go on: {error}",
                "fix the cause and run again: finished searches are kept, the rest is done then",
            ) from error
        finally:
            progress.close()
        return self._grown(run, iteration, max_tokens)

    async def probe(
        self, run: Run, iteration: int, tasks: Sequence[Task], progress: Progress
    ) -> int:
        """The tokens that the token term is relative to: a percentile of fresh dialogues, plus 1."""
        s = self.settings.dpo
        episodes = [
            Episode(tasks[number % len(tasks)], number // len(tasks), iteration, PROBE)
            for number in range(s.probe)
        ]
        top_p = self.settings.rollout.top_p
        await self.play(run, episodes, s.temperature, top_p, progress)
        found = run.store.metrics(iteration, PROBE).values()
        lengths = [int(metrics["tokens"]) for metrics in found if int(metrics["tokens"])]
        return int(np.percentile(lengths, s.percentile)) + 1

    async def reward(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """The value of every node of every tree, as credit."""
        if not self.is_dpo(iteration):
            return await super().reward(run, iteration, progress)
        settings = self.fingerprint(Step(iteration, "reward"))
        finished = run.store.finished_keys(iteration, "reward")
        played = rollouts(run.store, iteration)
        for tree in run.store.trees(iteration, "rollout"):
            if (tree.task, "") in finished:
                continue
            credit = [
                Credit(node, name, number, settings)
                for node, value in node_values(tree, played[tree.task]).items()
                for name, number in (("value", value.mean), ("visits", float(value.visits)))
            ]
            counts = _counted(tree, self.agents)
            run.store.finish(ItemKey(iteration, "reward", tree.task), credit=credit, metrics=counts)
        items = [m for key, m in run.store.metrics(iteration, "reward").items() if key.task]
        names = ("trajectories", "truncated", "leaks", "repeats")
        return {name: sum(int(metrics[name]) for metrics in items) for name in names}

    def select(self, run: Run, iteration: int) -> Metrics:
        """Pairs of sibling utterances of each tree."""
        if not self.is_dpo(iteration):
            return super().select(run, iteration)
        references: list[Selection] = []
        tasks = 0
        for tree in run.store.trees(iteration, "rollout"):
            found = sibling_pairs(
                tree, self.values(run, tree), self.settings.dpo.select, _scores(tree).__getitem__
            )
            references += [
                Selection(pair.chosen.id, pair.chosen.speaker.name, rejected=pair.rejected.id)
                for pair in found
            ]
            tasks += 1
        if not run.store.finished(ItemKey(iteration, "select", "")):
            run.store.select(iteration, "select", references)
        return {"tasks": tasks, "selected": len(references)}

    def train(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """DPO on the pairs; the policy as it is now is the reference."""
        if not self.is_dpo(iteration):
            return super().train(run, iteration, progress)
        s = self.settings.dpo
        pairs = list(self.pairs(run, iteration))
        if not pairs:
            raise UserError(
                f"no pair was selected in iteration {iteration}: no utterance has a value above "
                f"dpo.select.theta_filter={s.select.theta_filter} and a sibling that is worse by "
                f"more than dpo.select.theta_diff={s.select.theta_diff}",
                "lower them with --fork FOLDER, or grow larger trees (dpo.search)",
            )
        policy = self.load_policy(run, iteration)
        folder = run.training_folder(iteration)
        own = self.seeded(s.train, iteration)
        pairs = with_reference(
            policy.model,
            pairs,
            own,
            folder / "reference",
            normalise=s.objective.normalise,
            progress=progress,
        )
        report = train(
            policy.model, pairs, own, folder, objective=DPO(s.objective), progress=progress
        )
        sides = (side for pair in pairs for side in (pair.chosen, pair.rejected))
        tokens = sum(row.target_count for side in sides for row in side)
        return trained_metrics(report, tokens * own.epochs)

    # -- its data -----------------------------------------------------------------------------

    def values(self, run: Run, tree: Tree) -> dict[str, Value]:
        """Values of the nodes of a tree, as the reward stage left them."""
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        nodes = (tree.root, *tree.turns)
        means, visits = (run.store.credit(settings, name, nodes) for name in ("value", "visits"))
        return {node: Value(mean, round(visits[node])) for node, mean in means.items()}

    def pairs(self, run: Run, iteration: int) -> Iterator[Pair]:
        """The selected pairs of an iteration, those of one tree as a group."""
        tree: Tree | None = None
        for task, selection in run.store.selections(iteration, "select"):
            if tree is None or tree.task != task:
                tree = run.store.tree(iteration, "rollout", task)
            assert selection.rejected is not None, "an iteration of DPO selects pairs"
            chosen = view(tree, selection.leaf, selection.agent)
            rejected = view(tree, selection.rejected, selection.agent)
            yield turn_pair(chosen, rejected, weight=selection.weight, group=task)

    def _grown(self, run: Run, iteration: int, max_tokens: int) -> Metrics:
        """How many dialogues the trees have, and what was saved by their sharing."""
        played = [one for found in rollouts(run.store, iteration).values() for one in found]
        failed = sum(one.leaf is None for one in played)
        if played and failed == len(played):
            raise UserError(
                f"all {failed} rollouts failed; the first because: {played[0].failure}",
                "fix the cause, and run again in a new folder or with --fork",
            )
        trees = list(run.store.trees(iteration, "rollout"))
        leaves = {leaf: o.score or 0.0 for tree in trees for leaf, o in tree.outcomes.items()}
        lengths = run.store.metrics(iteration, "rollout").values()
        return {
            "n": len(played),
            "failed": failed,
            "score": sum(leaves.get(one.leaf or "", 0.0) for one in played) / len(played),
            "tokens": sum(int(metrics.get("tokens", 0)) for metrics in lengths) / len(played),
            "trees": len(trees),
            "turns": sum(len(tree.turns) for tree in trees),
            "token_limit": max_tokens,
        }


def _scores(tree: Tree) -> dict[str, float]:
    """Mean task score of the dialogues through each node."""
    found: dict[str, list[float]] = {}
    for outcome, path in tree.graded():
        for turn in path:
            found.setdefault(turn.id, []).append(outcome.score or 0.0)
    return {node: sum(scores) / len(scores) for node, scores in found.items()}


def _counted(tree: Tree, agents: tuple[str, ...]) -> Metrics:
    paths = [path for _, path in tree.trajectories()]
    return {
        "trajectories": len(paths),
        "truncated": sum(outcome.ending == LENGTH for outcome in tree.outcomes.values()),
        "leaks": sum(leaks(path, agents) for path in paths),
        "repeats": sum(repeats(path) for path in paths),
    }
