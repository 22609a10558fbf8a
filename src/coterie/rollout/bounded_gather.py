"""Bounded concurrency: run coroutines with a limit and yield their results."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def bounded_gather(
    work: Iterable[Coroutine[Any, Any, T]], limit: int
) -> AsyncIterator[AsyncIterator[T]]:
    """Yield the results of ``work`` in order of completion, with at most ``limit`` coroutines at a time.

    When the block ends, also by an exception, unfinished coroutines are cancelled and awaited.
    """
    async with aclosing(_results(work, limit)) as results:
        yield results


async def _results(work: Iterable[Coroutine[Any, Any, T]], limit: int) -> AsyncGenerator[T, None]:
    source = iter(work)
    running: set[asyncio.Task[T]] = set()
    done: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()

    def start() -> None:
        while len(running) < limit and (coroutine := next(source, None)) is not None:
            task = asyncio.ensure_future(coroutine)
            task.add_done_callback(done.put_nowait)
            running.add(task)

    try:
        start()
        while running:
            task = await done.get()
            running.discard(task)
            start()
            yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
