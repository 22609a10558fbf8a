"""HTTP connections to servers: at a URL, at a Unix socket, or behind a relay that asks for a secret.

vLLM's routes that load weights ask for no key (its ``--api-key`` guards ``/v1``, ``/inference`` and the like only).
Servers of ours therefore listen on a Unix socket in a private folder. On a cluster a relay on the server's node passes
connections from its network address to the socket, if the other side proves that it has the server's secret::

    relay -> client   32 random bytes
    client -> relay   32 random bytes, proof("client")
    relay -> client   proof("relay")
    both              HTTP

``proof(side)`` is the HMAC-SHA256 of side and random bytes under the secret, which itself is never sent. The random
bytes are new for each connection, so a recorded proof is useless for another.
"""

import asyncio
import hmac
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
import httpx2

from coterie.engines.protocol import IDLE_SECONDS, cancel

READ_BYTES = 1 << 16
PROOF_BYTES = 32
PROOF_SECONDS = 10.0
STRANGERS = 64
"""Maximum number of connections to a relay without a proof yet; more of them end the oldest."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server."""

    url: str
    """``http://HOST:PORT``, ``https://...``, or ``unix:PATH``."""
    secret: str = field(default="", repr=False)
    """Secret that the relay at the URL asks for; "" without a relay."""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connections(httpx2.AsyncBaseTransport):
    """HTTP/1.1 connections of a client to one address; the host in the URL of a request is ignored.

    With httpx's own transport, which scans all its connections for every request, a turn takes a third more of the
    driver's processor time (bench/results/scale-2026-11-27.md).
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[
            tuple[float, asyncio.StreamReader, asyncio.StreamWriter, h11.Connection]
        ] = []
        """Connections without a request: when their last reply ended, and their streams and HTTP state."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        content, limits = await request.aread(), request.extensions["timeout"]
        reader, writer, http = await self._connection(limits["connect"])
        method, path, parts = request.method, request.url.raw_path, []
        head = h11.Request(method=method, target=path, headers=request.headers.raw)
        sent = [http.send(event) or b"" for event in (head, h11.Data(content), h11.EndOfMessage())]
        try:
            # One limit for the whole reply; httpx's own transport would limit each read.
            async with asyncio.timeout(limits["read"]):
                writer.write(b"".join(sent))
                await writer.drain()
                while not isinstance(event := http.next_event(), h11.EndOfMessage):
                    if event is h11.NEED_DATA:
                        http.receive_data(await reader.read(READ_BYTES))
                    elif isinstance(event, h11.Response):
                        response = event
                    elif isinstance(event, h11.Data):
                        parts.append(event.data)
            # After this, h11 can take another request on the connection.
            if http.their_state is h11.DONE:
                http.start_next_cycle()
                self._idle.append((time.monotonic(), reader, writer, http))
            else:  # the server closes it
                writer.close()
        except BaseException as error:
            # After half a reply, also of a canceled request, the rest would be read as the next one.
            writer.transport.abort()
            if isinstance(error, TimeoutError | h11.ProtocolError):
                raise httpx2.ReadError(str(error) or "timeout", request=request) from error
            raise
        body, headers = httpx2.ByteStream(b"".join(parts)), response.headers.raw_items()
        return httpx2.Response(response.status_code, headers=headers, stream=body)

    async def _connection(
        self, seconds: float | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, h11.Connection]:
        """Return the connection that was used last, unless the server may close it soon, or a new one."""
        while self._idle:
            since, reader, writer, http = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS and not reader.at_eof():
                return reader, writer, http
            writer.close()
        async with asyncio.timeout(seconds):
            return *await _connect(self._address), h11.Connection(h11.CLIENT)

    async def aclose(self) -> None:
        for _, _, writer, _ in self._idle:
            writer.close()
        self._idle.clear()


def http_client(address: Address, timeout: httpx2.Timeout | float) -> httpx2.AsyncClient:
    """Return a client of the server at an address, for requests by path."""
    is_socket = address.url.startswith("unix:")
    return httpx2.AsyncClient(
        base_url="http://server" if is_socket else address.url,
        timeout=timeout,
        transport=Connections(address),
        trust_env=False,
    )


async def _connect(address: Address) -> Streams:
    """Open a connection. Raises ``OSError``, also if a relay does not accept or does not have the secret."""
    url = urlsplit(address.url)
    if url.scheme == "unix":
        return await asyncio.open_unix_connection(url.path)
    verify = httpx2.create_ssl_context(trust_env=False) if url.scheme == "https" else None
    port = url.port or (80 if verify is None else 443)
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=verify)
    if address.secret:
        try:
            await _prove(address.secret, reader, writer)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, EOFError):
                raise ConnectionError("the relay closed the connection") from error
            raise
    return reader, writer


async def _prove(secret: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Prove to a relay that this process has its secret, and check the proof of the relay in turn."""
    nonce = os.urandom(PROOF_BYTES)
    nonces = await reader.readexactly(PROOF_BYTES) + nonce
    writer.write(nonce + _proof(secret, b"client", nonces))
    expected = _proof(secret, b"relay", nonces)
    if not hmac.compare_digest(await reader.readexactly(PROOF_BYTES), expected):
        raise ConnectionError("the relay does not have the secret of the server")


async def _admit(secret: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return True if the other side proves in time that it has the secret."""
    nonce = os.urandom(PROOF_BYTES)
    writer.write(nonce)
    async with asyncio.timeout(PROOF_SECONDS):
        answer = await reader.readexactly(2 * PROOF_BYTES)
    nonces, proof = nonce + answer[:PROOF_BYTES], answer[PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"client", nonces)):
        return False
    writer.write(_proof(secret, b"relay", nonces))
    return True


def _proof(secret: str, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + nonces, "sha256")


@asynccontextmanager
async def relay(socket: str, host: str, secret: str) -> AsyncIterator[Address]:
    """Pass connections from a free port of ``host`` to a Unix socket, if they prove that they have the secret."""
    # Connections without a proof yet, the oldest first: a dict keeps the order, unlike a set.
    strangers: dict[asyncio.StreamWriter, None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        strangers[writer] = None
        if len(strangers) > STRANGERS:
            strangers.pop(oldest := next(iter(strangers)))
            oldest.transport.abort()
        with suppress(OSError, EOFError):  # either side is gone, or the time is up (TimeoutError)
            if await _admit(secret, reader, writer):
                strangers.pop(writer, None)
                await _join((reader, writer), await asyncio.open_unix_connection(socket))
        strangers.pop(writer, None)
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield Address(f"http://{host}:{server.sockets[0].getsockname()[1]}", secret)
    finally:
        server.close()


async def _join(client: Streams, server: Streams) -> None:
    """Pass bytes between two connections as they come, until one of them ends."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(READ_BYTES):
            writer.write(content)
            await writer.drain()

    copies = [copy(client[0], server[1]), copy(server[0], client[1])]
    tasks = [asyncio.ensure_future(work) for work in copies]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(tasks)
        server[1].close()
