"""Relay before a server on a node of a cluster: requests and streams pass, strangers don't."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coterie.engines import connections
from coterie.engines.connections import PROOF_BYTES, Address, http_client, relay

SECRET = "5f3c" * 16
REQUEST = b"POST /update_weights HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\n\r\n"


class Upstream:
    """Server on a Unix socket that counts its requests and sends a reply in two parts."""

    def __init__(self) -> None:
        self.requests = 0
        self.second_part = asyncio.Event()
        self.client_left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na")
                await self.second_part.wait()
                writer.write(b"b")
        except asyncio.IncompleteReadError:
            self.client_left.set()
        finally:
            writer.close()


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[Upstream, Address]]:
    upstream, path = Upstream(), str(tmp_path / "server")
    server = await asyncio.start_unix_server(upstream.serve, path)
    async with server, relay(path, "127.0.0.1", SECRET) as address:
        yield upstream, address


async def post(address: Address) -> bytes:
    async with http_client(address, 5.0) as http:
        return (await http.post("/update_weights")).content


def host(address: Address) -> tuple[str, int]:
    url = httpx2.URL(address.url)
    return url.host, url.port or 0


def test_requests_of_the_owner_of_the_secret_pass_and_replies_stream(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (upstream, address):
            assert SECRET not in repr(address)
            reader, writer = await connections._connect(address)
            writer.write(REQUEST)
            assert (await reader.readuntil(b"\r\n\r\na")).startswith(b"HTTP/1.1 200 OK")
            upstream.second_part.set()
            assert await reader.readexactly(1) == b"b"
            writer.close()
            await upstream.client_left.wait()
            assert await asyncio.gather(*(post(address) for _ in range(20))) == [b"ab"] * 20

    asyncio.run(run())


async def without_proof(address: Address) -> None:
    reader, writer = await asyncio.open_connection(*host(address))
    writer.write(REQUEST)
    await reader.readexactly(PROOF_BYTES)
    assert await reader.read(1) == b""


async def wrong_secret(address: Address) -> None:
    with pytest.raises(OSError, match="the relay closed the connection"):
        await post(Address(address.url, SECRET[::-1]))


async def empty_secret(address: Address) -> None:
    with pytest.raises((OSError, httpx2.HTTPError)):
        await post(Address(address.url))


async def replay(address: Address) -> None:
    """Send all bytes of an owner's connection again."""
    reader, writer = await asyncio.open_connection(*host(address))
    nonces = await reader.readexactly(PROOF_BYTES) + os.urandom(PROOF_BYTES)
    recorded = nonces[PROOF_BYTES:] + connections._proof(SECRET, b"client", nonces) + REQUEST
    writer.close()
    reader, writer = await asyncio.open_connection(*host(address))
    writer.write(recorded)
    await reader.readexactly(PROOF_BYTES)
    assert await reader.read(1) == b""


async def reflect(address: Address) -> None:
    """Let the relay compute a proof for a second connection."""
    reader, writer = await asyncio.open_connection(*host(address))
    second, to_second = await asyncio.open_connection(*host(address))
    nonce = await second.readexactly(PROOF_BYTES)
    writer.write(nonce + await reader.readexactly(PROOF_BYTES))
    assert await reader.read(1) == b""
    writer.close()
    to_second.close()


@pytest.mark.parametrize("attack", [without_proof, wrong_secret, empty_secret, replay, reflect])
def test_a_stranger_reaches_no_route(
    attack: Callable[[Address], Awaitable[None]], tmp_path: Path
) -> None:
    async def run() -> None:
        async with served(tmp_path) as (upstream, address), asyncio.timeout(5):
            upstream.second_part.set()
            await attack(address)
            assert upstream.requests == 0

    asyncio.run(run())


def test_silent_connections_end_and_do_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGERS", 4)

    async def run() -> None:
        async with served(tmp_path) as (upstream, address), asyncio.timeout(5):
            upstream.second_part.set()
            opening = (asyncio.open_connection(*host(address)) for _ in range(20))
            silent = await asyncio.gather(*opening)
            assert await post(address) == b"ab"
            ended = [len(await reader.read()) for reader, _ in silent[:16]]
            assert max(ended) <= PROOF_BYTES  # without waiting for the time limit
            monkeypatch.setattr(connections, "PROOF_SECONDS", 0.1)
            late, _ = await asyncio.open_connection(*host(address))
            assert len(await late.read()) == PROOF_BYTES  # then the relay closes it
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_a_client_recognizes_a_false_relay() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(2 * PROOF_BYTES))

    async def run() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port: Any = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match="does not have the secret"):
                await post(Address(f"http://127.0.0.1:{port}", SECRET))

    asyncio.run(run())
