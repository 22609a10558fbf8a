"""Keeps a bounded number of coroutines in flight and yields results as they come."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_flight(work: Iterable[Coroutine[Any, Any, T]], limit: int) -> AsyncGenerator[T, None]:
    """Results of ``work`` in order of completion, at most ``limit`` running at a time.

    Closing it, or an exception in any of them, cancels those in flight. Leaving a loop over it does not
    close it: use ``contextlib.aclosing`` where they must not outlive the loop.
    """
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
