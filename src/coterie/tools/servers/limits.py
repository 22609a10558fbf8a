"""What every request to the tool server goes through: an id, a log line, limits of its tool, and errors as JSON."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.tools.servers.answers import RequestRefused, answer
from coterie.tools.servers.kinds import BackendSettings

logger = logging.getLogger("coterie.tools.servers")
ID = "X-Request-ID"
"""The header, and the key of a request's id in its scope."""
_PLAIN = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """How many requests one tool works on, and how many may wait for that."""

    def __init__(self, settings: BackendSettings) -> None:
        self.settings = settings
        self.running = 0
        self.waiting = 0
        self._room = asyncio.Semaphore(settings.concurrent)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place to work in. Raises ``RequestRefused`` (503) if too many wait already."""
        if self._room.locked() and self.waiting >= self.settings.queue:
            raise RequestRefused(
                503,
                f"{self.settings.name} is full: {self.running} requests are worked on, "
                f"{self.waiting} wait; try again later",
            )
        self.waiting += 1
        try:
            await self._room.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._room.release()


@dataclass(slots=True)
class Exchange:
    """One request, and what became of it."""

    scope: Scope
    receive: Receive
    send: Send
    id: str
    status: int = 0
    """0 as long as no reply has begun."""
    began: float = field(default_factory=time.monotonic)

    async def reply(self, message: Message) -> None:
        """Send a piece of the reply, with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)[ID] = self.id
        await self.send(message)

    async def refuse(self, status: int, said: str) -> None:
        """Reply with an error, unless a reply has begun."""
        if not self.status:
            await answer(status, said)(self.scope, self.receive, self.reply)


class Limits:
    """The application behind the limits of ``gates``, which are by the path of what is posted."""

    def __init__(self, app: ASGIApp, gates: Mapping[str, Gate]) -> None:
        self._app, self._gates = app, gates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(ID, "")
        known = given if _PLAIN.fullmatch(given) else secrets.token_hex(8)
        scope[ID] = known
        exchange = Exchange(scope, receive, send, known)
        gate = self._gates.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            if gate is None:
                await self._app(scope, receive, exchange.reply)
            else:
                await self._limited(exchange, gate)
        except RequestRefused as refused:
            await exchange.refuse(refused.status, refused.message)
        except Exception:
            logger.exception("%s failed", known)  # the application has replied
        finally:
            milliseconds = 1000 * (time.monotonic() - exchange.began)
            logger.info(
                "%s %s %s %s %.0f ms",
                *(known, scope["method"], scope["path"], exchange.status or "gone", milliseconds),
            )

    async def _limited(self, exchange: Exchange, gate: Gate) -> None:
        """Read the body, wait for a place and answer, all within the time limit, while the client is there."""
        seconds = gate.settings.seconds
        until = exchange.began + seconds
        try:
            async with asyncio.timeout(seconds):
                body = await _body(exchange, gate.settings.body_bytes)
        except TimeoutError:
            await exchange.refuse(408, f"the body did not come within {seconds:g} seconds")
            return
        if body is None:
            return
        gone = asyncio.ensure_future(_disconnected(exchange.receive))
        work = asyncio.ensure_future(self._work(exchange, gate, body, gone))
        try:
            left = max(0.0, until - time.monotonic())
            await asyncio.wait((work, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif not gone.done():
                await _ended(work)
                await exchange.refuse(408, f"there was no answer within {seconds:g} seconds")
        finally:
            await _ended(work)
            await _ended(gone)

    async def _work(
        self, exchange: Exchange, gate: Gate, body: bytes, gone: "asyncio.Future[None]"
    ) -> None:
        told = False

        async def receive() -> Message:
            nonlocal told
            if told:
                await asyncio.shield(gone)
                return {"type": "http.disconnect"}
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        async with gate.place():
            await self._app(exchange.scope, receive, exchange.reply)


async def _body(exchange: Exchange, most: int) -> bytes | None:
    """The whole body; ``None`` if the client went away. Raises ``RequestRefused`` (413) for one that is too long."""
    said = Headers(scope=exchange.scope).get("content-length", "")
    size = int(said) if said.isdecimal() else 0
    found = bytearray()
    more = True
    while more and max(size, len(found)) <= most:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            return None
        found += message.get("body", b"")
        more = message.get("more_body", False)
    if max(size, len(found)) > most:
        raise RequestRefused(413, f"the body has more than {most:,} bytes")
    return bytes(found)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(task: "asyncio.Future[None]") -> None:
    """Cancel a task, and wait until it is over, however it ends."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
