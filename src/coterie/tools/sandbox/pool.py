"""The pool of workers: runs answers, several at a time, and grades them. See the package's docstring."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from coterie.errors import UserError
from coterie.tools.sandbox.inside.plain import NotPlain, Wire, encode
from coterie.tools.sandbox.inside.zygote import Job
from coterie.tools.sandbox.jail import make_jail
from coterie.tools.sandbox.results import CallResult, Graded, Mode, judge, read_record
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.sandbox.worker import Worker, WorkerLost

TRIES = 2
"""How often an answer is run whose worker is lost."""


class Sandbox:
    """Runs Python that a model wrote. An asynchronous context: inside it workers are up; may be used by many tasks.

    Entering it raises ``UserError``, with what to do, on a machine that can't contain processes.
    """

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self._idle: asyncio.Queue[Worker | None] = asyncio.Queue()
        """A place for each worker; ``None`` where one is to be started."""
        self._busy: set[Worker] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        jails = [make_jail(self.settings) for _ in range(self.settings.count)]
        started = await asyncio.gather(*map(Worker.start, jails), return_exceptions=True)
        for worker in started:
            if isinstance(worker, Worker):
                self._idle.put_nowait(worker)
        try:
            for worker in started:
                if isinstance(worker, BaseException):
                    raise worker
            await self._prove()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def run(
        self, source: str, calls: Sequence[str], *, mode: Mode = "module"
    ) -> list[CallResult]:
        """What each call gives after ``source`` has been run, in the order of the calls.

        ``calls`` are expressions. Each sees definitions of its own, so none can spoil another.
        """
        if not calls:
            return []
        for _ in range(TRIES):
            try:
                records = await self._run(source, list(calls), mode)
            except WorkerLost:
                continue
            return [read_record(call, record) for call, record in zip(calls, records, strict=True)]
        return [CallResult(call, None, "lost") for call in calls]

    async def grade(
        self,
        source: str,
        calls: Sequence[str],
        expected: Sequence[Any],
        *,
        mode: Mode = "module",
        tolerance: float = 0.0,
    ) -> Graded:
        """Run the calls, and compare what they give with ``expected``, by type and value.

        ``expected`` are plain values (None, numbers, text, bytes, and lists, tuples, dictionaries and sets of such);
        they stay here. ``tolerance`` is for floats (``compare.same``). Raises ``UserError`` for tests that
        can't be graded.
        """
        if not calls or len(calls) != len(expected):
            raise UserError(
                f"{len(calls)} calls and {len(expected)} expected values can't be graded",
                "give at least one call, and one value for each",
            )
        wires = [_plain(call, value) for call, value in zip(calls, expected, strict=True)]
        results = await self.run(source, calls, mode=mode)
        tests = zip(results, wires, strict=True)
        return Graded(tuple(judge(result, wire, mode, tolerance) for result, wire in tests))

    async def _run(self, source: str, calls: list[str], mode: Mode) -> list[tuple[int, bytes]]:
        if self._closed:
            raise RuntimeError("a sandbox runs nothing outside of its context")
        worker = await self._idle.get()
        back: Worker | None = None
        try:
            if worker is None:
                worker = await Worker.start(make_jail(self.settings))
            self._busy.add(worker)
            records = await worker.run(self._job(source, calls, mode, worker))
            back = worker
            return records
        finally:
            self._idle.put_nowait(back)
            if worker is not None:
                self._busy.discard(worker)
                if back is None:
                    await worker.close()

    def _job(self, source: str, calls: list[str], mode: Mode, worker: Worker) -> Job:
        of = self.settings
        return Job(
            source=source,
            calls=calls,
            legacy=mode == "legacy",
            wall_seconds=of.wall_seconds,
            cpu_seconds=of.cpu_seconds,
            total_seconds=of.total_seconds,
            memory_mib=of.memory_mib,
            processes=of.processes,
            file_mib=of.file_mib,
            output_kib=of.output_kib,
            uid=worker.jail.uid,
            gid=worker.jail.gid,
        )

    async def _prove(self) -> None:
        """Refuse a sandbox in which the simplest answer doesn't run."""
        (result,) = await self.run("def f(x):\n    return x + 1", ["f(1)"])
        if not result.ok or result.value != 2:
            raise UserError(
                f"the sandbox starts but runs nothing: {result.reason}",
                "the interpreter's files must be readable by every user; see docs/howto/sandbox.md",
            )

    async def _close(self) -> None:
        self._closed = True
        for _ in range(self._idle.qsize()):
            worker = self._idle.get_nowait()
            if worker is not None:
                await worker.close()
        for worker in tuple(self._busy):
            await worker.close()


def _plain(call: str, value: object) -> Wire:
    try:
        return encode(value)
    except NotPlain as error:
        raise UserError(
            f"the expected value of `{call}` can't be compared: {error}", "give plain values"
        ) from error
