"""A tool server in a thread, for its clients' tests."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import uvicorn

from coterie.tools.servers.app import Served, make_app


@contextmanager
def tool_server(*tools: Served) -> Iterator[str]:
    """Open the tools and serve them; the URL."""
    config = uvicorn.Config(lambda: None, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    failed: list[BaseException] = []

    async def serve() -> None:
        async with AsyncExitStack() as opened:
            for one in tools:
                await opened.enter_async_context(one.backend.open())
            config.app = make_app(tools)
            await server.serve()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise failed[0]
        thread.join(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    assert not failed
