"""A group of workers that take turns: one more is started when all are busy, up to as many as are allowed."""

import asyncio
import json
from collections.abc import Sequence

from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.tools.sandbox.inside.job import JUDGED, Job, JobRecord
from coterie.tools.sandbox.jail import make_jail
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.sandbox.users import User
from coterie.tools.sandbox.worker import Worker, WorkerLost

TRIES = 2
"""How often an answer is run whose worker is lost."""
SPOILED = "two workers were lost with it, and others run"
"""Of an answer that ends the jails it runs in."""


class SandboxFailed(EngineError):
    """The sandbox could not run an answer or a cell, by its own account: whatever needs the result fails."""


class Crew:
    """Workers of one kind; no two kinds of code meet in one."""

    def __init__(self, settings: SandboxSettings, count: int | None = None) -> None:
        """``count`` workers, by default as many as answers run at a time."""
        self.settings = settings
        self.busy: set[Worker] = set()
        self._idle: asyncio.LifoQueue[Worker | None] = asyncio.LifoQueue()
        """A place for each worker; ``None`` where one is to be started."""
        self.changed = asyncio.Event()
        """Set whenever a place is free again; who waits for that clears it."""
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
        """A record for each call, and the seconds that they took; ``limits`` are others than the crew's.

        Raises :class:`SandboxFailed` if workers are lost, and not by this answer alone.
        """
        for _ in range(TRIES):
            try:
                return await self._run(source, list(calls), legacy, limits or self.settings)
            except WorkerLost as error:
                why = error
        await self.prove(why)
        return [(JUDGED, json.dumps({"failed": "ended", "why": SPOILED}).encode())] * len(
            calls
        ), 0.0

    async def prove(self, why: Exception) -> None:
        """Raise :class:`SandboxFailed` unless the simplest answer runs; if it does, who lost workers did it."""
        try:
            worker = await self._start()
            try:
                ((_, told),) = await worker.run(
                    job_of(self.settings, "", ["1"], False, worker.user)
                )
            finally:
                await worker.close()
        except (WorkerLost, UserError) as error:
            raise SandboxFailed(f"the sandbox's workers are lost: {error}") from why
        if json.loads(told).get("value") != ["int", "1"]:
            raise SandboxFailed(f"the sandbox runs nothing: {told.decode()}") from why

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
        """Whether a worker can be had without waiting for another one's end."""
        return not self._idle.empty()

    async def take(self) -> Worker:
        if self._closed:
            raise RuntimeError("a sandbox runs nothing outside of its context")
        worker = await self._idle.get() or await self._started()
        self.busy.add(worker)
        return worker

    def give_back(self, worker: Worker) -> None:
        self.busy.discard(worker)
        self._free(worker)

    async def drop(self, worker: Worker) -> None:
        """End a worker; another one will take its place."""
        self.busy.discard(worker)
        self._free(None)
        await worker.close()

    async def _started(self) -> Worker:
        """A new worker.

        Its start is never cut short, which neither asyncio nor bubblewrap can take: if nobody waits for it any more,
        the worker waits for the next answer.
        """
        starting = asyncio.create_task(self._start())
        self._starting.add(starting)
        try:
            worker = await asyncio.shield(starting)
        except BaseException:
            starting.add_done_callback(self._unused)
            raise
        self._starting.discard(starting)
        return worker

    async def _start(self) -> Worker:
        return await Worker.start(make_jail(self.settings))

    def _unused(self, starting: asyncio.Task[Worker]) -> None:
        self._starting.discard(starting)
        failed = starting.cancelled() or starting.exception() is not None
        self._free(None if failed else starting.result())

    def _free(self, place: Worker | None) -> None:
        self._idle.put_nowait(place)
        self.changed.set()

    async def close(self) -> None:
        self._closed = True
        if self._starting:
            await asyncio.wait(self._starting)
            await asyncio.sleep(0)  # for their callbacks
        workers = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        there = [worker for worker in (*workers, *self.busy) if worker is not None]
        await asyncio.gather(*(worker.close() for worker in there))


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
