"""Session of Python: runs cells from the supervisor in one process (``interpreter``) that lives as long as the session.

The process is forked and confined like an answer's process. A cell's time, memory and output are limited here. When it
reports the end of a cell, all processes of the session are stopped until the next cell, so nothing runs between cells.
A process that still runs can resume a stopped one. So we wait for a moment at which all of them are stopped, or end
the session after a timeout.
"""

import json
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import asdict

from coterie.tools.sandbox.inside import confine
from coterie.tools.sandbox.inside.forker import (
    SESSION,
    TICK,
    Forker,
    Use,
    describe_ending,
    processes_use,
    standing,
)
from coterie.tools.sandbox.inside.interpreter import SIZE
from coterie.tools.sandbox.inside.job import (
    BY_ANSWER,
    BY_SUPERVISOR,
    CONTINUATION,
    GONE,
    NOT_OPENED,
    STATUSES,
    Cell,
    Closing,
    JobRecord,
    Limits,
    Opening,
)

STOPPING_SECONDS = 5.0
"""Timeout for stopping all processes of a session after a cell, on a busy machine."""
ENDING_SECONDS = 1.0
"""Timeout for a process that closed its channel to be reported as ended."""


class OutputEnds:
    """Beginning and end of a cell's output."""

    def __init__(self, most: int) -> None:
        self.most = most
        """Bytes of each part."""
        self.head = self.tail = b""
        self.left_out: int | None = None
        """Characters between the two parts; ``None`` if nothing is missing."""

    def add(self, data: bytes) -> None:
        """Append output."""
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
        self._statuses, statuses = os.pipe()
        self._output, output = os.pipe()
        for file in (self._cells, self._statuses, self._output):
            os.set_blocking(file, False)
        self.pid = forker.fork(SESSION, cells, statuses, output)
        for file in (cells, statuses, output):
            os.close(file)
        self.ended = ""
        """How its process ended; empty while it exists."""
        self.opened = False
        """True once the process is confined; no cell runs before."""

    def exchange(self, body: bytes, limits: Limits) -> list[JobRecord]:
        """Send a cell or the opening, and wait until it is done or exceeds a limit."""
        output = OutputEnds(limits.kept_bytes)
        if self.forker.has_ended(0):  # between two cells
            failed, why = self._ending()
        else:
            os.kill(-1, signal.SIGCONT)
            failed, why = self._watch(SIZE.pack(len(body)) + body, limits, output)
        if failed in STATUSES.values():
            self.opened = True
            is_stopped = self._stop()
            self._drain(output)
            if self._read(self._statuses):
                failed, why = "garbled", ""
            elif not is_stopped:
                failed = "restless"
            elif self._use().resident > limits.memory_mib << 20:
                failed = "memory"
        if failed not in STATUSES.values():
            self.end()
            self._drain(output)
        return _records(failed, why, output)

    def end(self) -> None:
        """Kill every process of the session."""
        if not self.ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.ended = describe_ending(self.forker.ending())

    def close(self) -> None:
        """End the session, and close its pipes."""
        self.end()
        for file in (self._cells, self._statuses, self._output):
            os.close(file)

    def _stop(self) -> bool:
        """Stop all processes but ours. Return True if all are stopped at one moment."""
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

    def _watch(self, rest: bytes, limits: Limits, output: OutputEnds) -> tuple[str, str]:
        """Wait for the byte that ends a cell; return how the cell failed, with details."""
        poll = select.poll()
        poll.register(self._cells, select.POLLOUT)
        poll.register(self._statuses, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        meter = Meter(limits, self._use())
        while True:
            for file, _ in poll.poll(TICK * 1000):
                if file == self._cells:
                    rest = self._send(rest)
                    if not rest:
                        poll.unregister(file)
                elif file == self._output:
                    data = self._read(file)
                    if data == b"":  # every writer has ended or closed it
                        poll.unregister(file)
                    output.add(data or b"")
                else:
                    return self._status()
            if meter.is_due() and (failed := meter.over(self._use())):
                return failed, ""

    def _send(self, rest: bytes) -> bytes:
        """Write as much of a cell as fits into the pipe; return the rest."""
        try:
            return rest[os.write(self._cells, rest) :]
        except BlockingIOError:
            return rest
        except BrokenPipeError:
            return b""

    def _status(self) -> tuple[str, str]:
        """Read how the process ended the cell."""
        status = self._read(self._statuses)
        if status == NOT_OPENED and not self.opened:
            return "open", ""
        if status in STATUSES:
            return STATUSES[status], ""
        if status:
            return "garbled", ""
        if not self.forker.has_ended(ENDING_SECONDS):
            return "ended", "it closed its channel"
        return self._ending()

    def _ending(self) -> tuple[str, str]:
        """Return how the process ended, and whether a cell caused it.

        A cell cannot send SIGKILL to the first process of its namespace: the machine ran out of memory.
        """
        status = self.forker.ending()
        self.ended = describe_ending(status)
        return (GONE if status == signal.SIGKILL else "ended"), self.ended

    def _read(self, file: int) -> bytes | None:
        """Read from a pipe; empty if every writer closed it, ``None`` if it has no data."""
        try:
            return os.read(file, 1 << 16)
        except BlockingIOError:
            return None

    def _drain(self, output: OutputEnds) -> None:
        while data := self._read(self._output):
            output.add(data)

    def _use(self) -> Use:
        return processes_use(self.pid, self.forker.pid)


class Meter:
    """Resource use of a cell, compared with its limits."""

    def __init__(self, limits: Limits, before: Use) -> None:
        self.limits = limits
        self.before = before
        self._began = self._measured = time.monotonic()
        self._seen = before.waited
        self._waited = 0.0
        """Seconds that its only process waited for a CPU."""

    def is_due(self) -> bool:
        """Return True if the next measurement is due."""
        return time.monotonic() - self._measured >= TICK

    def over(self, use: Use) -> str:
        """Return the limit that is exceeded, or an empty string."""
        self._measured = time.monotonic()
        seen = max(use.waited, self._seen)  # an ended process reports 0
        if use.processes == 1:  # else it may wait for its own children
            self._waited += seen - self._seen
        self._seen = seen
        took = self._measured - self._began
        if took - self._waited > self.limits.wall_seconds or took > self.limits.longest_seconds:
            return "timeout"
        if use.seconds - self.before.seconds > self.limits.cpu_seconds:
            return "timeout"
        return "memory" if use.resident > self.limits.memory_mib << 20 else ""


class SessionSlot:
    """Slot for the one session that a jail may have at a time."""

    def __init__(self, forker: Forker) -> None:
        self.forker = forker
        self._session: Session | None = None

    def answer(self, kind: bytes, body: bytes) -> list[JobRecord]:
        """Handle a request: open a session, run a cell, or close."""
        if kind == Cell.kind:
            cell = Cell(**json.loads(body))
            if self._session is None:
                return _records(GONE, "", OutputEnds(cell.kept_bytes))
            return self._session.exchange(cell.source.encode("utf-8", "surrogatepass"), cell)
        self.end()
        if kind == Closing.kind:
            return []
        opening = Opening(**json.loads(body))
        self._session = Session(opening, self.forker)
        return self._session.exchange(json.dumps(asdict(opening)).encode(), opening.limits)

    def end(self) -> None:
        """End the session if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _records(failed: str, why: str, output: OutputEnds) -> list[JobRecord]:
    verdict = json.dumps({"failed": failed, "why": why, "left_out": output.left_out})
    return [(BY_SUPERVISOR, verdict.encode()), (BY_ANSWER, output.head), (BY_ANSWER, output.tail)]
