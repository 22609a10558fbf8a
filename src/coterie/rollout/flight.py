"""Keeps a bounded number of coroutines in flight and yields results as they come."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def in_flight(
    work: Iterable[Coroutine[Any, Any, T]], limit: int
) -> AsyncIterator[AsyncIterator[T]]:
    """Results of ``work`` in order of completion, at most ``limit`` running at a time.

    None outlives the block: when it ends, by an exception in one of them or in the block too, those still
    running are cancelled and have ended.
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
