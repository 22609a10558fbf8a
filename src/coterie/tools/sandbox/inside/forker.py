"""Process from which answers and sessions are forked. It never holds a source, a call, a result or a reply.

A forked process can read all memory of its parent, including freed memory. So this process only forks. A request is
one byte and a few descriptors (input and results), which it passes on unread. It clears the buffer in which it reports
to the supervisor how a process ended.
"""

import os
import select
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

from coterie.tools.sandbox.inside import confine, harness, interpreter

ANSWER, SESSION = b"a", b"s"
"""Kinds of processes to fork."""
_FORKED: dict[bytes, Callable[..., NoReturn]] = {ANSWER: harness.answer, SESSION: interpreter.serve}
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
