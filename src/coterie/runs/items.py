"""Writes the items of a stage as they finish, and says what it means when all of them fail."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.progress import Progress
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
