"""Items of tree searches: each finished search is written to the store; their results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.tree import Credit, Item, ItemKey, Metrics, Task, Tree
from coterie.rollout.episodes import Driver, bounded_gather, dialogue_tokens
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Rollout, Search, path_tree

BRANCH_OF, ACTORS, MEASURE = "branch_of", "actors", "grade/"
"""Metrics of the rollouts of a tree of groups (:class:`~coterie.rollout.group_search.GroupSearch`)."""
BeginSearch = Callable[[Driver, Sessions, Task], Search]


@dataclass(slots=True)
class TreeWriter:
    """Reads the stored trees of an iteration and writes new searches."""

    store: Store
    iteration: int
    progress: Progress
    sampled_tokens: Callable[[], int]
    by_rollout: bool = False
    """True if the progress counts rollouts instead of searches."""
    stage: str = "rollout"
    rollouts: dict[str, list[Rollout]] = field(init=False)

    def __post_init__(self) -> None:
        self.rollouts = rollouts(self.store, self.iteration, stage=self.stage)

    def left(self, tasks: Iterable[Task], searches: int) -> int:
        done = [{rollout.search for rollout in self.rollouts.get(task.id, ())} for task in tasks]
        return sum(searches - len(numbers) for numbers in done)

    def load(self, task: Task) -> tuple[Tree, list[Rollout]]:
        recorded = self.rollouts.get(task.id, [])
        if not any(rollout.leaf for rollout in recorded):
            return Tree(task.id, self.stage, self.iteration), recorded
        return self.store.tree(self.iteration, self.stage, task.id), recorded

    def record(self, tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
        """Write all rollouts of a finished search in one transaction."""
        last_number = max((r.number for r in new if r.leaf is not None), default=-1)
        with self.store.together():
            for rollout in new:
                name = f"{rollout.search:03d}/{rollout.number:02d}"
                key = ItemKey(self.iteration, self.stage, tree.task, name)
                path = None if rollout.leaf is None else path_tree(tree, [rollout.leaf])
                rollout_credit = credit if rollout.number == last_number else ()
                metrics = _metrics(rollout, path)
                self.store.finish(
                    key, tree=path, credit=rollout_credit, metrics=metrics, failure=rollout.failure
                )
        done = len(new) if self.by_rollout else 1
        self.progress.advance(done, sampled_tokens=self.sampled_tokens())


async def grow_trees(
    driver: Driver,
    writer: TreeWriter,
    tasks: Sequence[Task],
    begin: BeginSearch,
    max_trees: int,
    on_finish: Callable[[Search], None] | None = None,
) -> None:
    """Grow the trees of tasks, ``max_trees`` concurrently, and call ``on_finish`` with each finished search."""

    async def one(task: Task, sessions: Sessions) -> Search:
        search = begin(driver, sessions, task)
        await search.grow(writer.record)
        return search

    async with (
        driver.sessions() as sessions,
        bounded_gather((one(task, sessions) for task in tasks), max_trees) as done,
    ):
        async for search in done:
            if on_finish is not None:
                on_finish(search)


def growth_summary(store: Store, iteration: int) -> Metrics:
    """Return counts and means of an iteration's rollouts. Raises ``UserError`` if all of them failed."""
    items = store.items(iteration, "rollout")
    all_rollouts = [rollout for of_task in _rollouts(items).values() for rollout in of_task]
    failed = sum(rollout.leaf is None for rollout in all_rollouts)
    if all_rollouts and failed == len(all_rollouts):
        problem = f"all {failed} rollouts failed; the first with: {all_rollouts[0].failure}"
        raise UserError(problem, "fix the cause, and run again in a new folder or with --fork")
    trees = list(store.outlines(iteration, "rollout"))
    scores = {leaf: outcome.score for tree in trees for leaf, outcome in tree.outcomes.items()}
    return {
        "n": len(all_rollouts),
        "failed": failed,
        "score": sum(scores.get(r.leaf or "") or 0.0 for r in all_rollouts) / len(all_rollouts),
        "tokens": sum(int(item.metrics.get("tokens", 0)) for item in items) / len(all_rollouts),
        "trees": len(trees),
        "turns": sum(len(tree.turns) for tree in trees),
    }


def rollouts(
    store: Store, iteration: int, task: str | None = None, stage: str = "rollout"
) -> dict[str, list[Rollout]]:
    return _rollouts(store.items(iteration, stage, task))


def _rollouts(items: Iterable[Item]) -> dict[str, list[Rollout]]:
    by_task: dict[str, list[Rollout]] = {}
    for item in items:
        if not item.key.task:
            continue
        search, number = _rollout_name(item.key.sample)
        leaf, reward = item.metrics.get("leaf"), item.metrics.get("reward")
        labels = str(item.metrics.get("labels", ""))
        branch_of = str(item.metrics.get(BRANCH_OF, ""))
        measures = {
            name.removeprefix(MEASURE): value
            for name, value in item.metrics.items()
            if name.startswith(MEASURE)
        }
        rollout = Rollout(
            search,
            number,
            str(item.metrics["start"]),
            None if leaf is None else str(leaf),
            None if reward is None else float(reward),
            item.failure,
            int(item.metrics["sampled"]),
            tuple(map(int, labels.split(","))) if labels else (),
            _rollout_name(branch_of) if branch_of else None,
            int(item.metrics.get(ACTORS, 0)),
            measures,
        )
        by_task.setdefault(item.key.task, []).append(rollout)
    for task_rollouts in by_task.values():
        task_rollouts.sort(key=lambda rollout_: (rollout_.search, rollout_.number))
    return by_task


def _rollout_name(name: str) -> tuple[int, int]:
    search, _, number = name.partition("/")
    return int(search), int(number)


def _metrics(rollout: Rollout, path: Tree | None) -> Metrics:
    shared: dict[str, float | int | str] = {"start": rollout.start, "sampled": rollout.sampled}
    if rollout.labels:
        shared["labels"] = ",".join(map(str, rollout.labels))
    if rollout.branch_of is not None:
        shared[BRANCH_OF] = "{}/{}".format(*rollout.branch_of)
    if rollout.actors:
        shared[ACTORS] = rollout.actors
    shared |= {f"{MEASURE}{name}": value for name, value in rollout.measures.items()}
    if path is None or rollout.leaf is None:
        return {**shared, "tokens": 0}
    shared |= {"tokens": dialogue_tokens(path.path(rollout.leaf)), "leaf": rollout.leaf}
    # A stopped rollout has no reward.
    return shared if rollout.reward is None else {**shared, "reward": rollout.reward}
