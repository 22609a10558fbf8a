"""Worker process of a jail. Sends requests to the supervisor in it and reads the replies."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import struct
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from coterie.errors import UserError
from coterie.tools.sandbox.inside.cell import Cell, Closing, Opening
from coterie.tools.sandbox.inside.job import HEAD, REPLY, Job, JobRecord
from coterie.tools.sandbox.jail import advice
from coterie.tools.sandbox.users import User, claim_user

START_SECONDS = 60.0
"""Timeout for starting a jail on a busy machine."""
GRACE_SECONDS = 10.0
"""Timeout for a reply, in addition to the job's limit."""
STDERR = 2000
"""Bytes of a jail's stderr to keep."""
CLOSE_SECONDS = 10.0
"""Timeout for the end of a killed jail."""
Request = Job | Opening | Cell | Closing


class WorkerLost(Exception):
    """The worker sent no valid reply and was ended."""


class Worker:
    """Jail that runs one answer at a time, or one session. Create it with ``start``."""

    def __init__(self, user: User, process: Process) -> None:
        self.user = user
        self.seconds = 0.0
        """Seconds of the last job, without the time it waited for a CPU."""
        self._process = process

    @classmethod
    async def start(cls, jail: Sequence[str]) -> "Worker":
        """Start a jail. Raises ``UserError`` if it does not start."""
        user = claim_user()
        try:
            process = await asyncio.create_subprocess_exec(
                *jail, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={}, start_new_session=True
            )
        except BaseException:
            user.release()
            raise
        worker = cls(user, process)
        try:
            ready = await asyncio.wait_for(worker._out.readexactly(5), START_SECONDS)
            if ready != b"ready":
                raise UserError("the sandbox did not start: its first reply is invalid", advice())
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            text = (await worker.close()) or f"{jail[0]} printed nothing ({type(error).__name__})"
            raise UserError(f"the sandbox did not start: {text}", advice()) from error
        except BaseException:
            await worker.close()
            raise
        return worker

    async def run(self, request: Request) -> list[JobRecord]:
        """Return the records of the reply, for a job one for each call.

        Raises ``WorkerLost`` without a valid reply. The worker is killed on any exception.
        """
        nonce = secrets.token_bytes(16)
        try:
            self._in.write(pack(request) + nonce)
            reply = await asyncio.wait_for(
                self._reply(nonce, request), request.longest_seconds + GRACE_SECONDS
            )
            return _records(reply, request.records)
        except (OSError, EOFError, TimeoutError, ValueError, struct.error) as error:
            self.kill()
            raise WorkerLost(f"the sandbox's worker was lost ({type(error).__name__})") from error
        except BaseException:
            self.kill()
            raise

    async def _reply(self, nonce: bytes, request: Request) -> bytes:
        await self._in.drain()
        head = await self._out.readexactly(len(nonce) + REPLY.size)
        if head[: len(nonce)] != nonce:
            raise ValueError("the reply has another run's nonce")
        size, self.seconds = REPLY.unpack_from(head, len(nonce))
        if size > request.max_reply:
            raise ValueError("the reply is too long")
        return await self._out.readexactly(size)

    @property
    def pid(self) -> int:
        """Process id of the jail's outermost process."""
        return self._process.pid

    @property
    def _in(self) -> StreamWriter:
        return cast(StreamWriter, self._process.stdin)

    @property
    def _out(self) -> StreamReader:
        return cast(StreamReader, self._process.stdout)

    def kill(self) -> None:
        """Kill the jail and all its processes, even while it starts."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> str:
        """Kill the jail and wait for its end; return its stderr.

        Its pipes are read to the end, since asyncio reports the process as ended only then.
        """
        self.kill()
        self._in.close()
        error = cast(StreamReader, self._process.stderr)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                _, stderr, _ = await asyncio.gather(
                    _drain(self._out), _drain(error), self._process.wait()
                )
                with contextlib.suppress(OSError):
                    await self._in.wait_closed()
        except TimeoutError:
            return ""  # the kernel ends it later
        finally:
            self.user.release()
        return stderr.decode(errors="replace").strip()


def pack(request: Request) -> bytes:
    """Serialize a request for the supervisor, without its nonce."""
    body = json.dumps(asdict(request)).encode()
    return HEAD.pack(request.kind, len(body)) + body


async def _drain(pipe: StreamReader) -> bytes:
    beginning = b""
    while data := await pipe.read(1 << 16):
        beginning = (beginning + data)[:STDERR]
    return beginning


def _records(reply: bytes, count: int) -> list[JobRecord]:
    records, at = [], 0
    for _ in range(count):
        kind, size = struct.unpack_from(">BI", reply, at)
        at += 5 + size
        records.append((kind, reply[at - size : at]))
    if at != len(reply):
        raise ValueError("the reply has extra bytes")
    return records
