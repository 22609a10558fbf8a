"""Trees that grow into a store: each search is one transaction, and a tree that was cut off goes on from there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coterie.errors import UserError
from coterie.progress import Progress
from coterie.rollout.bounded_gather import bounded_gather
from coterie.rollout.driver import Driver
from coterie.rollout.episodes import dialogue_tokens
from coterie.rollout.grower import Rollout
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Search, path_tree
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import Item, ItemKey, Metrics
from coterie.trajectories.store import Store
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree

BeginSearch = Callable[[Driver, Sessions, Task], Search]


@dataclass(slots=True)
class Growing:
    """What a store has of the trees of an iteration, and the writing of more."""

    store: Store
    iteration: int
    progress: Progress
    sampled_tokens: Callable[[], int]
    by_rollout: bool = False
    """Whether the progress counts rollouts, not searches."""
    played: dict[str, list[Rollout]] = field(init=False)

    def __post_init__(self) -> None:
        self.played = rollouts(self.store, self.iteration)

    def left(self, tasks: Iterable[Task], searches: int) -> int:
        done = [{rollout.search for rollout in self.played.get(task.id, ())} for task in tasks]
        return sum(searches - len(found) for found in done)

    def begun(self, task: Task) -> tuple[Tree, list[Rollout]]:
        """A task's tree as far as it has grown, and the rollouts that made it."""
        found = self.played.get(task.id, [])
        if not any(rollout.leaf for rollout in found):
            return Tree(task.id, "rollout", self.iteration), found
        return self.store.tree(self.iteration, "rollout", task.id), found

    def record(self, tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
        """Write a finished search: all of its rollouts, or none."""
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
    growing: Growing,
    tasks: Sequence[Task],
    begin: BeginSearch,
    max_trees: int,
    on_grown: Callable[[Search], None] | None = None,
) -> None:
    """Grow the trees of tasks, ``max_trees`` at a time; ``on_grown`` is told of each that is done."""

    async def one(task: Task, sessions: Sessions) -> Search:
        search = begin(driver, sessions, task)
        await search.grow(growing.record)
        return search

    async with (
        driver.sessions() as sessions,
        bounded_gather((one(task, sessions) for task in tasks), max_trees) as done,
    ):
        async for search in done:
            if on_grown is not None:
                on_grown(search)


def grown(store: Store, iteration: int) -> Metrics:
    """How many dialogues the trees have, and what was saved by their sharing.

    Raises ``UserError`` if all rollouts failed.
    """
    items = store.items(iteration, "rollout")
    played = [one for found in _rollouts(items).values() for one in found]
    failed = sum(one.leaf is None for one in played)
    if played and failed == len(played):
        raise UserError(
            f"all {failed} rollouts failed; the first because: {played[0].failure}",
            "fix the cause, and run again in a new folder or with --fork",
        )
    scores = store.scores(iteration, "rollout")
    trees, turns = store.size(iteration, "rollout")
    return {
        "n": len(played),
        "failed": failed,
        "score": sum(scores.get(one.leaf or "") or 0.0 for one in played) / len(played),
        "tokens": sum(int(item.metrics.get("tokens", 0)) for item in items) / len(played),
        "trees": trees,
        "turns": turns,
    }


def rollouts(store: Store, iteration: int, task: str | None = None) -> dict[str, list[Rollout]]:
    """The rollouts of an iteration's finished searches, of one task or of all, by task, in their order."""
    return _rollouts(store.items(iteration, "rollout", task))


def _rollouts(items: Iterable[Item]) -> dict[str, list[Rollout]]:
    found: dict[str, list[Rollout]] = {}
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
        found.setdefault(item.key.task, []).append(one)
    for played in found.values():
        played.sort(key=lambda one: (one.search, one.number))
    return found


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
