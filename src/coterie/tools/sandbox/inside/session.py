"""A session's cells as the supervisor runs them, in a process that lives as long as the session (``interpreter``).

The process is forked as an answer's is, and as confined. A cell's time, memory and output are limited here. When it has
said that a cell is done, all processes of the session are stopped, and they go on with the next cell: nothing runs
between cells. One that still runs, or is about to end, can make another one go on. So we look until at one moment all
of them stand still, and then nobody is left who could; a session whose processes don't is ended.
"""

import json
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import asdict

from coterie.tools.sandbox.inside import confine
from coterie.tools.sandbox.inside.cell import (
    CONTINUATION,
    GONE,
    NOT_OPENED,
    TOLD,
    Cell,
    Closing,
    Limits,
    Opening,
)
from coterie.tools.sandbox.inside.forker import SESSION, Forker, how
from coterie.tools.sandbox.inside.interpreter import SIZE
from coterie.tools.sandbox.inside.job import JUDGED, JobRecord
from coterie.tools.sandbox.inside.job import TOLD as BY_PROCESS
from coterie.tools.sandbox.inside.usage import TICK, Use, processes_use, standing

STOPPING_SECONDS = 5.0
"""For all processes of a session to stand still when a cell is done, on a busy machine."""
ENDING_SECONDS = 1.0
"""For a process that has closed its channel to be gone, if it has ended."""


class Kept:
    """The beginning and the end of what is printed."""

    def __init__(self, most: int) -> None:
        self.most = most
        """Bytes of each."""
        self.head = self.tail = b""
        self.left_out: int | None = None
        """Characters between the two; ``None`` if they have it all."""

    def add(self, data: bytes) -> None:
        """What is printed next."""
        room = self.most - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.most:
            missing = self.tail[: -self.most].translate(None, CONTINUATION)
            self.left_out = (self.left_out or 0) + len(missing)
            self.tail = self.tail[-self.most :]


class Session:
    """The processes of one session."""

    def __init__(self, opening: Opening, forker: Forker) -> None:
        confine.clean_folder(opening.file_mib, opening.uid, opening.gid)
        self.forker = forker
        cells, self._cells = os.pipe()
        self._told, told = os.pipe()
        self._output, output = os.pipe()
        for file in (self._cells, self._told, self._output):
            os.set_blocking(file, False)
        self.pid = forker.fork(SESSION, cells, told, output)
        for file in (cells, told, output):
            os.close(file)
        self.ended = ""
        """How its process ended; empty while it is there."""
        self.opened = False
        """Whether it is confined; before, no cell has run in it."""

    def exchange(self, body: bytes, limits: Limits) -> list[JobRecord]:
        """Send a cell, or the opening, and wait until it is done, or is to be ended."""
        kept = Kept(limits.kept_bytes)
        if self.forker.has_ended(0):  # between two cells
            failed, why = self._gone()
        else:
            os.kill(-1, signal.SIGCONT)
            failed, why = self._watch(SIZE.pack(len(body)) + body, limits, kept)
        if failed in TOLD.values():
            self.opened = True
            still = self._stopped()
            self._drain(kept)
            if self._read(self._told):
                failed, why = "garbled", ""
            elif not still:
                failed = "restless"
            elif self._use().resident > limits.memory_mib << 20:
                failed = "memory"
        if failed not in TOLD.values():
            self.end()
            self._drain(kept)
        return _records(failed, why, kept)

    def end(self) -> None:
        """Kill every process of the session."""
        if not self.ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.ended = how(self.forker.ending())

    def close(self) -> None:
        """End it, and close its pipes."""
        self.end()
        for file in (self._cells, self._told, self._output):
            os.close(file)

    def _stopped(self) -> bool:
        """Stop all processes but ours; whether they stand still, all at one moment."""
        began, pause, before = time.monotonic(), 0.0001, None
        while time.monotonic() - began < STOPPING_SECONDS:
            os.kill(-1, signal.SIGSTOP)
            os.kill(self.forker.pid, signal.SIGCONT)
            seen = standing(self.forker.pid)
            if seen is not None and seen == before:
                return True
            before = seen
            if seen is None:
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
        return False

    def _watch(self, rest: bytes, limits: Limits, kept: Kept) -> tuple[str, str]:
        """Wait for the byte that says that a cell is done; how it failed, and more about that."""
        poll = select.poll()
        poll.register(self._cells, select.POLLOUT)
        poll.register(self._told, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        meter = Meter(limits, self._use())
        while True:
            for file, _ in poll.poll(TICK * 1000):
                if file == self._cells:
                    rest = self._sent(rest)
                    if not rest:
                        poll.unregister(file)
                elif file == self._output:
                    data = self._read(file)
                    if data == b"":  # all who could print are gone, or have closed it
                        poll.unregister(file)
                    kept.add(data or b"")
                else:
                    return self._said()
            if meter.due() and (failed := meter.over(self._use())):
                return failed, ""

    def _sent(self, rest: bytes) -> bytes:
        """What is left of a cell after as much of it was written as goes in."""
        try:
            return rest[os.write(self._cells, rest) :]
        except BlockingIOError:
            return rest
        except BrokenPipeError:
            return b""

    def _said(self) -> tuple[str, str]:
        """What the process said of the cell."""
        told = self._read(self._told)
        if told == NOT_OPENED and not self.opened:
            return "open", ""
        if told in TOLD:
            return TOLD[told], ""
        if told:
            return "garbled", ""
        if not self.forker.has_ended(ENDING_SECONDS):
            return "ended", "it closed its channel"
        return self._gone()

    def _gone(self) -> tuple[str, str]:
        """How its process has ended, and whether that was a cell's doing.

        Nothing that a cell can do kills the first process of a namespace like this: the machine's memory was full.
        """
        status = self.forker.ending()
        self.ended = how(status)
        return (GONE if status == signal.SIGKILL else "ended"), self.ended

    def _read(self, file: int) -> bytes | None:
        """What is in a pipe; nothing if nobody can write to it, ``None`` if nobody has written."""
        try:
            return os.read(file, 1 << 16)
        except BlockingIOError:
            return None

    def _drain(self, kept: Kept) -> None:
        while data := self._read(self._output):
            kept.add(data)

    def _use(self) -> Use:
        return processes_use(self.pid, self.forker.pid)


class Meter:
    """What a cell has used of its limits."""

    def __init__(self, limits: Limits, before: Use) -> None:
        self.limits = limits
        self.before = before
        self._began = self._looked = time.monotonic()
        self._seen = before.waited
        self._waited = 0.0
        """Seconds that its only process waited for a processor."""

    def due(self) -> bool:
        """Whether it is time for a look."""
        return time.monotonic() - self._looked >= TICK

    def over(self, use: Use) -> str:
        """Which limit is exceeded; empty if none is."""
        self._looked = time.monotonic()
        seen = max(use.waited, self._seen)  # a process that is gone tells of none
        if use.processes == 1:  # else it may wait for its own
            self._waited += seen - self._seen
        self._seen = seen
        took = self._looked - self._began
        if took - self._waited > self.limits.wall_seconds or took > self.limits.longest_seconds:
            return "timeout"
        if use.seconds - self.before.seconds > self.limits.cpu_seconds:
            return "timeout"
        return "memory" if use.resident > self.limits.memory_mib << 20 else ""


class Seat:
    """The one session that a jail may have at a time."""

    def __init__(self, forker: Forker) -> None:
        self.forker = forker
        self._session: Session | None = None

    def answer(self, kind: bytes, body: bytes) -> list[JobRecord]:
        """Open, run a cell, or close."""
        if kind == Cell.kind:
            cell = Cell(**json.loads(body))
            if self._session is None:
                return _records(GONE, "", Kept(cell.kept_bytes))
            return self._session.exchange(cell.source.encode("utf-8", "surrogatepass"), cell)
        self.leave()
        if kind == Closing.kind:
            return []
        opening = Opening(**json.loads(body))
        self._session = Session(opening, self.forker)
        return self._session.exchange(json.dumps(asdict(opening)).encode(), opening.limits)

    def leave(self) -> None:
        """End the session, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _records(failed: str, why: str, kept: Kept) -> list[JobRecord]:
    verdict = json.dumps({"failed": failed, "why": why, "left_out": kept.left_out})
    return [(JUDGED, verdict.encode()), (BY_PROCESS, kept.head), (BY_PROCESS, kept.tail)]
