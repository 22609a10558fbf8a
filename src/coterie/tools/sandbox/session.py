"""A Python session: cells that share one state, each run in a jail.

    async with sandbox.session(seed=0) as session:
        await session.run("x = 6 * 7")
        print((await session.run("x")).text)   # 42

What a session's state is follows from its seed and its cells, so a session whose process is gone (its worker died, or
another session needed its place) is brought back by running its cells again. What they show must be what they showed.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from coterie.tools.sandbox.crew import TRIES, Crew, SandboxFailed
from coterie.tools.sandbox.inside.cell import CONTINUATION, GONE, Cell, Closing, Opening
from coterie.tools.sandbox.inside.job import JobRecord
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.sandbox.worker import Worker, WorkerLost

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
"""Characters."""
_ADDRESS = re.compile(r"\bat 0x[0-9A-Fa-f]+")
ADDRESS = "at 0x..."
"""What is shown in place of an object's address, which may be another one in a replay."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one cell gave."""

    text: str
    """What it printed, the value of its last expression, its traceback, or why it was stopped; never empty."""
    failed: str = ""
    """``syntax`` (nothing ran), ``error`` (an exception), ``refused`` (``exit()``, ``input()``), or one of ``LOST``;
    empty if it ran to its end. In words of the cell's own process, which may lie about itself."""

    @property
    def lost(self) -> bool:
        """Whether the state is lost: the next cell begins a new one."""
        return self.failed in LOST


def read_cell(records: Sequence[JobRecord], most: int) -> CellResult | None:
    """What records say, as text of about ``most`` characters; ``None`` if the process was gone.

    Raises ``WorkerLost`` for a session that could not be opened.
    """
    (_, verdict), (_, head), (_, tail) = records
    told = json.loads(verdict)
    failed, why, left_out = told["failed"], str(told["why"])[:MAX_WHY], told["left_out"]
    if failed == GONE:
        return None
    if failed == "open":
        raise WorkerLost(f"a session could not be closed in: {_text(head)[:MAX_WHY]}")
    # what was printed until a limit was met is no two times the same
    printed = (
        shortened(head, tail, left_out, most) if failed not in LOST or failed == "ended" else ""
    )
    if failed not in LOST:
        return CellResult(printed or NOTHING, failed)
    reason = LOST[failed] + (f" ({why})" if why else "")
    return CellResult("\n".join(filter(None, (printed, reason, ANEW))), failed)


def shortened(head: bytes, tail: bytes, left_out: int | None, most: int) -> str:
    """What was printed: of more than ``most`` characters the beginning and the end.

    ``left_out`` characters are missing between head and tail; ``None`` if nothing is.
    """
    half = most // 2
    if left_out is not None:
        beginning, end = _text(head), _text(tail.lstrip(CONTINUATION))
    else:
        text = _text(head + tail)
        if len(text) <= most:
            return text.rstrip("\n")
        beginning, end, left_out = text[:half], text[half:], 0
    left_out += max(len(beginning) - half, 0) + max(len(end) - half, 0)
    note = f"[... {left_out:,} characters are left out here ...]"
    return f"{beginning[:half]}\n{note}\n{end[-half:]}".rstrip("\n")


def _text(data: bytes) -> str:
    return _ADDRESS.sub(ADDRESS, data.decode(errors="replace"))


BYTES = 4


class CellLost(WorkerLost):
    """A worker that was lost when cells had run in it, or a session that they did not bring back."""


@dataclass(eq=False, slots=True)
class PythonSession:
    """One session. Its cells run one after the other."""

    sessions: "Sessions"
    seed: int
    """Of ``random``, in every new state."""
    cells: list[tuple[str, CellResult]] = field(default_factory=list)
    closed: bool = False
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, source: str) -> CellResult:
        """Run a cell. Raises ``SandboxFailed`` if it can't be run, by no fault of the session's cells."""
        async with self._one:
            lost: list[WorkerLost] = []
            while len(lost) < TRIES:
                try:
                    found = await self.sessions.run(self, source)
                    break
                except WorkerLost as error:
                    lost.append(error)
            else:
                why = next((one for one in reversed(lost) if isinstance(one, CellLost)), None)
                if why is None:
                    raise SandboxFailed(f"a cell could not be run: {lost[-1]}") from lost[-1]
                await self.sessions.crew.prove(why)
                found = CellResult(f"{LOST['lost']} ({why})\n{ANEW}", "lost")
            self.cells = [] if found.lost else [*self.cells, (source, found)]
            return found

    def fork(self) -> None:
        """There is no copy: a forked process would share its jail, its limits and its folder with the first one.
        Branches are replayed."""
        return


class Sessions:
    """All sessions of a sandbox, in jails where no answer runs.

    As many cells run at a time as there are workers. A session keeps its process between its cells until its place is
    needed. So who has a turn always gets a place: one that is free, or that of a session which runs no cell.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.crew = Crew(settings, settings.sessions)
        self._turns = asyncio.Semaphore(min(settings.count, settings.sessions))
        self._waiting: OrderedDict[PythonSession, Worker] = OrderedDict()
        """Sessions that have a process and run no cell, the longest unused first."""

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[PythonSession]:
        """A session, whose processes are gone at the end of the block. It has none before its first cell."""
        session = PythonSession(self, seed)
        try:
            yield session
        finally:
            session.closed = True
            if (worker := self._waiting.pop(session, None)) is not None:
                await asyncio.shield(asyncio.ensure_future(self._leave(worker)))

    async def run(self, session: PythonSession, source: str) -> CellResult:
        """Run a cell of a session. Raises ``WorkerLost``, or ``CellLost``; the session has no process then."""
        async with self._turns:
            if session.closed:
                raise RuntimeError("a session runs nothing outside of its block")
            held = self._waiting.pop(session, None)
            worker = held or await self._worker()
            try:
                if held is None:
                    await self._begin(worker, session)
                try:
                    if held is None:
                        await self._replay(worker, session)
                    found = await self._cell(worker, source)
                except WorkerLost as error:
                    raise CellLost(str(error)) from error
            except BaseException:
                await self.crew.drop(worker)
                raise
            if session.closed:
                await self._leave(worker)
            elif found.lost:
                self.crew.give_back(worker)
            else:
                self._waiting[session] = worker
                self.crew.changed.set()
            return found

    async def _begin(self, worker: Worker, session: PythonSession) -> None:
        of = self.settings
        opening = Opening(
            seed=session.seed,
            memory_mib=of.memory_mib,
            processes=of.processes,
            file_mib=of.file_mib,
            uid=worker.user.uid,
            gid=worker.user.uid,
        )
        if read_cell(await worker.run(opening), of.shown_characters) is None:
            raise WorkerLost("the process of a session ended before its first cell")

    async def _replay(self, worker: Worker, session: PythonSession) -> None:
        for source, then in session.cells:
            if await self._cell(worker, source) != then:
                raise WorkerLost("a cell that was run again showed something else")

    async def _cell(self, worker: Worker, source: str) -> CellResult:
        of = self.settings
        cell = Cell(
            source=source,
            wall_seconds=of.wall_seconds,
            cpu_seconds=of.cpu_seconds,
            memory_mib=of.memory_mib,
            kept_bytes=BYTES * of.shown_characters,
        )
        found = read_cell(await worker.run(cell), of.shown_characters)
        if found is None:
            raise WorkerLost("the process of a session was ended from outside")
        return found

    async def _worker(self) -> Worker:
        """A worker without a session, when there is one: a place that is being closed is free in a moment."""
        while not self.crew.has_room:
            if self._waiting:
                _, worker = self._waiting.popitem(last=False)
                return worker  # a new session ends the one before it
            self.crew.changed.clear()
            await self.crew.changed.wait()
        return await self.crew.take()

    async def _leave(self, worker: Worker) -> None:
        try:
            await worker.run(Closing())
        except WorkerLost:
            await self.crew.drop(worker)
        else:
            self.crew.give_back(worker)
