"""The pipes to an MCP server that we start: a line of JSON for each message, and none longer than ``MAX_LINE``.

The SDK's own transport keeps a line in memory however long it is. Here one that is too long is thrown away as it comes;
the request that it answers fails, and the connection goes on.
"""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TextIO

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

MAX_LINE = 16 * 2**20
"""Bytes of a line."""
TOO_LONG = -32010
"""Code of the error of a request whose answer is."""
CHUNK = 2**16
HEAD = 256
"""Bytes that are kept of a line that is too long; its id is among them."""
END_SECONDS = 2.0
"""How long a server may take to end by itself when its input ends, and then to be ended."""
TICK = 0.01
_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]+|"[^"\\]*")\s*,')
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)
Received = SessionMessage | Exception


@asynccontextmanager
async def pipes(
    command: Sequence[str], environment: Mapping[str, str], folder: str | None, log: TextIO
) -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]
]:
    """A transport for the SDK's client; the process has ended when the block has."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    told, incoming = anyio.create_memory_object_stream[Received](0)
    outgoing, asked = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(process.stdout, told))
    writing = asyncio.create_task(_write(process.stdin, asked, told))
    try:
        yield incoming, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            incoming.close()
            outgoing.close()
            await asyncio.wait({writing}, timeout=END_SECONDS / 4)
            writing.cancel()
            process.stdin.close()
            await _end(process)
            reading.cancel()
            await asyncio.wait({reading, writing})
            async with AsyncExitStack() as stack:
                for stream in (told, asked):
                    stack.push_async_callback(stream.aclose)


async def lines(stdout: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    """Lines without their ends; of one that is too long its beginning, and that it is."""
    held, over = bytearray(), False
    while chunk := await stdout.read(CHUNK):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            over = over or len(held) + len(part) > MAX_LINE
            yield bytes(held[:HEAD] if over else held + part), over
            held, over = bytearray(), False
        held += rest
        if over or len(held) > MAX_LINE:
            over = True
            del held[HEAD:]


async def _read(stdout: asyncio.StreamReader, told: MemoryObjectSendStream[Received]) -> None:
    """Give the client what the server says; what comes when that has gone is thrown away, so that no pipe is full."""
    async with told:
        async for line, over in lines(stdout):
            message = _too_long(line) if over else _message(line)
            if message is None:
                break
            try:
                await told.send(message)
            except _GONE:
                break
    while await stdout.read(CHUNK):
        pass


async def _write(
    stdin: asyncio.StreamWriter,
    asked: MemoryObjectReceiveStream[SessionMessage],
    told: MemoryObjectSendStream[Received],
) -> None:
    try:
        async for one in asked:
            text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(text.encode() + b"\n")
            await stdin.drain()
    except OSError:  # it reads nothing more: no request would ever be answered
        await told.aclose()


def _message(line: bytes) -> Received:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


def _too_long(head: bytes) -> Received | None:
    """An error in the place of an answer; ``None`` where it can't be told whose answer it is."""
    found = _ID.match(head)
    if found is None:
        return None
    why = f"the answer is longer than {MAX_LINE:,} bytes, and was not read"
    error: dict[str, Any] = {"code": TOO_LONG, "message": why}
    fields = {"jsonrpc": "2.0", "id": json.loads(found[1]), "error": error}
    return _message(json.dumps(fields).encode())


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait until it ends, or end it: the leash ends what it runs."""
    for end in (lambda: None, process.terminate, process.kill):
        with suppress(ProcessLookupError):
            end()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while (
                    process.returncode is None
                ):  # wait() also waits for pipes that others may hold
                    await asyncio.sleep(TICK)
                return
