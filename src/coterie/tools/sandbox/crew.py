"""Pool of workers. Another one starts when all are busy, up to a limit."""

import asyncio
import json
from collections.abc import Sequence

from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.tools.sandbox.inside.job import BY_SUPERVISOR, Job, JobRecord
from coterie.tools.sandbox.jail import make_jail
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.sandbox.users import User
from coterie.tools.sandbox.worker import Worker, WorkerLost

TRIES = 2
"""Number of attempts to run an answer whose worker is lost."""
SPOILED = "two workers were lost with it, and others run"
"""Failure of an answer that ends its jails."""


class SandboxFailed(EngineError):
    """The sandbox could not run an answer or a cell, through no fault of the code in it."""


class WorkerPool:
    """Pool of workers for one kind of code (answers, references or sessions)."""

    def __init__(self, settings: SandboxSettings, count: int | None = None) -> None:
        """Create a pool of ``count`` workers, by default ``settings.count``."""
        self.settings = settings
        self.busy: set[Worker] = set()
        self._idle: asyncio.LifoQueue[Worker | None] = asyncio.LifoQueue()
        """One slot for each worker; ``None`` if it has not started."""
        self.changed = asyncio.Event()
        """Set whenever a slot becomes free; the waiting task clears it."""
        for _ in range(settings.count if count is None else count):
            self._free(None)
        self._starting: set[asyncio.Task[Worker]] = set()
        self._closed = False

    async def run(
        self,
        source: str,
        calls: Sequence[str],
        *,
        legacy: bool,
        limits: SandboxSettings | None = None,
    ) -> tuple[list[JobRecord], float]:
        """Run calls; return a record for each, and the seconds they took. ``limits`` override the pool's settings.

        Raises :class:`SandboxFailed` if workers are lost for another reason than this answer.
        """
        for _ in range(TRIES):
            try:
                return await self._run(source, list(calls), legacy, limits or self.settings)
            except WorkerLost as error:
                why = error
        await self.check(why)
        record = BY_SUPERVISOR, json.dumps({"failed": "ended", "why": SPOILED}).encode()
        return [record] * len(calls), 0.0

    async def check(self, why: Exception) -> None:
        """Raise :class:`SandboxFailed` unless a trivial answer runs, since then the answer lost the workers."""
        try:
            worker = await self._start()
            try:
                ((_, record),) = await worker.run(
                    job_of(self.settings, "", ["1"], False, worker.user)
                )
            finally:
                await worker.close()
        except (WorkerLost, UserError) as error:
            raise SandboxFailed(f"the sandbox's workers are lost: {error}") from why
        if json.loads(record).get("value") != ["int", "1"]:
            raise SandboxFailed(
                f"the sandbox cannot run a trivial answer: {record.decode()}"
            ) from why

    async def _run(
        self, source: str, calls: list[str], legacy: bool, limits: SandboxSettings
    ) -> tuple[list[JobRecord], float]:
        worker = await self.take()
        try:
            records = await worker.run(job_of(limits, source, calls, legacy, worker.user))
        except BaseException:
            await self.drop(worker)
            raise
        self.give_back(worker)
        return records, worker.seconds

    @property
    def has_room(self) -> bool:
        """True if a worker is available without waiting."""
        return not self._idle.empty()

    async def take(self) -> Worker:
        if self._closed:
            raise RuntimeError("the sandbox is closed; run code inside its `async with` block")
        worker = await self._idle.get() or await self._start_shielded()
        self.busy.add(worker)
        return worker

    def give_back(self, worker: Worker) -> None:
        self.busy.discard(worker)
        self._free(worker)

    async def drop(self, worker: Worker) -> None:
        """End a worker and free its slot."""
        self.busy.discard(worker)
        self._free(None)
        await worker.close()

    async def _start_shielded(self) -> Worker:
        """Start a worker. If the caller is canceled, the start completes and the worker becomes idle.

        Neither asyncio nor bubblewrap handles an interrupted start.
        """
        starting = asyncio.create_task(self._start())
        self._starting.add(starting)
        try:
            worker = await asyncio.shield(starting)
        except BaseException:
            starting.add_done_callback(self._keep_unused)
            raise
        self._starting.discard(starting)
        return worker

    async def _start(self) -> Worker:
        return await Worker.start(make_jail(self.settings))

    def _keep_unused(self, starting: asyncio.Task[Worker]) -> None:
        self._starting.discard(starting)
        failed = starting.cancelled() or starting.exception() is not None
        self._free(None if failed else starting.result())

    def _free(self, slot: Worker | None) -> None:
        self._idle.put_nowait(slot)
        self.changed.set()

    async def close(self) -> None:
        self._closed = True
        if self._starting:
            await asyncio.wait(self._starting)
            await asyncio.sleep(0)  # for their callbacks
        workers = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        started = [worker for worker in (*workers, *self.busy) if worker is not None]
        await asyncio.gather(*(worker.close() for worker in started))


def job_of(of: SandboxSettings, source: str, calls: list[str], legacy: bool, user: User) -> Job:
    return Job(
        source=source,
        calls=calls,
        legacy=legacy,
        wall_seconds=of.wall_seconds,
        cpu_seconds=of.cpu_seconds,
        total_seconds=of.total_seconds,
        memory_mib=of.memory_mib,
        processes=of.processes,
        file_mib=of.file_mib,
        output_kib=of.output_kib,
        uid=user.uid,
        gid=user.uid,
    )
