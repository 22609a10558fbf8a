"""Does the items of a stage, many in flight; writes each as it finishes, and refuses to go on if all fail."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.rollout.bounded_gather import bounded_gather
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.store import Store
from coterie.trajectories.tree import Tree


@dataclass(frozen=True, slots=True)
class Done:
    """An item that has finished, and what it made."""

    key: ItemKey
    metrics: Metrics
    tree: Tree | None = None
    credit: tuple[Credit, ...] = ()
    failure: str | None = None
    """Why it failed for good."""


async def do_items(
    store: Store,
    items: Mapping[ItemKey, Callable[[], Coroutine[Any, Any, Done]]],
    progress: Progress,
    what: str,
    title: str,
    *,
    in_flight: int,
    sampled_tokens: Callable[[], int] | None = None,
) -> None:
    """Do the items of one iteration and stage that are left.

    ``what`` they are called, ``title`` is that of the progress. An item that fails says so itself (``Done.failure``).
    Raises :class:`UserError` if every one of them fails, or the engine is gone.
    """
    finished = {
        (stage, *done)
        for stage in {(key.iteration, key.stage) for key in items}
        for done in store.finished_keys(*stage)
    }
    left = {
        key: do
        for key, do in items.items()
        if ((key.iteration, key.stage), key.task, key.sample) not in finished
    }
    progress.start(len(left), title)
    with going_on(title, progress):
        async with bounded_gather((do() for do in left.values()), in_flight) as done:
            await record(store, done, progress, what, sampled_tokens)


async def on_trees(
    store: Store,
    iteration: int,
    do: Callable[[Tree], Coroutine[Any, Any, Done]],
    progress: Progress,
    title: str,
    *,
    in_flight: int,
    stage: str = "reward",
) -> None:
    """Do what is left of a stage of which each tree of the iteration's rollouts is an item.

    A tree is read when its work begins: there are ``in_flight`` of them in memory at most.
    """

    async def one(task: str) -> Done:
        return await do(store.tree(iteration, "rollout", task))

    tasks = store.tree_tasks(iteration, "rollout")
    items = {ItemKey(iteration, stage, task): partial(one, task) for task in tasks}
    await do_items(store, items, progress, "trees", title, in_flight=in_flight)


@contextmanager
def going_on(what: str, progress: Progress) -> Iterator[None]:
    """Ends the progress, and tells the user of an engine that is gone, which is not an item's failure."""
    try:
        yield
    except EngineGone as error:
        raise UserError(
            f"{what} can't go on: {error}",
            "fix the cause and run again: what is finished is kept, the rest is done then",
        ) from error
    finally:
        progress.close()


async def record(
    store: Store,
    items: AsyncIterator[Done],
    progress: Progress,
    what: str,
    sampled_tokens: Callable[[], int] | None = None,
) -> None:
    """Write each item of a stage as it finishes.

    Failures are withheld until one succeeds, if none has in an earlier session: if all fail, that is no
    property of the items, nothing is written, and :class:`UserError` says why.
    """
    withheld: list[Done] = []
    succeeded: bool | None = None
    async for done in items:
        if succeeded is None:
            succeeded = _has_succeeded(store, done.key.iteration, done.key.stage)
        if sampled_tokens is None:
            progress.advance(1)
        else:
            progress.advance(1, sampled_tokens=sampled_tokens())
        withheld.append(done)
        succeeded = succeeded or done.failure is None
        if not succeeded:
            continue
        for one in withheld:
            store.finish(
                one.key,
                tree=one.tree,
                credit=one.credit,
                metrics=one.metrics,
                failure=one.failure,
            )
        withheld.clear()
    if withheld:
        raise UserError(
            f"all {len(withheld)} {what} failed; the first because: {withheld[0].failure}",
            "fix the cause and run again; nothing was recorded of them",
        )


def _has_succeeded(store: Store, iteration: int, stage: str) -> bool:
    """Whether an item of a stage, that is one of a task, is finished and did not fail."""
    finished = sum(bool(task) for task, _ in store.finished_keys(iteration, stage))
    return finished > sum(key.stage == stage for key, _ in store.failures(iteration))
