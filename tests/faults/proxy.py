"""A real HTTP proxy before a server, that answers some requests wrongly."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from coterie.engines.vllm import TOKENS

Body = dict[str, Any]


@dataclass(frozen=True)
class Bad:
    """What to answer in place of, or made of, the right reply."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None
    edit: Callable[[Body], Body] | None = None
    """Changes the right reply."""
    keep: int | None = None
    """Send only so many bytes of the body, then cut the connection."""
    stall: bool = False
    """Never answer."""


Plan = Callable[[int, Body], Bad | None]
"""The fault for the n-th completion request (from 0) of this body, if any."""


@dataclass
class Proxy:
    """Where it listens, and what it has seen."""

    url: str = ""
    plan: Plan = lambda number, body: None
    count: int = 0
    bad: int = 0
    bodies: list[Body] = field(default_factory=list)


@asynccontextmanager
async def proxy(upstream: str, plan: Plan = lambda number, body: None) -> AsyncIterator[Proxy]:
    """Listen on a free port, before the server at ``upstream``."""
    state = Proxy(plan=plan)
    async with httpx2.AsyncClient(base_url=upstream, timeout=60, trust_env=False) as client:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await _serve(state, client, reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield state
        finally:
            server.close()


async def _serve(
    state: Proxy,
    client: httpx2.AsyncClient,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, _ = head.split("\r\n")[0].split(" ")
    lengths = [
        x.split(":")[1] for x in head.split("\r\n") if x.lower().startswith("content-length")
    ]
    content = await reader.readexactly(int(lengths[0])) if lengths else b""
    bad = None
    if method == "POST" and path == TOKENS:
        body = json.loads(content)
        state.bodies.append(body)
        bad = state.plan(state.count, body)
        state.count += 1
    state.bad += bad is not None
    bad = bad or Bad()
    if bad.stall:
        await reader.read()
        return
    if bad.status == 200 and bad.content is None:
        headers = {"content-type": "application/json"}
        reply = await client.request(method, path, content=content, headers=headers)
        status, answer = reply.status_code, reply.content
        if bad.edit:
            answer = json.dumps(bad.edit(json.loads(answer))).encode()
    else:
        status, answer = bad.status, bad.content or b'{"error": {"message": "told to fail"}}'
    lines = [f"HTTP/1.1 {status} -", f"content-length: {len(answer)}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in bad.headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + answer[: bad.keep])
    await writer.drain()
