"""Connections to a server: kept, given back, closed, and found as fast when many are open."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from coterie.engines.servers.client import Connections

OPEN = 300


@dataclass
class Server:
    """Answers with the number of the connection; ``/wait`` only when it is let go."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    waiting: int = 0
    writers: dict[int, asyncio.StreamWriter] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.writers[number] = writer
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                if b"/wait" in request:
                    self.waiting += 1
                    await self.go.wait()
                body = str(number).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            del self.writers[number]
            writer.close()


@asynccontextmanager
async def talking(idle_seconds: float = 60) -> AsyncIterator[tuple[Server, httpx2.AsyncClient]]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=OPEN)
    port = listening.sockets[0].getsockname()[1]
    transport = Connections(idle_seconds)
    async with (
        listening,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=transport) as client,
    ):
        client.timeout = httpx2.Timeout(None)
        yield server, client
        server.go.set()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_requests_after_each_other_use_one_connection_and_those_at_once_one_each() -> None:
    async def test() -> None:
        async with talking() as (server, client):
            said = [(await client.get("/")).text for _ in range(3)]
            assert said == ["1", "1", "1"]
            calls = [asyncio.create_task(client.get("/wait")) for _ in range(5)]
            await until(lambda: server.waiting == 5)
            server.go.set()
            texts = {(await call).text for call in calls}
            assert texts == {"1", "2", "3", "4", "5"}
            again = await asyncio.gather(*(client.get("/") for _ in range(5)))
            assert {reply.text for reply in again} == texts

    run(test())


def test_a_request_that_is_given_up_closes_its_connection_and_no_other() -> None:
    async def test() -> None:
        async with talking() as (server, client):
            calls = [asyncio.create_task(client.get("/wait")) for _ in range(2)]
            await until(lambda: server.waiting == 2)
            calls[0].cancel()
            await asyncio.gather(calls[0], return_exceptions=True)
            server.go.set()
            assert (await calls[1]).text == "2"
            await until(lambda: set(server.writers) == {2})
            assert (await client.get("/")).text == "2"

    run(test())


def test_idle_connections_are_closed_in_time_and_those_the_server_closed_are_not_used() -> None:
    async def test() -> None:
        async with talking(idle_seconds=0.2) as (server, client):
            await asyncio.gather(*(client.get("/") for _ in range(4)))
            await asyncio.sleep(0.3)
            assert (await client.get("/")).text == "5"
            await until(lambda: set(server.writers) == {5})
            server.writers[5].close()
            await until(lambda: not server.writers)
            assert (await client.get("/")).text == "6"

    run(test())


def test_closing_ends_what_is_in_flight() -> None:
    async def test() -> None:
        async with talking() as (server, client):
            await client.get("/")
            call = asyncio.create_task(client.get("/wait"))
            await until(lambda: server.waiting == 1)
            await client.aclose()
            (ended,) = await asyncio.gather(call, return_exceptions=True)
            assert isinstance(ended, httpx2.HTTPError)
            server.go.set()
            await until(lambda: not server.writers)

    run(test())


def test_a_request_costs_as_much_after_many_at_once_as_alone() -> None:
    async def cost(client: httpx2.AsyncClient) -> float:
        began = time.process_time()
        for _ in range(50):
            await client.get("/")
        return time.process_time() - began

    async def test() -> None:
        async with talking() as (server, client):
            await client.get("/")
            alone = await cost(client)
            calls = [asyncio.create_task(client.get("/wait")) for _ in range(OPEN)]
            await until(lambda: server.waiting == OPEN)
            server.go.set()
            await asyncio.gather(*calls)
            assert await cost(client) < 3 * alone  # with httpx2's own pool 12 times

    run(test())
