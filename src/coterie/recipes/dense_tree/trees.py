"""Grows the trees of an iteration of ``dense_tree``, all at once, into the store of its run."""

from coterie.progress import Progress
from coterie.recipes.dense_tree.data import GROWN, DenseTreeData
from coterie.rollout.driver import Driver
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Search
from coterie.runs.folder import Run
from coterie.runs.growing import Growing, grow_trees
from coterie.runs.items import going_on
from coterie.trajectories.item import ItemKey
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
