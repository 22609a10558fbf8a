"""One worker: the jail's process, and the exchange of requests and replies with the supervisor in it."""

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
"""For a jail to come up, on a busy machine."""
GRACE_SECONDS = 10.0
"""For a reply, beyond the time that the job has."""
STDERR = 2000
"""Bytes that are kept of what a jail says."""
CLOSE_SECONDS = 10.0
"""For a jail that was killed to be gone."""
Request = Job | Opening | Cell | Closing


class WorkerLost(Exception):
    """The worker gave no proper reply, and is ended."""


class Worker:
    """A jail that runs one answer at a time, or has one session. Start it with ``start``."""

    def __init__(self, user: User, process: Process) -> None:
        self.user = user
        self.seconds = 0.0
        """That the last job took, without the time for which it waited for a processor."""
        self._process = process

    @classmethod
    async def start(cls, jail: Sequence[str]) -> "Worker":
        """Start a jail; raises ``UserError`` with what to do if it doesn't come up."""
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
                raise UserError("the sandbox does not start here: it answers strangely", advice())
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            text = (await worker.close()) or f"{jail[0]} said nothing ({type(error).__name__})"
            raise UserError(f"the sandbox does not start here: {text}", advice()) from error
        except BaseException:
            await worker.close()
            raise
        return worker

    async def run(self, request: Request) -> list[JobRecord]:
        """The records of the reply, for a job one for each call; raises ``WorkerLost``. Whatever it raises, the worker
        is ended."""
        nonce = secrets.token_bytes(16)
        try:
            self._in.write(written(request) + nonce)
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
            raise ValueError("a reply to another run")
        size, self.seconds = REPLY.unpack_from(head, len(nonce))
        if size > request.max_reply:
            raise ValueError("a reply that is too long")
        return await self._out.readexactly(size)

    @property
    def pid(self) -> int:
        """Of the jail's outermost process."""
        return self._process.pid

    @property
    def _in(self) -> StreamWriter:
        return cast(StreamWriter, self._process.stdin)

    @property
    def _out(self) -> StreamReader:
        return cast(StreamReader, self._process.stdout)

    def kill(self) -> None:
        """End the jail and all that is in it, also while it comes up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> str:
        """End the jail and wait until it is gone; what it wrote to its standard error.

        Its pipes are read to their ends meanwhile: the process counts as ended only then, and a full one is not read
        by itself.
        """
        self.kill()
        self._in.close()
        error = cast(StreamReader, self._process.stderr)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                _, said, _ = await asyncio.gather(
                    _drained(self._out), _drained(error), self._process.wait()
                )
                with contextlib.suppress(OSError):
                    await self._in.wait_closed()
        except TimeoutError:
            return ""  # the kernel will end it; nobody has to wait
        finally:
            self.user.release()
        return said.decode(errors="replace").strip()


def written(request: Request) -> bytes:
    """A request as the supervisor reads it, without its nonce."""
    body = json.dumps(asdict(request)).encode()
    return HEAD.pack(request.kind, len(body)) + body


async def _drained(pipe: StreamReader) -> bytes:
    kept = b""
    while data := await pipe.read(1 << 16):
        kept = (kept + data)[:STDERR]
    return kept


def _records(reply: bytes, count: int) -> list[JobRecord]:
    records, at = [], 0
    for _ in range(count):
        kind, size = struct.unpack_from(">BI", reply, at)
        at += 5 + size
        records.append((kind, reply[at - size : at]))
    if at != len(reply):
        raise ValueError("a reply of another length")
    return records
