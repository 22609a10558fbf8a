"""Our server on a real socket, on the loop of the test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn

from coterie.engines.serving.app import make_app
from coterie.engines.serving.policies import Policies


@contextlib.asynccontextmanager
async def served(policies: Policies, *, allow_loading: bool = False) -> AsyncIterator[str]:
    """The URL of a server that runs in the meantime."""
    app = make_app(policies, allow_loading=allow_loading)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task
