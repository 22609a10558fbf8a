"""An application on a real socket, on the loop of the test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn


@contextlib.asynccontextmanager
async def serve_app(app: Any) -> AsyncIterator[str]:
    """The URL of a server that runs in the meantime."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task
