"""First process in the jail. For each answer it requests a forked process, watches it, ends it and reports.

It reads requests from standard input and writes replies to standard output. An answer's process has neither.

* ready: ``b"ready"``;
* request: 1 byte (its kind: ``job`` or one of ``cell``), 4 bytes length, JSON, then a nonce of 16 bytes, which is read
  when the processes of the answer have ended, or the processes of the session have ended or stopped;
* reply: the nonce, 4 bytes length, 8 bytes seconds that a job took without waiting for a CPU, then a record for each
  call: 1 byte (``BY_ANSWER`` or ``BY_SUPERVISOR``), 4 bytes length, bytes. Records of an answer's process are passed
  on unread.

This process holds sources and results, so answers are forked from another process (``forker``), which was started
before the first job. An answer is the first process of its own pid namespace, so all its children end with it. The
same holds for a session (``session``), which occupies the jail until it ends.
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

from coterie.tools.sandbox.inside import confine, interpreter
from coterie.tools.sandbox.inside.forker import (
    ANSWER,
    TICK,
    Forker,
    describe_ending,
    processes_use,
    start_forker,
)
from coterie.tools.sandbox.inside.job import (
    BY_ANSWER,
    BY_SUPERVISOR,
    HEAD,
    MAX_FAILURE,
    REPLY,
    Job,
    JobRecord,
    read_exactly,
    write_all,
)
from coterie.tools.sandbox.inside.session import SessionSlot

WARM = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json",
    "math", "numbers", "operator", "random", "re", "statistics", "string", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata", "coterie.tools.sandbox.inside.program",
)  # fmt: skip
"""Modules that are imported before answers are forked."""


class Clock:
    """Time that a job has used, without the time it waited for a CPU (up to a bound)."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.waited = 0.0
        """Seconds that its only process waited for a CPU, over all attempts."""
        self._began = time.monotonic()

    def used(self) -> float:
        """Return the seconds the job used."""
        return time.monotonic() - self._began - self.waited

    def over(self) -> bool:
        """Return True if the job has no time left."""
        used = self.used()
        return used > self.job.total_seconds or used + self.waited > self.job.longest_seconds


class Attempt:
    """One forked process that runs calls from ``first`` on, and appends to ``records``."""

    def __init__(self, job: Job, content: int, first: int, forker: Forker, clock: Clock) -> None:
        self.job, self.clock = job, clock
        self.forker = forker
        self.wanted = len(job.calls) - first
        self.confined = self.loaded = False
        self.failed_to_load: bytes | None = None
        self.records: list[JobRecord] = []
        self._buffer = bytearray()
        self._seconds = 0.0
        """CPU seconds at the last frame of the process."""
        self._waited = 0.0
        """Seconds of waiting for a CPU that the clock counts."""
        self._pipe, pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        os.pwrite(content, interpreter.FIRST.pack(first), 0)
        self.pid = forker.fork(ANSWER, content, pipe)
        os.close(pipe)

    def watch(self) -> str | None:
        """Read until all frames are complete; return why the process must end early, or ``None``."""
        started = self.clock.used()
        poll = select.poll()
        while True:
            # wakes when the process ends, and for each part of a long frame, but not for each frame
            poll.register(self._pipe, select.POLLIN if self._buffer else 0)
            over = any(event & select.POLLHUP for _, event in poll.poll(TICK * 1000))
            before = self._frame_count()
            reason = self._read_all()
            if reason is not None:
                return reason
            if self.failed_to_load is not None or len(self.records) == self.wanted:
                return None
            if over:
                return "ended"
            use = processes_use(self.pid, self.forker.pid)
            waited = max(use.waited, self._waited)  # an ended process reports 0
            if use.processes == 1:  # else it may wait for its own children
                self.clock.waited += waited - self._waited
            self._waited = waited
            now = self.clock.used()
            if self._frame_count() > before:
                started, self._seconds = now, use.seconds
            if self.clock.over() or now - started > self.job.wall_seconds:
                return "timeout"
            if use.seconds - self._seconds > self.job.cpu_seconds:
                return "timeout"
            if use.resident > self.job.memory_mib << 20:
                return "memory"

    def end(self) -> str:
        """Kill every process of the answer; describe how the first one ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._pipe)
        return describe_ending(self.forker.ending())

    def _frame_count(self) -> int:
        return len(self.records) + self.loaded + self.confined

    def _read_all(self) -> str | None:
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 16):
                self._buffer += data
                reason = self._take()
                if reason is not None or self.failed_to_load is not None:
                    return reason
        return None

    def _take(self) -> str | None:
        """Consume complete frames; return why the process must end, or ``None``."""
        while len(self._buffer) >= 4 and len(self.records) < self.wanted:
            (size,) = struct.unpack_from(">I", self._buffer)
            if size > self.job.max_record:
                return "output"
            if len(self._buffer) < 4 + size:
                return None
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            if self.loaded:
                self.records.append((BY_ANSWER, frame))
            elif not self.confined:
                if frame != interpreter.CONFINED:
                    return "open"
                self.confined = True
            elif frame == interpreter.LOADED:
                self.loaded = True
            else:
                self.failed_to_load = frame
                return "garbled" if size > MAX_FAILURE else None
        return "garbled" if self._buffer and len(self.records) == self.wanted else None


def run(job: Job, body: bytes, forker: Forker, clock: Clock) -> list[JobRecord]:
    """Run all calls in one process; start another after a call that ended it."""
    records: list[JobRecord] = []
    content = os.memfd_create("job")
    try:
        os.pwrite(content, body, interpreter.FIRST.size)
        while len(records) < len(job.calls):
            if clock.over():
                return _rest(records, job, "timeout", "no time was left for this call")
            confine.clean_folder(job.file_mib, job.uid, job.gid)
            attempt = Attempt(job, content, len(records), forker, clock)
            records = _finish(attempt, records, job)
        return records
    finally:
        os.close(content)


def _finish(attempt: Attempt, records: list[JobRecord], job: Job) -> list[JobRecord]:
    """Wait for an attempt; return ``records`` with its records and, if it ended early, the reason."""
    reason = attempt.watch()
    ending = attempt.end()
    if not attempt.confined and not attempt.clock.over():
        return _rest([], job, "open", f"its process ended {ending} before it was confined")
    if reason == "garbled":
        return _rest([], job, "garbled", "its process wrote to the channel of results")
    if attempt.failed_to_load is not None:
        return [(BY_ANSWER, attempt.failed_to_load)] * len(job.calls)
    records = records + attempt.records
    if reason is None:
        return records
    why = f"the process ended {ending}" if reason == "ended" else ""
    if not attempt.loaded:
        return _rest([], job, reason, why)
    return [*records, _failure(reason, why)]


def _failure(reason: str, why: str) -> JobRecord:
    return BY_SUPERVISOR, json.dumps({"failed": reason, "why": why}).encode()


def _rest(records: list[JobRecord], job: Job, reason: str, why: str) -> list[JobRecord]:
    return records + [_failure(reason, why)] * (len(job.calls) - len(records))


def main(code: str) -> None:
    """Serve requests until standard input ends; ``code`` is the folder of our code, which is hidden from answers."""
    jobs, replies = os.dup(0), os.dup(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nowhere, file)
    os.close(nowhere)
    for name in WARM:
        importlib.import_module(name)
    confine.system_calls()  # cache before forking
    confine.end_first()
    gc.collect()
    gc.freeze()
    forker = start_forker(jobs, replies)
    confine.hide_processes()
    confine.hide(code)
    write_all(replies, b"ready")
    slot = SessionSlot(forker)
    while True:
        kind, size = HEAD.unpack(read_exactly(jobs, HEAD.size))
        body, seconds = read_exactly(jobs, size), 0.0
        if kind == Job.kind:
            slot.end()
            clock = Clock(Job(**json.loads(body)))
            records, seconds = run(clock.job, body, forker, clock), clock.used()
        else:
            records = slot.answer(kind, body)
        reply = b"".join(struct.pack(">BI", kind, len(data)) + data for kind, data in records)
        nonce = read_exactly(jobs, 16)
        write_all(replies, nonce + REPLY.pack(len(reply), seconds) + reply)
