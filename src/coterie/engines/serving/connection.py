"""Work for a client that may go away: what nobody waits for is stopped."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request

from coterie.engines.serving.answers import RequestRefused
from coterie.engines.serving.errors import ClientGone

Result = TypeVar("Result")


@contextmanager
def while_connected(request: Request, task: asyncio.Future[Any]) -> Iterator[None]:
    """In the block, ``task`` is cancelled when the client goes away; after it, in any case."""
    gone = asyncio.ensure_future(_disconnected(request))
    gone.add_done_callback(lambda _: task.cancel())
    try:
        yield
    finally:
        gone.cancel()
        task.cancel()


async def finish(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What ``work`` comes to.

    Raises :class:`ClientGone` if the client goes away first, and ``RequestRefused`` if the server, which
    then cancels what is left, ends.
    """
    task = asyncio.ensure_future(work)
    with while_connected(request, task):
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            raise RequestRefused(503, "the server is ending") from None
        if task.cancelled():
            raise ClientGone
        return task.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
