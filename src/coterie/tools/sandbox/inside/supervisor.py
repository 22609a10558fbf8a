"""First process in the jail. For each answer it requests a forked process, watches it, ends it and reports.

A request is 4 bytes length and JSON (``job``). A reply is the nonce that follows the request, 4 bytes length, 8 bytes
seconds that a job took without waiting for a CPU, and for each record 1 byte (``BY_ANSWER`` or ``BY_SUPERVISOR``), 4
bytes length and its bytes, which are passed on unread.
"""

# This process holds sources and results. A forked process can read all memory of its parent, also freed memory, so
# another process, the forker, which was started before the first job, forks answers and sessions. It only forks: it
# passes descriptors on unread, and clears the buffer in which it reports how a process ended. The nonce is read after
# the processes of an answer have ended, or the processes of a session have ended or stopped.
#
# The process of an answer or a session is the first of its own pid namespace, so all its children end with it. At the
# end of a cell the processes of a session are stopped until the next cell, so nothing runs in between. A process that
# still runs can resume a stopped one, so we wait for a moment at which all are stopped, or end the session after a
# timeout.

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from coterie.tools.sandbox.inside import confine, interpreter
from coterie.tools.sandbox.inside.job import (
    BY_ANSWER,
    BY_SUPERVISOR,
    CELL,
    CONTINUATION,
    GONE,
    HEAD,
    JOB,
    MAX_FAILURE,
    NOT_OPENED,
    OPENING,
    RECORD,
    REPLY,
    STATUSES,
    JobRecord,
    Request,
    read_exactly,
    write_all,
)

TICK = 0.02
"""Seconds between two measurements."""
STOPPING_SECONDS = 5.0
"""Timeout for stopping all processes of a session after a cell, on a busy machine."""
ASLEEP_SECONDS = 1.0
"""Seconds after which a thread that sleeps in the kernel is taken for one that waits for a stopped child (vfork).
Others stop as soon as the kernel has done what they asked for, or send a signal when they end."""
ENDING_SECONDS = 1.0
"""Timeout for a process that closed its channel to be reported as ended."""
WARM = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json",
    "math", "numbers", "operator", "random", "re", "statistics", "string", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata", "coterie.tools.sandbox.inside.check",
    "coterie.tools.sandbox.inside.policy", "coterie.tools.sandbox.inside.program",
)  # fmt: skip
"""Modules that are imported before answers are forked."""

# -- forker ---------------------------------------------------------------------------------------

ANSWER, SESSION = b"a", b"s"
_FORKED: dict[bytes, Callable[..., NoReturn]] = {
    ANSWER: interpreter.answer,
    SESSION: interpreter.serve,
}
NUMBER = struct.Struct("=I")


class Forker:
    """Handle of the forker, which closes ``files``."""

    def __init__(self, *files: int) -> None:
        self._channel, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)  # before the supervisor hides it
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for file in (*files, self._channel.detach()):
                    os.close(file)
                _serve(its, own_namespace)
            finally:
                os._exit(1)
        its.close()
        os.close(own_namespace)

    def fork(self, message: bytes, *files: int) -> int:
        """Fork a process that gets the descriptors; return its pid."""
        socket.send_fds(self._channel, [message], files)
        return self._number()

    def ending(self) -> int:
        """Wait until the process ends; return its status as ``os.waitpid`` does."""
        return self._number()

    def has_ended(self, seconds: float) -> bool:
        """Return True if the process ends within ``seconds``."""
        return bool(select.select([self._channel], [], [], seconds)[0])

    def _number(self) -> int:
        data = self._channel.recv(NUMBER.size)
        if len(data) != NUMBER.size:
            raise OSError("the forker has ended")
        return int(NUMBER.unpack(data)[0])


def _serve(channel: socket.socket, own_namespace: int) -> None:
    """Fork for each request; send its pid, then its exit status. ``own_namespace`` is a descriptor of our own."""
    while True:
        request, files, _, _ = socket.recv_fds(channel, 1, 3)
        if request not in _FORKED:
            return
        confine.new_process_tree()
        pid = os.fork()
        if pid == 0:
            _FORKED[request](*files)
        confine.enter_namespace(own_namespace)
        for file in files:
            os.close(file)
        channel.send(NUMBER.pack(pid))
        confine.pass_ending(pid, channel.fileno())


def describe_ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"by signal {-code}" if code < 0 else f"with status {code}"


# -- resources ------------------------------------------------------------------------------------

_CLOCK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
_SWITCHES = (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")


class Meter:
    """Resource use of the processes of an answer or a session, compared with the limits of a call or a cell."""

    def __init__(self, pid: int, forker: Forker, limits: Request) -> None:
        self.pid, self.forker, self.limits = pid, forker, limits
        self.seconds, self.resident = 0.0, 0
        self.waited = self._first_waited = 0.0
        """Seconds that the process waited for a CPU, while it was the only one; and in all."""
        self.restart()

    def restart(self) -> None:
        self._start = time.monotonic(), self.waited, self.seconds

    def measure(self) -> None:
        processes, seconds, resident = 0, 0.0, 0
        for name in _processes(self.forker):
            with suppress(OSError):
                fields = _read(f"{name}/stat").rpartition(b")")[2].split()
                seconds += sum(map(int, fields[11:15])) / _CLOCK
                resident += int(fields[21]) * _PAGE
                processes += 1
        self.seconds, self.resident = seconds, resident
        with suppress(OSError):  # an ended process reports 0, and some kernels report nothing
            waited = max(self._first_waited, int(_read(f"{self.pid}/schedstat").split()[1]) / 1e9)
            if processes == 1:  # else it may wait for its own children
                self.waited += waited - self._first_waited
            self._first_waited = waited

    def over(self) -> str:
        """Return the limit that is exceeded, or an empty string."""
        began, waited, seconds = self._start
        took = time.monotonic() - began
        if (
            took - (self.waited - waited) > self.limits.wall_seconds
            or took > self.limits.longest_seconds
            or self.seconds - seconds > self.limits.cpu_seconds
        ):
            return "timeout"
        return "memory" if self.resident > self.limits.memory_mib << 20 else ""


def _processes(forker: Forker) -> list[str]:
    ours = ("1", str(forker.pid))
    return [name for name in os.listdir(confine.processes()) if name.isdigit() and name not in ours]


def _read(name: str) -> bytes:
    with confine.process_file(name) as file:
        return file.read()


def _standing(forker: Forker) -> list[tuple[bytes, ...]] | None:
    """Return each thread of a session with its state and context switches; ``None`` if one may run.

    If two results are equal, no thread ran at some moment between them, since running and stopping adds a switch.
    """
    threads: list[tuple[bytes, ...]] = []
    for process in _processes(forker):
        with suppress(OSError):
            for thread in confine.threads(process):
                lines = _read(f"{process}/task/{thread}/status").splitlines()
                status = dict(line.partition(b":\t")[::2] for line in lines)
                state = status[b"State"][:1]
                if state not in b"TZXD":
                    return None
                threads.append((status[b"Pid"], state, *(status[name] for name in _SWITCHES)))
    return threads


# -- answers --------------------------------------------------------------------------------------


class Clock:
    """Time that a job has used, without the time it waited for a CPU (up to a bound)."""

    def __init__(self, job: Request) -> None:
        self.job = job
        self.waited = 0.0
        """Seconds that its only process waited for a CPU, over all attempts."""
        self._began = time.monotonic()

    def used(self) -> float:
        return time.monotonic() - self._began - self.waited

    def over(self) -> bool:
        used = self.used()
        return used > self.job.total_seconds or used + self.waited > self.job.longest_seconds


class Attempt:
    """One forked process that runs calls from ``first`` on, and appends to ``records``."""

    def __init__(
        self, job: Request, content: int, first_call: int, forker: Forker, clock: Clock
    ) -> None:
        self.job, self.clock = job, clock
        self.forker = forker
        self.wanted = len(job.calls) - first_call
        self.confined = self.loaded = False
        self.failed_to_load: bytes | None = None
        self.records: list[JobRecord] = []
        self._buffer = bytearray()
        self._pipe, pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        os.pwrite(content, interpreter.FIRST.pack(first_call), 0)
        self._meter = Meter(forker.fork(ANSWER, content, pipe), forker, job)
        os.close(pipe)

    def watch(self) -> str | None:
        """Read until all frames are complete; return why the process must end early, or ``None``."""
        poll, meter = select.poll(), self._meter
        while True:
            # wakes when the process ends, and for each part of a long frame, but not for each frame
            poll.register(self._pipe, select.POLLIN if self._buffer else 0)
            over = any(event & select.POLLHUP for _, event in poll.poll(TICK * 1000))
            count_before = self._frame_count()
            reason = self._read_all()
            if reason is not None:
                return reason
            if self.failed_to_load is not None or len(self.records) == self.wanted:
                return None
            if over:
                return "ended"
            waited = meter.waited
            meter.measure()
            self.clock.waited += meter.waited - waited
            if self._frame_count() > count_before:
                meter.restart()
            if reason := "timeout" if self.clock.over() else meter.over():
                return reason

    def end(self) -> str:
        """Kill every process of the answer; describe how the first one ended."""
        with suppress(ProcessLookupError):
            os.kill(self._meter.pid, signal.SIGKILL)
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


def run(job: Request, body: bytes, forker: Forker, clock: Clock) -> list[JobRecord]:
    """Run all calls in one process; start another after a call that ended it."""
    records: list[JobRecord] = []
    content = os.memfd_create("job")
    try:
        os.pwrite(content, body, interpreter.FIRST.size)
        while len(records) < len(job.calls):
            if clock.over():
                reason_text = "no time was left for this call"
                return records + _failures(len(job.calls) - len(records), "timeout", reason_text)
            confine.clean_folder(job.file_mib, job.uid)
            attempt = Attempt(job, content, len(records), forker, clock)
            records = _finish(attempt, records, len(job.calls))
        return records
    finally:
        os.close(content)


def _finish(attempt: Attempt, records: list[JobRecord], count: int) -> list[JobRecord]:
    reason = attempt.watch()
    ending = attempt.end()
    if not attempt.confined and not attempt.clock.over():
        return _failures(count, "open", f"its process ended {ending} before it was confined")
    if reason == "garbled":
        return _failures(count, "garbled", "its process wrote to the channel of results")
    if attempt.failed_to_load is not None:
        return [(BY_ANSWER, attempt.failed_to_load)] * count
    records = records + attempt.records
    if reason is None:
        return records
    message = f"the process ended {ending}" if reason == "ended" else ""
    if not attempt.loaded:
        return _failures(count, reason, message)
    return records + _failures(1, reason, message)


def _failures(count: int, reason: str, message: str) -> list[JobRecord]:
    return [(BY_SUPERVISOR, json.dumps({"failed": reason, "why": message}).encode())] * count


# -- sessions -------------------------------------------------------------------------------------


class OutputEnds:
    """Beginning and end of a cell's output."""

    def __init__(self, max_bytes: int) -> None:
        self.most = max_bytes
        """Bytes of each part."""
        self.head = self.tail = b""
        self.left_out: int | None = None
        """Characters between the two parts; ``None`` if nothing is missing."""

    def add(self, data: bytes) -> None:
        room = self.most - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.most:
            missing = self.tail[: -self.most].translate(None, CONTINUATION)
            self.left_out = (self.left_out or 0) + len(missing)
            self.tail = self.tail[-self.most :]

    def records(self, failed: str, message: str = "") -> list[JobRecord]:
        verdict = json.dumps({"failed": failed, "why": message, "left_out": self.left_out})
        return [(BY_SUPERVISOR, verdict.encode()), (BY_ANSWER, self.head), (BY_ANSWER, self.tail)]


class Session:
    """The processes of one session."""

    def __init__(self, opening: Request, forker: Forker) -> None:
        confine.clean_folder(opening.file_mib, opening.uid)
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

    def exchange(self, body: bytes, limits: Request) -> list[JobRecord]:
        """Send a cell or the opening, and wait until it is done or exceeds a limit."""
        output, meter = OutputEnds(limits.kept_bytes), Meter(self.pid, self.forker, limits)
        meter.measure()
        meter.restart()
        if self.forker.has_ended(0):  # between two cells
            failed, message = self._ending()
        else:
            os.kill(-1, signal.SIGCONT)
            failed, message = self._watch(interpreter.SIZE.pack(len(body)) + body, meter, output)
        if failed in STATUSES.values():
            self.opened = True
            is_stopped = self._stop()
            self._drain(output)
            meter.measure()
            if self._read(self._statuses):
                failed, message = "garbled", ""
            elif not is_stopped:
                failed = "restless"
            elif meter.resident > limits.memory_mib << 20:
                failed = "memory"
        if failed not in STATUSES.values():
            self.end()
            self._drain(output)
        return output.records(failed, message)

    def end(self) -> None:
        if not self.ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.ended = describe_ending(self.forker.ending())

    def close(self) -> None:
        self.end()
        for file in (self._cells, self._statuses, self._output):
            os.close(file)

    def _stop(self) -> bool:
        """Stop all processes but ours. Return True if all are stopped at one moment."""
        began, pause = time.monotonic(), 0.0001
        last_seen, since = None, began
        while (now := time.monotonic()) - began < STOPPING_SECONDS:
            os.kill(-1, signal.SIGSTOP)
            os.kill(self.forker.pid, signal.SIGCONT)
            seen = _standing(self.forker)
            if seen is None or seen != last_seen:
                last_seen, since = seen, now
            elif b"D" not in (state for _, state, *_ in seen) or now - since > ASLEEP_SECONDS:
                return True
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        return False

    def _watch(self, rest: bytes, meter: Meter, output: OutputEnds) -> tuple[str, str]:
        """Wait for the byte that ends a cell; return how the cell failed, with details."""
        poll, measured = select.poll(), time.monotonic()
        poll.register(self._cells, select.POLLOUT)
        poll.register(self._statuses, select.POLLIN)
        poll.register(self._output, select.POLLIN)
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
            if time.monotonic() - measured >= TICK:
                meter.measure()
                measured = time.monotonic()
                if failed := meter.over():
                    return failed, ""

    def _send(self, rest: bytes) -> bytes:
        try:
            return rest[os.write(self._cells, rest) :]
        except BlockingIOError:
            return rest
        except BrokenPipeError:
            return b""

    def _status(self) -> tuple[str, str]:
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
        """Return how the process ended. A cell cannot send it SIGKILL, as the kernel does when memory runs out."""
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
    forker = Forker(jobs, replies)
    confine.hide_processes()
    confine.hide(code)
    write_all(replies, b"ready")
    session: Session | None = None
    while True:
        (size,) = HEAD.unpack(read_exactly(jobs, HEAD.size))
        body, seconds = read_exactly(jobs, size), 0.0
        request = Request(**json.loads(body))
        if request.kind == CELL:
            source = request.source.encode("utf-8", "surrogatepass")
            records = session.exchange(source, request) if session else OutputEnds(0).records(GONE)
        else:
            if session is not None:
                session.close()
            session, records = None, []
            if request.kind == JOB:
                clock = Clock(request)
                records, seconds = run(request, body, forker, clock), clock.used()
            elif request.kind == OPENING:
                session = Session(request, forker)
                records = session.exchange(body, request)
        reply = b"".join(RECORD.pack(by, len(data)) + data for by, data in records)
        nonce = read_exactly(jobs, 16)
        write_all(replies, nonce + REPLY.pack(len(reply), seconds) + reply)
