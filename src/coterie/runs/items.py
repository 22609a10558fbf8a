"""Concurrent execution of the items of a stage. Writes each item when it finishes; stops if all items fail."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.tree import Credit, ItemKey, Metrics, Tree
from coterie.rollout.episodes import bounded_gather


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a finished item."""

    key: ItemKey
    metrics: Metrics
    tree: Tree | None = None
    credit: tuple[Credit, ...] = ()
    failure: str | None = None
    """Reason of a permanent failure."""


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
    """Do the unfinished items of one iteration and stage.

    ``what`` is a plural noun for the items in messages, ``title`` the title of the progress. An item reports its own
    failure (``Done.failure``). Raises :class:`UserError` if every item fails or the engine is gone.
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
    """Do the unfinished items of a stage with one item per tree of the iteration's rollouts.

    Each tree is read when its item starts, so at most ``in_flight`` trees are in memory.
    """

    async def one(task: str) -> Done:
        return await do(store.tree(iteration, "rollout", task))

    tasks = store.tree_tasks(iteration, "rollout")
    items = {ItemKey(iteration, stage, task): partial(one, task) for task in tasks}
    await do_items(store, items, progress, "trees", title, in_flight=in_flight)


@contextmanager
def going_on(what: str, progress: Progress) -> Iterator[None]:
    """Close the progress at the end, and turn ``EngineGone`` into a ``UserError``."""
    try:
        yield
    except EngineGone as error:
        raise UserError(
            f"{what} cannot continue: {error}",
            "fix the cause and run again; finished work is kept",
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
    """Write each item of a stage when it finishes.

    Failures are written only after a first success, now or in an earlier session. If all items fail, the cause is not
    in the items, so nothing is written and :class:`UserError` is raised.
    """
    pending: list[Done] = []
    succeeded: bool | None = None
    async for done in items:
        if succeeded is None:
            succeeded = _has_succeeded(store, done.key.iteration, done.key.stage)
        if sampled_tokens is None:
            progress.advance(1)
        else:
            progress.advance(1, sampled_tokens=sampled_tokens())
        pending.append(done)
        succeeded = succeeded or done.failure is None
        if not succeeded:
            continue
        for one in pending:
            store.finish(
                one.key,
                tree=one.tree,
                credit=one.credit,
                metrics=one.metrics,
                failure=one.failure,
            )
        pending.clear()
    if pending:
        raise UserError(
            f"all {len(pending)} {what} failed; the first with: {pending[0].failure}",
            "fix the cause and run again; no failure was recorded",
        )


def _has_succeeded(store: Store, iteration: int, stage: str) -> bool:
    """Return True if an item of a task is finished without failure."""
    finished = sum(bool(task) for task, _ in store.finished_keys(iteration, stage))
    return finished > sum(key.stage == stage for key, _ in store.failures(iteration))
