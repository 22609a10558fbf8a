"""The first process in the jail: forks a fresh process for each answer, watches it, ends it, reports.

It reads jobs from standard input and writes replies to standard output, neither of which an answer's process has.

* ready: ``b"ready"``;
* job: 4 bytes length, JSON (``Job``), then a nonce of 16 bytes, which is read when the answer's
  processes are gone;
* reply: the nonce, 4 bytes length, then a record for each call: 1 byte (``TOLD`` by the answer's process, or ``JUDGED``
  here), 4 bytes length, bytes. What an answer's process told is handed on unread.

An answer runs in a pid namespace of its own, as its first process: when that ends, all that it started is gone.
"""

import gc
import importlib
import json
import os
import select
import signal
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coterie.tools.sandbox.inside import confine, harness

TOLD, JUDGED = 0, 1
TICK = 0.02
"""Seconds between two looks at an answer's processes."""
LONGEST_FAILURE = 4000
"""Bytes of what is told of a source that doesn't load."""
WARM = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json",
    "math", "numbers", "operator", "random", "re", "statistics", "string", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata",
)  # fmt: skip
"""Modules that an answer finds loaded."""

Record = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Job:
    """One answer: what to run, and within which limits."""

    source: str
    calls: list[str]
    legacy: bool
    wall_seconds: float
    """For one call."""
    cpu_seconds: float
    """For one call."""
    total_seconds: float
    """For all calls."""
    memory_mib: int
    """Of one process (address space), and of all of them (resident)."""
    processes: int
    file_mib: int
    output_kib: int
    """Of all results."""
    uid: int
    gid: int


class Attempt:
    """One forked process that runs calls from ``first`` on; ``records`` grows as it tells."""

    def __init__(self, job: Job, first: int, own: int, until: float) -> None:
        self.job, self.until = job, until
        self.wanted = len(job.calls) - first
        self.loaded = False
        self.failed_to_load: bytes | None = None
        self.records: list[Record] = []
        self._buffer = b""
        self._read = 0
        self._used = 0.0
        self._pipe, pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        confine.new_process_tree()
        self.pid = os.fork()
        if self.pid == 0:
            _answer(job, first, pipe)
        confine.back_to(own)
        os.close(pipe)

    def watch(self) -> str | None:
        """Read until all is told; why it was cut short, or ``None``."""
        started = time.monotonic()
        poll = select.poll()
        poll.register(
            self._pipe, 0
        )  # wakes when the answer's process has ended, not for each result
        while True:
            over = bool(poll.poll(TICK * 1000))
            before = self._told()
            reason = self._read_all()
            if reason is not None:
                return reason
            if self.failed_to_load is not None:
                return None
            if len(self.records) == self.wanted:
                return "garbled" if self._buffer else None
            if over:
                return "ended"
            now = time.monotonic()
            seconds, resident = processes_use()
            if self._told() > before:
                started, self._used = now, seconds
            if now > self.until or now - started > self.job.wall_seconds:
                return "timeout"
            if seconds - self._used > self.job.cpu_seconds:
                return "timeout"
            if resident > self.job.memory_mib << 20:
                return "memory"

    def end(self) -> str:
        """Kill every process of the answer; how the first one ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._pipe)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            return f"by signal {os.WTERMSIG(status)}"
        return f"with status {os.WEXITSTATUS(status)}"

    def _told(self) -> int:
        return len(self.records) + self.loaded

    def _read_all(self) -> str | None:
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 16):
                reason = self._take(data)
                if reason is not None:
                    return reason
        return None

    def _take(self, data: bytes) -> str | None:
        self._read += len(data)
        if self._read > self.job.output_kib << 10:
            return "output"
        self._buffer += data
        while len(self._buffer) >= 4 and len(self.records) < self.wanted:
            size = struct.unpack(">I", self._buffer[:4])[0]
            if size > self.job.output_kib << 10:
                return "garbled"
            if len(self._buffer) < 4 + size:
                return None
            frame, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
            if self.loaded:
                self.records.append((TOLD, frame))
            elif frame == b'{"loaded": true}':
                self.loaded = True
            elif size > LONGEST_FAILURE:
                return "garbled"
            else:
                self.failed_to_load = frame
                return None
        return None


def _answer(job: Job, first: int, pipe: int) -> None:
    """The forked process: confine, run, end. Never returns."""
    try:
        os.dup2(pipe, 3)
        os.closerange(4, 256)
        try:
            _confine(job, first)
        except OSError as error:
            harness.send(3, {"failed": "open", "why": str(error)})
        else:
            harness.run(job.source, job.calls, first, job.legacy, 3)
    finally:
        os._exit(0)


def _confine(job: Job, first: int) -> None:
    confine.limits(
        memory_mib=job.memory_mib,
        file_mib=job.file_mib,
        processes=job.processes,
        cpu_seconds=int(job.cpu_seconds * (len(job.calls) - first + 1)) + 1,
    )
    confine.give_up_rights(job.uid, job.gid)


def processes_use() -> tuple[float, int]:
    """CPU seconds and resident bytes of all processes here but this one."""
    seconds, resident = 0.0, 0
    for name in os.listdir(confine.processes()):
        if name.isdigit() and name != "1":
            with suppress(OSError):
                with confine.process_file(f"{name}/stat") as file:
                    fields = file.read().rpartition(b")")[2].split()
                seconds += sum(map(int, fields[11:15])) / _CLOCK
                resident += int(fields[21]) * _PAGE
    return seconds, resident


_CLOCK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")


def run(job: Job, own: int) -> list[Record]:
    """Run all calls: in one process, and after a call that ended its process, in another."""
    until = time.monotonic() + job.total_seconds
    records: list[Record] = []
    while len(records) < len(job.calls):
        if time.monotonic() > until:
            return _rest(records, job, "timeout", "no time was left for this call")
        confine.clean_folder(job.file_mib, job.uid, job.gid)
        attempt = Attempt(job, len(records), own, until)
        reason = attempt.watch()
        ending = attempt.end()
        if reason == "garbled":
            return _rest([], job, "garbled", "its process wrote to the channel of results")
        if attempt.failed_to_load is not None:
            return [(TOLD, attempt.failed_to_load)] * len(job.calls)
        records += attempt.records
        if reason is None:
            continue
        why = f"the process ended {ending}" if reason == "ended" else ""
        if not attempt.loaded:
            return _rest([], job, reason, why)
        records.append(_judged(reason, why))
    return records


def _judged(reason: str, why: str) -> Record:
    return JUDGED, json.dumps({"failed": reason, "why": why}).encode()


def _rest(records: list[Record], job: Job, reason: str, why: str) -> list[Record]:
    return records + [_judged(reason, why)] * (len(job.calls) - len(records))


def _exactly(file: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(file, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def main() -> None:
    """Serve jobs until standard input ends."""
    jobs, replies = os.dup(0), os.dup(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nowhere, file)
    os.close(nowhere)
    for name in WARM:
        importlib.import_module(name)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    confine.hide_processes()
    confine.system_calls()  # made once, before the forks
    gc.collect()
    gc.freeze()
    _write(replies, b"ready")
    while True:
        (size,) = struct.unpack(">I", _exactly(jobs, 4))
        values: dict[str, Any] = json.loads(_exactly(jobs, size))
        records = run(Job(**values), own)
        body = b"".join(struct.pack(">BI", kind, len(data)) + data for kind, data in records)
        nonce = _exactly(jobs, 16)
        _write(replies, nonce + struct.pack(">I", len(body)) + body)
