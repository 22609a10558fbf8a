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
    try:
        while True:
            for coroutine in source:
                running.add(asyncio.ensure_future(coroutine))
                if len(running) >= limit:
                    break
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
