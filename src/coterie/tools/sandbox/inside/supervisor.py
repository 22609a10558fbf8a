"""The first process in the jail: has a fresh process forked for each answer, watches it, ends it, reports.

It reads requests from standard input and writes replies to standard output, neither of which an answer's process has.

* ready: ``b"ready"``;
* request: 1 byte (what it is: a job, or what a session is asked, ``cell``), 4 bytes length, JSON, then a nonce of
  16 bytes, which is read when the answer's processes are gone, or those of a session are gone or stopped;
* reply: the nonce, 4 bytes length, 8 bytes seconds that a job took of its own, then a record for each call: 1 byte
  (``TOLD`` by the answer's process, or ``JUDGED`` here), 4 bytes length, bytes. What an answer's process told is handed
  on unread.

This process holds sources and results, so no answer is forked from it, but from another one (``forker``) that was
set apart before the first job. An answer runs in a pid namespace of its own, as its first process: when that ends, all
that it started is gone. So does a session (``session``), which has the jail to itself until it is ended.
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

from coterie.tools.sandbox.inside import confine, harness
from coterie.tools.sandbox.inside.forker import ANSWER, Forker, how, set_apart
from coterie.tools.sandbox.inside.job import (
    HEAD,
    JUDGED,
    MAX_FAILURE,
    REPLY,
    TOLD,
    Job,
    JobRecord,
    read_exactly,
    write_all,
)
from coterie.tools.sandbox.inside.session import Seat
from coterie.tools.sandbox.inside.usage import TICK, processes_use

WARM = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json",
    "math", "numbers", "operator", "random", "re", "statistics", "string", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata", "coterie.tools.sandbox.inside.program",
)  # fmt: skip
"""Modules that an answer finds loaded."""


class Clock:
    """The time that a job has used, without that for which it waited for a processor.

    So an answer is not late because others are busy, up to a bound.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.waited = 0.0
        """Seconds that its only process waited, in all attempts together."""
        self._began = time.monotonic()

    def used(self) -> float:
        """Seconds of the job's own."""
        return time.monotonic() - self._began - self.waited

    def over(self) -> bool:
        """Whether the job has no time left."""
        used = self.used()
        return used > self.job.total_seconds or used + self.waited > self.job.longest_seconds


class Attempt:
    """One forked process that runs calls from ``first`` on; ``records`` grows as it tells."""

    def __init__(self, job: Job, told: int, first: int, forker: Forker, clock: Clock) -> None:
        self.job, self.clock = job, clock
        self.forker = forker
        self.wanted = len(job.calls) - first
        self.confined = self.loaded = False
        self.failed_to_load: bytes | None = None
        self.records: list[JobRecord] = []
        self._buffer = bytearray()
        self._seconds = 0.0
        """Of CPU, when the process last told something."""
        self._waited = 0.0
        """For a processor, as far as the clock knows."""
        self._pipe, pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        os.pwrite(told, harness.FIRST.pack(first), 0)
        self.pid = forker.fork(ANSWER, told, pipe)
        os.close(pipe)

    def watch(self) -> str | None:
        """Read until all is told; why it was cut short, or ``None``."""
        started = self.clock.used()
        poll = select.poll()
        while True:
            # wakes when the answer's process has ended, not for each result; but for each part of a long one
            poll.register(self._pipe, select.POLLIN if self._buffer else 0)
            over = any(event & select.POLLHUP for _, event in poll.poll(TICK * 1000))
            before = self._told()
            reason = self._read_all()
            if reason is not None:
                return reason
            if self.failed_to_load is not None or len(self.records) == self.wanted:
                return None
            if over:
                return "ended"
            use = processes_use(self.pid, self.forker.pid)
            waited = max(use.waited, self._waited)  # a process that is gone tells of none
            if use.processes == 1:  # else it may wait for its own
                self.clock.waited += waited - self._waited
            self._waited = waited
            now = self.clock.used()
            if self._told() > before:
                started, self._seconds = now, use.seconds
            if self.clock.over() or now - started > self.job.wall_seconds:
                return "timeout"
            if use.seconds - self._seconds > self.job.cpu_seconds:
                return "timeout"
            if use.resident > self.job.memory_mib << 20:
                return "memory"

    def end(self) -> str:
        """Kill every process of the answer; how the first one ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._pipe)
        return how(self.forker.ending())

    def _told(self) -> int:
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
        """Take the whole frames of what was read; why the process is to be ended, or ``None``."""
        while len(self._buffer) >= 4 and len(self.records) < self.wanted:
            (size,) = struct.unpack_from(">I", self._buffer)
            if size > self.job.max_record:
                return "output"
            if len(self._buffer) < 4 + size:
                return None
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            if self.loaded:
                self.records.append((TOLD, frame))
            elif not self.confined:
                if frame != harness.CONFINED:
                    return "open"
                self.confined = True
            elif frame == harness.LOADED:
                self.loaded = True
            else:
                self.failed_to_load = frame
                return "garbled" if size > MAX_FAILURE else None
        return "garbled" if self._buffer and len(self.records) == self.wanted else None


def run(job: Job, body: bytes, forker: Forker, clock: Clock) -> list[JobRecord]:
    """Run all calls: in one process, and after a call that ended its process, in another."""
    records: list[JobRecord] = []
    told = os.memfd_create("job")
    try:
        os.pwrite(told, body, harness.FIRST.size)
        while len(records) < len(job.calls):
            if clock.over():
                return _rest(records, job, "timeout", "no time was left for this call")
            confine.clean_folder(job.file_mib, job.uid, job.gid)
            attempt = Attempt(job, told, len(records), forker, clock)
            records = _after(attempt, records, job)
        return records
    finally:
        os.close(told)


def _after(attempt: Attempt, records: list[JobRecord], job: Job) -> list[JobRecord]:
    """The records with those of an attempt, and with why it was cut short."""
    reason = attempt.watch()
    ending = attempt.end()
    if not attempt.confined and not attempt.clock.over():
        return _rest([], job, "open", f"its process ended {ending} before it was confined")
    if reason == "garbled":
        return _rest([], job, "garbled", "its process wrote to the channel of results")
    if attempt.failed_to_load is not None:
        return [(TOLD, attempt.failed_to_load)] * len(job.calls)
    records = records + attempt.records
    if reason is None:
        return records
    why = f"the process ended {ending}" if reason == "ended" else ""
    if not attempt.loaded:
        return _rest([], job, reason, why)
    return [*records, _judged(reason, why)]


def _judged(reason: str, why: str) -> JobRecord:
    return JUDGED, json.dumps({"failed": reason, "why": why}).encode()


def _rest(records: list[JobRecord], job: Job, reason: str, why: str) -> list[JobRecord]:
    return records + [_judged(reason, why)] * (len(job.calls) - len(records))


def main(code: str) -> None:
    """Serve requests until standard input ends; ``code`` is where ours is, which answers don't see."""
    jobs, replies = os.dup(0), os.dup(1)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nowhere, file)
    os.close(nowhere)
    for name in WARM:
        importlib.import_module(name)
    confine.system_calls()  # made once, before the forks
    confine.end_first()
    gc.collect()
    gc.freeze()
    forker = set_apart(jobs, replies)
    confine.hide_processes()
    confine.hide(code)
    write_all(replies, b"ready")
    seat = Seat(forker)
    while True:
        kind, size = HEAD.unpack(read_exactly(jobs, HEAD.size))
        body, seconds = read_exactly(jobs, size), 0.0
        if kind == Job.kind:
            seat.leave()
            clock = Clock(Job(**json.loads(body)))
            records, seconds = run(clock.job, body, forker, clock), clock.used()
        else:
            records = seat.answer(kind, body)
        reply = b"".join(struct.pack(">BI", kind, len(data)) + data for kind, data in records)
        nonce = read_exactly(jobs, 16)
        write_all(replies, nonce + REPLY.pack(len(reply), seconds) + reply)
