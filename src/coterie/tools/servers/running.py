"""Runs a tool server: opens its tools, then listens, and closes them when it ends."""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import uvicorn

from coterie.tools.servers.app import Served, make_app

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept open, longer than most clients keep theirs."""
GRACE = 3
"""Seconds that running requests have to end after Ctrl-C."""


def run(tools: Sequence[Served], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM, which raise ``KeyboardInterrupt`` when all has ended.

    ``ready`` is called when all tools are open; it makes the socket listen. Raises ``UserError`` for a tool that can't
    be opened.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(_serve(tools, listener, ready))


async def _serve(
    tools: Sequence[Served], listener: socket.socket, ready: Callable[[], None]
) -> None:
    async with AsyncExitStack() as opened:
        for one in tools:
            await opened.enter_async_context(one.backend.open())
        ready()
        config = uvicorn.Config(
            make_app(tools),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
        )
        await uvicorn.Server(config).serve(sockets=[listener])
