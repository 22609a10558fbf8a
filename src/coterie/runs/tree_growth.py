"""Tree growth with storage: each search is one transaction, so an interrupted tree continues after its last search."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.tree import Credit, Item, ItemKey, Metrics, Task, Tree
from coterie.rollout.episodes import Driver, bounded_gather, dialogue_tokens
from coterie.rollout.grower import Rollout
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Search, path_tree

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
    played: dict[str, list[Rollout]] = field(init=False)

    def __post_init__(self) -> None:
        self.played = rollouts(self.store, self.iteration)

    def left(self, tasks: Iterable[Task], searches: int) -> int:
        done = [{rollout.search for rollout in self.played.get(task.id, ())} for task in tasks]
        return sum(searches - len(numbers) for numbers in done)

    def load(self, task: Task) -> tuple[Tree, list[Rollout]]:
        """Return the stored tree of a task and its rollouts."""
        known = self.played.get(task.id, [])
        if not any(rollout.leaf for rollout in known):
            return Tree(task.id, "rollout", self.iteration), known
        return self.store.tree(self.iteration, "rollout", task.id), known

    def record(self, tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
        """Write all rollouts of a finished search in one transaction."""
        last = max((r.number for r in new if r.leaf is not None), default=-1)
        with self.store.together():
            for one in new:
                key = ItemKey(
                    self.iteration, "rollout", tree.task, f"{one.search:03d}/{one.number:02d}"
                )
                path = None if one.leaf is None else path_tree(tree, [one.leaf])
                self.store.finish(
                    key,
                    tree=path,
                    credit=credit if one.number == last else (),
                    metrics=_metrics(one, path),
                    failure=one.failure,
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
    """Return the number of rollouts, failures, trees and turns, and the mean score and tokens of rollouts.

    Raises ``UserError`` if all rollouts failed.
    """
    items = store.items(iteration, "rollout")
    all_rollouts = [one for task_rollouts in _rollouts(items).values() for one in task_rollouts]
    failed = sum(one.leaf is None for one in all_rollouts)
    if all_rollouts and failed == len(all_rollouts):
        raise UserError(
            f"all {failed} rollouts failed; the first with: {all_rollouts[0].failure}",
            "fix the cause, and run again in a new folder or with --fork",
        )
    scores = store.scores(iteration, "rollout")
    trees, turns = store.size(iteration, "rollout")
    return {
        "n": len(all_rollouts),
        "failed": failed,
        "score": sum(scores.get(one.leaf or "") or 0.0 for one in all_rollouts) / len(all_rollouts),
        "tokens": sum(int(item.metrics.get("tokens", 0)) for item in items) / len(all_rollouts),
        "trees": trees,
        "turns": turns,
    }


def rollouts(store: Store, iteration: int, task: str | None = None) -> dict[str, list[Rollout]]:
    """Return the rollouts of an iteration's finished searches in their order, by task."""
    return _rollouts(store.items(iteration, "rollout", task))


def _rollouts(items: Iterable[Item]) -> dict[str, list[Rollout]]:
    by_task: dict[str, list[Rollout]] = {}
    for item in items:
        if not item.key.task:
            continue
        search, number = _number(item.key)
        leaf, reward = item.metrics.get("leaf"), item.metrics.get("reward")
        labels = str(item.metrics.get("labels", ""))
        one = Rollout(
            search,
            number,
            str(item.metrics["start"]),
            None if leaf is None else str(leaf),
            None if reward is None else float(reward),
            item.failure,
            int(item.metrics["sampled"]),
            tuple(map(int, labels.split(","))) if labels else (),
        )
        by_task.setdefault(item.key.task, []).append(one)
    for task_rollouts in by_task.values():
        task_rollouts.sort(key=lambda one: (one.search, one.number))
    return by_task


def _number(key: ItemKey) -> tuple[int, int]:
    search, _, number = key.sample.partition("/")
    return int(search), int(number)


def _metrics(one: Rollout, path: Tree | None) -> Metrics:
    shared: dict[str, float | int | str] = {"start": one.start, "sampled": one.sampled}
    if one.labels:
        shared["labels"] = ",".join(map(str, one.labels))
    if path is None or one.leaf is None or one.reward is None:
        return {**shared, "tokens": 0}
    tokens = dialogue_tokens(path.path(one.leaf))
    return {**shared, "tokens": tokens, "leaf": one.leaf, "reward": one.reward}
