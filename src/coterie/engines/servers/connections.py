"""Connections to a server, found in constant time however many are open.

httpx2's own pool looks at every connection whenever a request begins and whenever one ends. With 384 dialogues that
was two thirds of this process's time (``bench/results/rollout-2026-11-21.md``). Here each request takes an idle
connection, or opens one, and gives it back.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2


class Connections(httpx2.AsyncBaseTransport):
    """A transport with one connection for each request in flight.

    A connection that was idle for ``kept_seconds`` is not used again, and closed when the next request ends.
    """

    def __init__(self, kept_seconds: float) -> None:
        self._kept_seconds = kept_seconds
        self._verify = httpx2.create_ssl_context(trust_env=False)
        self._all: set[httpx2.AsyncHTTPTransport] = set()
        self._idle: deque[tuple[float, httpx2.AsyncHTTPTransport]] = deque()
        """Since when (the loop's clock), and which; the last one used last."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        connection = self._idle.pop()[1] if self._idle else self._open()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await self._close(connection)
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream, lambda: self._give_back(connection))
        return response

    async def aclose(self) -> None:
        """Close all connections, those in use too."""
        self._idle.clear()
        for connection in list(self._all):
            await self._close(connection)

    def _open(self) -> httpx2.AsyncHTTPTransport:
        limits = httpx2.Limits(max_connections=1, keepalive_expiry=self._kept_seconds)
        connection = httpx2.AsyncHTTPTransport(verify=self._verify, trust_env=False, limits=limits)
        self._all.add(connection)
        return connection

    async def _close(self, connection: httpx2.AsyncHTTPTransport) -> None:
        self._all.discard(connection)
        await connection.aclose()

    async def _give_back(self, connection: httpx2.AsyncHTTPTransport) -> None:
        now = asyncio.get_running_loop().time()
        if connection in self._all:  # else all of them were closed meanwhile
            self._idle.append((now, connection))
        while self._idle and self._idle[0][0] < now - self._kept_seconds:
            await self._close(self._idle.popleft()[1])


class _Body(httpx2.AsyncByteStream):
    """The body of a reply, after which its connection is given back."""

    def __init__(self, body: httpx2.AsyncByteStream, done: Callable[[], Awaitable[None]]) -> None:
        self._body = body
        self._done = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece

    async def aclose(self) -> None:
        """Close the body; called once by httpx2, also when its reader was cancelled."""
        try:
            await self._body.aclose()
        finally:
            await self._done()
