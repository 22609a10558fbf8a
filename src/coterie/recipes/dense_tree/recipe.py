"""DensePolicy: preference pairs from a dense tree of trajectories per task.

No paper is published; the algorithm follows the released code (leoozy/DensePolicy and zhao-ht/TreeDPO).

    for each iteration:
        rollout      grow a tree per task. Each round starts rollouts at the node with the highest
                     0.8 C^(1/4) + 0.2 D / L + 2 sqrt(1 + N) / (2 + N), until the tree has its pairs. C: largest value
                     difference to a sibling, D: mean distance to the ends of rollouts, L: maximum steps, N: visits
        reward       V(node) = mean success of the rollouts through it
        select       siblings with V_chosen - V_rejected >= margin and enough visits; from the tasks with the most
                     pairs, up to a fixed total
        train        DPO on these pairs and on outside preference sets. The policy before this training is pi_ref:
                     L = -log sigmoid(beta [log pi(a_w|h) / pi_ref(a_w|h) - log pi(a_l|h) / pi_ref(a_l|h)]), for the
                     messages a_w and a_l after a shared history h
    evaluate         greedily on held-out tasks

Deliberate deviations from the released code:

* New rollouts are accepted. The code accepts none after the first round.
* Visits count distinct leaves, and choosing a node for expansion is not a visit.
* A node's value is the mean over rollouts. ``search.value=children`` is the code's mean over children.
* A path that was sampled to its end is not sampled again.
* A replay that differs from the recorded path fails its branch. The code only warns.
* An outside set that is too small is not filled up with repeats.
* Training and held-out tasks are disjoint. The code trains on test tasks.
"""

from collections.abc import Sequence
from functools import partial

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.dense_tree.data import GROWN, DenseTreeData
from coterie.recipes.trainings import imitate, prefer
from coterie.record.tree import ItemKey, Metrics, Task
from coterie.rollout.episodes import Driver
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Search
from coterie.runs.folder import Run
from coterie.runs.items import TreeWriter, going_on, grow_trees, growth_summary, on_trees
from coterie.runs.loop import Stage


async def grow(recipe: DenseTreeData, run: Run, iteration: int, progress: Progress) -> None:
    """Grow the trees of an iteration. Keeps complete trees and continues incomplete ones."""
    s, done = recipe.settings, run.store.finished_keys(iteration, GROWN)
    tasks = recipe.train_tasks(iteration)
    left = [task for task in tasks if (task.id, "") not in done]
    run.store.put_tasks(tasks)
    if not left:
        return
    sampler = await recipe.sampler(run, recipe.newest(run, recipe.main_role, iteration), 0.0)
    stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
    writer = TreeWriter(
        run.store, iteration, progress, lambda: stats.sampled_tokens - before, by_rollout=True
    )

    def begin(driver: Driver, sessions: Sessions, task: Task) -> Search:
        tree, known = writer.load(task)
        return recipe.search(driver.branches(task, tree, sessions), sampler, known)

    def note(search: Search) -> None:
        count = len(search.rollouts)
        key = ItemKey(iteration, GROWN, search.tree.task)
        run.store.finish(key, metrics={"rollouts": count})
        if missing := max(0, s.search.runs - count):
            progress.advance(missing, sampled_tokens=writer.sampled_tokens())

    known = sum(len(writer.played.get(task.id, ())) for task in left)
    title = f"trees {iteration}"
    progress.start(s.search.runs * len(left) - known, title)
    with going_on(title, progress):
        async with recipe.actors(run) as actors:
            driver = actors.driver({recipe.agent: sampler}, s.seed)
            await grow_trees(driver, writer, left, begin, s.rollout.max_trees, note)


class DenseTree(DenseTreeData):
    """The DensePolicy recipe."""

    def stages(self) -> list[Stage]:
        """Return the stages of all iterations, with an evaluation before the first one."""
        stages = [self.evaluation(0)]
        for i in range(self.settings.iterations):
            stages += self.iteration(i, [stage for stage in stages if stage.trains])
        return stages

    def iteration(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Return the stages of one iteration: rollout, reward, select, train, evaluate."""
        s = self.settings
        sampling = (
            *([s.rollout.tasks] * (i + 1), s.rollout.shard, s.rollout.max_tokens),
            *(s.search.fingerprint(), s.pairs.margin, s.pairs.max_visits, *s.engine.identity()),
        )
        training = (s.learns, s.objective.fingerprint(), s.train.identity(), *self.mix_identity)
        rollout = self.stage(i, "rollout", self.sample, before, sampling)
        reward = self.stage(i, "reward", self.value, [rollout], [s.search.value])
        selection = (s.learns, s.pairs.fingerprint(), s.budget.fingerprint())
        select = self.stage(i, "select", self.pair, [reward], selection)
        train = self.stage(i, "train", self.learn, [select], training, trains=self.main_role)
        return [rollout, reward, select, train, self.evaluation(i + 1, [train])]

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Grow a tree for each task, all concurrently."""
        await grow(self, run, i, progress)
        return growth_summary(run.store, i)

    async def value(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Store V(node), the mean success of the rollouts through a node, as credit."""
        work = partial(self.value_tree, run)
        await on_trees(run.store, i, work, progress, f"values {i}", in_flight=1)
        metrics = run.store.metrics(i, "reward").values()
        return {name: sum(int(m.get(name, 0)) for m in metrics) for name in ("nodes", "successes")}

    def pair(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Select sibling pairs with ``V_chosen - V_rejected >= margin``, or successful rollouts for the control."""
        selections, counts = (
            self.select_successes(run, i)
            if self.settings.learns == "successes"
            else self.select_pairs(run, i)
        )
        run.select(i, selections)
        return {
            "tasks": len(counts),
            "pairs": sum(counts.values()),
            "without_pairs": sum(not count for count in counts.values()),
            "selected": len(selections),
        }

    def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train by DPO on the pairs, or by SFT for the control; pi_ref is the policy before this training.

        ``L = -log sigmoid(beta [log pi(a_w|h) / pi_ref(a_w|h) - log pi(a_l|h) / pi_ref(a_l|h)])``
        """
        if self.settings.learns == "successes":
            return imitate(
                self, run, i, self.settings.train, progress, make_view=self.training_view
            )
        pairs = list(self.train_pairs(run, i))
        if not pairs:
            raise UserError(
                f"the trees of iteration {i} have no pairs: no two siblings differ by pairs.margin="
                f"{self.settings.pairs.margin:g}",
                "grow larger trees (search.runs), lower pairs.margin or pairs.max_visits, or use tasks that the policy "
                "solves sometimes; `coterie report` shows the trees",
            )
        version = self.newest(run, self.main_role, i)
        policy = self.models(run).load_to_train(self.main_role, version)
        mixed, counts = self.mixed_pairs(i, policy.renderer, progress)
        seeded = self.seeded(self.settings.train, i)
        metrics = prefer(
            *(run, i, policy, pairs + mixed, self.settings.objective, seeded, progress),
            role=self.main_role,
        )
        return {**metrics, "tree_pairs": len(pairs), **counts}
