"""The process that those of answers and sessions are forked from. It never holds a source, a call, a result or a reply.

A forked process can read all that its parent ever held, also what was freed. So this one does nothing but fork: a
request is one byte and a few descriptors, which it passes on unread (what to run, and where to write results). How a
process ended goes to the supervisor by way of a buffer that is emptied.
"""

import os
import select
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

from coterie.tools.sandbox.inside import confine, harness, interpreter

ANSWER, SESSION = b"a", b"s"
"""What to fork."""
_FORKED: dict[bytes, Callable[..., NoReturn]] = {ANSWER: harness.answer, SESSION: interpreter.serve}
_DESCRIPTORS = 3
"""That a request has at most."""
NUMBER = struct.Struct("=I")


def serve(channel: socket.socket, own: int) -> None:
    """Fork for each request, tell the process's number and then how it ended, until the channel is closed.

    ``own`` is a descriptor of our namespace of processes.
    """
    while True:
        request, files, _, _ = socket.recv_fds(channel, 1, _DESCRIPTORS)
        if request not in _FORKED:
            return
        confine.new_process_tree()
        pid = os.fork()
        if pid == 0:
            _FORKED[request](*files)
        confine.back_to(own)
        for file in files:
            os.close(file)
        channel.send(NUMBER.pack(pid))
        confine.pass_ending(pid, channel.fileno())


class Forker:
    """The supervisor's side."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.pid = pid
        self._channel = channel

    def fork(self, what: bytes, *files: int) -> int:
        """The number of a new process, which is given the descriptors."""
        socket.send_fds(self._channel, [what], files)
        return self._number()

    def ending(self) -> int:
        """How the process ended, as ``os.waitpid`` tells it, when it has."""
        return self._number()

    def has_ended(self, seconds: float) -> bool:
        """Whether the process has ended, or does within so many seconds."""
        return bool(select.select([self._channel], [], [], seconds)[0])

    def _number(self) -> int:
        told = self._channel.recv(NUMBER.size)
        if len(told) != NUMBER.size:
            raise OSError("the forker is gone")
        return int(NUMBER.unpack(told)[0])


def how(status: int) -> str:
    """How a process ended, for a person."""
    if os.WIFSIGNALED(status):
        return f"by signal {os.WTERMSIG(status)}"
    return f"with status {os.WEXITSTATUS(status)}"


def set_apart(*files: int) -> Forker:
    """Fork the forker, which keeps none of ``files``."""
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
