"""Pool of workers that runs and grades answers, and sessions of Python.

    async with sandbox.session(seed=0) as session:
        await session.run("x = 6 * 7")
        print((await session.run("x")).text)   # 42

A session's state follows from its seed and its cells. If its process is lost (its worker died, or another session
needed its slot), the session is restored by running its cells again. Their output must be the same as before.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from coterie.errors import UserError
from coterie.tools.sandbox.inside.job import (
    CELL,
    CLOSING,
    CONTINUATION,
    GONE,
    OPENING,
    SECONDS,
    JobRecord,
)
from coterie.tools.sandbox.inside.plain import encode
from coterie.tools.sandbox.results import CallResult, Graded, Mode, judge, read_record
from coterie.tools.sandbox.worker import (
    TRIES,
    SandboxFailed,
    SandboxSettings,
    Worker,
    WorkerLost,
    WorkerPool,
    request,
)

NOTHING = "The cell ran and printed nothing. Print what you want to see."
ANEW = "The session begins anew: variables, functions and imports of earlier cells are gone."
LOST = {
    "timeout": "The cell took too long and was stopped.",
    "memory": "The cell used too much memory and was stopped.",
    "ended": "The cell ended the process of the session.",
    "garbled": "The cell wrote to the channel of the session and was stopped.",
    "lost": "The process of the session was lost, and its cells did not bring it back.",
    "restless": "Processes of the cell could not be stopped when it was done, and were ended.",
}
MAX_WHY = 200
_ADDRESS = re.compile(r"\bat 0x[0-9A-Fa-f]+")
ADDRESS = "at 0x..."
"""Text that replaces an object's address, which may change in a replay."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """Result of one cell."""

    text: str
    """Output, value of the last expression, traceback, or why the cell was stopped; never empty."""
    failed: str = ""
    """``syntax`` (nothing ran), ``error`` (an exception), ``refused`` (``exit()``, ``input()``), or one of ``LOST``;
    empty for success. Reported by the cell's process, so untrusted."""

    @property
    def lost(self) -> bool:
        """True if the state is lost; the next cell starts a new one."""
        return self.failed in LOST


def read_cell(records: Sequence[JobRecord], max_characters: int) -> CellResult | None:
    """Parse the records of a cell; ``None`` if the process was lost. Raises ``WorkerLost`` if it was not opened."""
    (_, verdict), (_, head), (_, tail) = records
    content = json.loads(verdict)
    failed = content["failed"]
    message = str(content["why"])[:MAX_WHY]
    left_out = content["left_out"]
    if failed == GONE:
        return None
    if failed == "open":
        raise WorkerLost(f"a session could not be confined: {_text(head)[:MAX_WHY]}")
    # the output before a limit is exceeded is not reproducible
    output = (
        shorten(head, tail, left_out, max_characters)
        if failed not in LOST or failed == "ended"
        else ""
    )
    if failed not in LOST:
        return CellResult(output or NOTHING, failed)
    reason = LOST[failed] + (f" ({message})" if message else "")
    return CellResult("\n".join(filter(None, (output, reason, ANEW))), failed)


def shorten(head: bytes, tail: bytes, left_out: int | None, max_characters: int) -> str:
    """Shorten a text that lacks ``left_out`` characters (or ``None``) between head and tail to ``max_characters``."""
    half = max_characters // 2
    if left_out is not None:
        beginning, end = _text(head), _text(tail.lstrip(CONTINUATION))
    else:
        text = _text(head + tail)
        if len(text) <= max_characters:
            return text.rstrip("\n")
        beginning, end, left_out = text[:half], text[half:], 0
    left_out += max(len(beginning) - half, 0) + max(len(end) - half, 0)
    note = f"[... {left_out:,} characters are left out here ...]"
    return f"{beginning[:half]}\n{note}\n{end[-half:]}".rstrip("\n")


def _text(data: bytes) -> str:
    return _ADDRESS.sub(ADDRESS, data.decode(errors="replace"))


_STARTING = {"wall_seconds": SECONDS, "cpu_seconds": SECONDS}


class CellLost(WorkerLost):
    """A worker was lost after a cell ran in it, or replay did not restore the session."""


@dataclass(eq=False, slots=True)
class PythonSession:
    """Python session, whose cells run one at a time."""

    sessions: "Sessions"
    seed: int
    """Seed of ``random`` in every new state."""
    cells: list[tuple[str, CellResult]] = field(default_factory=list)
    closed: bool = False
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, source: str) -> CellResult:
        """Run a cell. Raises ``SandboxFailed`` if it can't run, through no fault of the session's cells."""
        async with self.sessions.workers.running(), self._one:
            lost: list[WorkerLost] = []
            while len(lost) < TRIES:
                try:
                    result = await self.sessions.run(self, source)
                    break
                except WorkerLost as error:
                    lost.append(error)
            else:
                last_loss = next(
                    (loss for loss in reversed(lost) if isinstance(loss, CellLost)), None
                )
                if last_loss is None:
                    raise SandboxFailed(f"a cell could not be run: {lost[-1]}") from lost[-1]
                await self.sessions.workers.check(last_loss)
                result = CellResult(f"{LOST['lost']} ({last_loss})\n{ANEW}", "lost")
            self.cells = [] if result.lost else [*self.cells, (source, result)]
            return result

    def fork(self) -> None:
        """Return None, so branches are replayed: a forked process would share jail, limits and folder."""
        return


class Sessions:
    """Sessions of a sandbox, in jails where no answer runs.

    At most ``settings.count`` cells run at a time. A session keeps its process between cells until another session
    needs its slot. So a cell always gets a slot: a free one, or the slot of an idle session.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.workers = WorkerPool(settings, settings.sessions)
        self._turns = asyncio.Semaphore(min(settings.count, settings.sessions))
        self._waiting: OrderedDict[PythonSession, Worker] = OrderedDict()
        """Idle sessions with a process, least recently used first."""

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[PythonSession]:
        """Open a session. Its process starts with the first cell and ends with the block."""
        session = PythonSession(self, seed)
        try:
            yield session
        finally:
            session.closed = True
            if (worker := self._waiting.pop(session, None)) is not None:
                await asyncio.shield(asyncio.ensure_future(self._leave(worker)))

    async def run(self, session: PythonSession, source: str) -> CellResult:
        """Run a cell of a session. After ``WorkerLost`` or ``CellLost``, the session has no process."""
        async with self._turns:
            if session.closed:
                raise RuntimeError("the session is closed; run cells inside its `async with` block")
            previous = self._waiting.pop(session, None)
            worker = previous or await self._worker()
            try:
                if previous is None:
                    await self._send(worker, OPENING, seed=session.seed, **_STARTING)
                try:
                    if previous is None:
                        for cell, earlier_result in session.cells:
                            if await self._send(worker, CELL, source=cell) != earlier_result:
                                raise WorkerLost("a cell that was run again showed something else")
                    result = await self._send(worker, CELL, source=source)
                except WorkerLost as error:
                    raise CellLost(str(error)) from error
            except BaseException:
                await self.workers.drop(worker)
                raise
            if session.closed:
                await self._leave(worker)
            elif result.lost:
                self.workers.give_back(worker)
            else:
                self._waiting[session] = worker
                self.workers.changed.set()
            return result

    async def _send(self, worker: Worker, kind: str, **fields: Any) -> CellResult:
        records = await worker.run(request(kind, self.settings, worker.user, **fields))
        result = read_cell(records, self.settings.shown_characters)
        if result is None:
            raise WorkerLost("the process of a session was ended from outside")
        return result

    async def _worker(self) -> Worker:
        """Return a worker for a new session; wait if all slots are busy."""
        while not self.workers.has_room:
            if self._waiting:
                _, worker = self._waiting.popitem(last=False)
                return worker  # opening a session ends the previous one
            self.workers.changed.clear()
            await self.workers.changed.wait()
        return await self.workers.take()

    async def _leave(self, worker: Worker) -> None:
        try:
            await worker.run(request(CLOSING, self.settings, worker.user, **_STARTING))
        except WorkerLost:
            await self.workers.drop(worker)
        else:
            self.workers.give_back(worker)


class Sandbox:
    """Asynchronous context that runs Python of a model. Raises ``UserError`` on a machine without jails."""

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.answers = WorkerPool(self.settings)
        self.references = WorkerPool(self.settings)
        self.sessions = Sessions(self.settings)

    async def __aenter__(self) -> Self:
        try:
            (result,) = await self.run("def f(x):\n    return x + 1", ["f(1)"])
            reason = result.reason
        except SandboxFailed as error:
            reason = str(error)
        except BaseException:
            await self.answers.close()
            raise
        if reason:
            await self.answers.close()
            raise UserError(
                f"the sandbox starts but cannot run a trivial answer: {reason}",
                "the interpreter's files must be readable by every user; see docs/howto/sandbox.md",
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as stack:
            for workers in (self.sessions.workers, self.references, self.answers):
                stack.push_async_callback(workers.close)

    async def run(self, source: str, calls: Sequence[str]) -> list[CallResult]:
        """Run ``source`` again for each of ``calls``, which are expressions; return their results in order."""
        return await _results(self.answers, source, calls, "module", self.settings)

    async def run_apart(
        self, source: str, calls: Sequence[str], limits: SandboxSettings, *, reference: bool = False
    ) -> AsyncIterator[CallResult]:
        """Run each call in a process tree and a folder of its own, like :meth:`run` or :meth:`run_reference`."""
        workers = self.references if reference else self.answers
        seconds_left = limits.total_seconds
        for call in calls:
            if seconds_left <= 0:
                yield CallResult(call, None, "timeout", "no time was left for this call")
                continue
            call_limits = limits.model_copy(update={"total_seconds": seconds_left})
            (result,) = await _results(workers, source, [call], "module", call_limits)
            seconds_left -= result.seconds
            yield result

    def session(self, seed: int) -> AbstractAsyncContextManager[PythonSession]:
        """Open a session, whose cells share one state; ``seed`` is for its ``random``."""
        return self.sessions.open(seed)

    async def run_reference(
        self,
        source: str,
        calls: Sequence[str],
        *,
        mode: Mode = "module",
        limits: SandboxSettings | None = None,
    ) -> list[CallResult]:
        """Run a reference solution, or another program of a data set, like :meth:`run`, where no answer ever runs."""
        return await _results(self.references, source, calls, mode, limits or self.settings)

    async def grade(
        self,
        source: str,
        calls: Sequence[str],
        expected: Sequence[Any],
        *,
        mode: Mode = "module",
        tolerance: float = 0.0,
        strict: bool = False,
    ) -> Graded:
        """Run the calls, and compare their results with ``expected``, which stay on the host.

        ``expected`` are plain values (``inside.plain``), or results of :meth:`run_reference`. ``tolerance`` is for
        floats; ``strict`` also compares types (``results.same``). Raises ``NotPlain`` for other expected values.
        """
        if not calls or len(calls) != len(expected):
            raise UserError(
                f"{len(calls)} calls and {len(expected)} expected values can't be graded",
                "give at least one call, and one value for each",
            )
        wires = [
            value.wire if isinstance(value, CallResult) and value.wire else encode(value)
            for value in expected
        ]
        records, _ = await self.answers.run(source, calls, mode == "legacy", self.settings)

        def judge_all() -> Graded:
            tests = zip(map(read_record, calls, records), wires, strict=True)
            return Graded(tuple(judge(call, wire, mode, tolerance, strict) for call, wire in tests))

        return await asyncio.to_thread(judge_all)  # large values would block the event loop


async def _results(
    workers: WorkerPool, source: str, calls: Sequence[str], mode: Mode, limits: SandboxSettings
) -> list[CallResult]:
    if not calls:
        return []
    records, seconds = await workers.run(source, calls, mode == "legacy", limits)
    results = await asyncio.to_thread(lambda: list(map(read_record, calls, records)))
    return [replace(result, seconds=seconds) for result in results]
