"""DensePolicy (code only; no paper was found): a dense tree of trajectories for each task, and preferences in it.

    for each iteration:
        rollout      a tree for each task: rollouts from where values differ most, until it has its pairs    (2.1)
        reward       the value of each node: the mean success of the rollouts through it                     (2.2)
        select       siblings whose values differ by the margin; the tasks with most pairs, a fixed total    (2.3, 2.4)
        train        DPO on these pairs, and so many of outside sets; the policy as it is now is the         (2.5)
                     reference
    evaluate         on held-out tasks, greedily                                                             (2.6)

Deviations from the released code, each on purpose: new rollouts are accepted (in the code none is after the first
ones); visits are distinct leaves; an outside set that is too small is not topped up with repeats; a node's value is a
mean over rollouts (``search.value=children`` is the code's mean over children); choosing a node does not count as a
visit for pairs; a path that was sampled to its end is not sampled again; training and held-out tasks are disjoint
(the code trains on test tasks). A replay that says something else fails its branch (the code warns).
"""

from collections.abc import Sequence
from functools import partial

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.dense_tree.data import GROWN, DenseTreeData
from coterie.recipes.trainings import imitate, prefer
from coterie.rollout.driver import Driver
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Search
from coterie.runs.folder import Run
from coterie.runs.growing import Growing, grow_trees, grown
from coterie.runs.items import going_on, on_trees
from coterie.runs.stage import Stage
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.task import Task


async def grow(recipe: DenseTreeData, run: Run, iteration: int, progress: Progress) -> None:
    """Grow trees by the policy of an iteration. Those that are done are kept, those that are begun go on."""
    s, done = recipe.settings, run.store.finished_keys(iteration, GROWN)
    tasks = recipe.train_tasks(iteration)
    left = [task for task in tasks if (task.id, "") not in done]
    run.store.put_tasks(tasks)
    if not left:
        return
    sampler = await recipe.sampler(run, recipe.newest(run, recipe.leading, iteration), 0.0)
    stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
    growing = Growing(
        run.store, iteration, progress, lambda: stats.sampled_tokens - before, by_rollout=True
    )

    def begin(driver: Driver, sessions: Sessions, task: Task) -> Search:
        tree, known = growing.begun(task)
        return recipe.search(driver.branches(task, tree, sessions), sampler, known)

    def note(search: Search) -> None:
        played = len(search.rollouts)
        key = ItemKey(iteration, GROWN, search.tree.task)
        run.store.finish(key, metrics={"rollouts": played})
        if missing := max(0, s.search.runs - played):
            progress.advance(missing, sampled_tokens=growing.sampled_tokens())

    played = sum(len(growing.played.get(task.id, ())) for task in left)
    title = f"trees {iteration}"
    progress.start(s.search.runs * len(left) - played, title)
    with going_on(title, progress):
        async with recipe.cast(run) as cast:
            driver = cast.driver({recipe.agent: sampler}, s.seed)
            await grow_trees(driver, growing, left, begin, s.rollout.max_trees, note)


class DenseTree(DenseTreeData):
    """The recipe under given settings."""

    def stages(self) -> list[Stage]:
        """Those of all iterations; success is measured before the first one, too."""
        found = [self.evaluation(0)]
        for i in range(self.settings.iterations):
            found += self.iteration(i, [one for one in found if one.trains])
        return found

    def iteration(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Grow, value, pair, prefer, evaluate."""
        s = self.settings
        played = (
            *([s.rollout.tasks] * (i + 1), s.rollout.shard, s.rollout.max_tokens),
            *(s.search.fingerprint(), s.pairs.margin, s.pairs.max_visits, *s.engine.identity()),
        )
        learnt = (s.learns, s.objective.fingerprint(), s.train.identity(), *self.mixed_content)
        rollout = self.stage(i, "rollout", self.sample, before, played)
        reward = self.stage(i, "reward", self.value, [rollout], [s.search.value])
        chosen = (s.learns, s.pairs.fingerprint(), s.budget.fingerprint())
        select = self.stage(i, "select", self.pair, [reward], chosen)
        train = self.stage(i, "train", self.learn, [select], learnt, trains=self.leading)
        return [rollout, reward, select, train, self.evaluation(i + 1, [train])]

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """A tree for each task; all grow at once."""
        await grow(self, run, i, progress)
        return grown(run.store, i)

    async def value(self, run: Run, i: int, progress: Progress) -> Metrics:
        work = partial(self.valued, run)
        await on_trees(run.store, i, work, progress, f"values {i}", in_flight=1)
        found = run.store.metrics(i, "reward").values()
        return {name: sum(int(m.get(name, 0)) for m in found) for name in ("nodes", "successes")}

    def pair(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pairs of siblings within the budget, or the runs of the control."""
        chosen, counts = (
            self.select_successes(run, i)
            if self.settings.learns == "successes"
            else self.select_pairs(run, i)
        )
        run.select(i, chosen)
        return {
            "tasks": len(counts),
            "pairs": sum(counts.values()),
            "without_pairs": sum(not count for count in counts.values()),
            "selected": len(chosen),
        }

    def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        """DPO on the pairs; the policy as it is now is the reference. The control imitates."""
        if self.settings.learns == "successes":
            return imitate(self, run, i, self.settings.train, progress, see=self.seen)
        pairs = list(self.train_pairs(run, i))
        if not pairs:
            raise UserError(
                f"the trees of iteration {i} have no pairs: no two siblings differ by pairs.margin="
                f"{self.settings.pairs.margin:g}",
                "grow larger trees (search.runs), lower pairs.margin or pairs.max_visits, or take tasks that sometimes "
                "succeed; `coterie report` shows the trees",
            )
        version = self.newest(run, self.leading, i)
        policy = self.models(run).load_to_train(self.leading, version)
        mixed, counts = self.mixed_pairs(i, policy.renderer, progress)
        own = self.seeded(self.settings.train, i)
        trained = prefer(
            *(run, i, policy, pairs + mixed, self.settings.objective, own, progress),
            role=self.leading,
        )
        return {**trained, "tree_pairs": len(pairs), **counts}
