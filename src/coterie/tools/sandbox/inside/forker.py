"""Process from which answers and sessions are forked. It also measures their resource use.

A forked process can read all memory of its parent, including freed memory. So this process only forks. A request is
one byte and a few descriptors (input and results), which it passes on unread. It clears the buffer in which it reports
to the supervisor how a process ended.
"""

import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from coterie.tools.sandbox.inside import confine, interpreter

TICK = 0.02
"""Seconds between two measurements."""


class Use(NamedTuple):
    """Resource use of an answer's processes."""

    processes: int
    seconds: float
    """CPU time."""
    resident: int
    """Resident bytes."""
    waited: float
    """Seconds that the first process waited for a CPU; 0 if the kernel does not report it."""


def processes_use(first: int, forker: int) -> Use:
    """Measure all processes of an answer; ``first`` is the id of the first one."""
    processes, seconds, resident = 0, 0.0, 0
    for name in os.listdir(confine.processes()):
        if name.isdigit() and name not in ("1", str(forker)):
            with suppress(OSError):
                fields = _read(f"{name}/stat").rpartition(b")")[2].split()
                seconds += sum(map(int, fields[11:15])) / _CLOCK
                resident += int(fields[21]) * _PAGE
                processes += 1
    waited = 0
    with suppress(OSError):
        waited = int(_read(f"{first}/schedstat").split()[1])
    return Use(processes, seconds, resident, waited / 1e9)


def standing(forker: int) -> list[tuple[bytes, ...]] | None:
    """Return each thread of an answer with its context switches; ``None`` if one may run.

    If two results are equal, no thread ran at some moment between them, since running and stopping adds a switch.
    """
    threads: list[tuple[bytes, ...]] = []
    for process in os.listdir(confine.processes()):
        if process.isdigit() and process not in ("1", str(forker)):
            with suppress(OSError):
                for thread in confine.threads(process):
                    lines = _read(f"{process}/task/{thread}/status").splitlines()
                    status = dict(line.partition(b":\t")[::2] for line in lines)
                    # D: in the kernel, before a pending stop signal
                    if status[b"State"][:1] not in b"TZXD":
                        return None
                    threads.append((status[b"Pid"], *(status[name] for name in _SWITCHES)))
    return threads


def _read(name: str) -> bytes:
    with confine.process_file(name) as file:
        return file.read()


_SWITCHES = (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")
_CLOCK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")

ANSWER, SESSION = b"a", b"s"
"""Kinds of processes to fork."""
_FORKED: dict[bytes, Callable[..., NoReturn]] = {
    ANSWER: interpreter.answer,
    SESSION: interpreter.serve,
}
_DESCRIPTORS = 3
"""Upper bound per request."""
NUMBER = struct.Struct("=I")


def serve(channel: socket.socket, own: int) -> None:
    """Fork for each request; send the pid and then the exit status, until the channel is closed.

    ``own`` is a descriptor of our pid namespace.
    """
    while True:
        request, files, _, _ = socket.recv_fds(channel, 1, _DESCRIPTORS)
        if request not in _FORKED:
            return
        confine.new_process_tree()
        pid = os.fork()
        if pid == 0:
            _FORKED[request](*files)
        confine.enter_namespace(own)
        for file in files:
            os.close(file)
        channel.send(NUMBER.pack(pid))
        confine.pass_ending(pid, channel.fileno())


class Forker:
    """Supervisor's handle of the forker."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.pid = pid
        self._channel = channel

    def fork(self, what: bytes, *files: int) -> int:
        """Fork a process that gets the descriptors; return its pid."""
        socket.send_fds(self._channel, [what], files)
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


def describe_ending(status: int) -> str:
    """Describe how a process ended."""
    if os.WIFSIGNALED(status):
        return f"by signal {os.WTERMSIG(status)}"
    return f"with status {os.WEXITSTATUS(status)}"


def start_forker(*files: int) -> Forker:
    """Fork the forker, which closes ``files``."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)  # before the supervisor hides it
    pid = os.fork()
    if pid == 0:
        try:
            for file in (*files, ours.detach()):
                os.close(file)
            serve(its, own)
        finally:
            os._exit(1)
    its.close()
    os.close(own)
    return Forker(ours, pid)
