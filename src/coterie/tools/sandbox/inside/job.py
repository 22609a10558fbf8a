"""What is asked of a jail, and what comes back: read by the host and by both processes in the jail."""

import os
import struct
from dataclasses import dataclass
from typing import ClassVar

TOLD, JUDGED = 0, 1
"""Who a record is of: the answer's process, or the supervisor."""
MAX_FAILURE = 4000
"""Bytes of a record that says why there is no value; every limit of results leaves room for one."""
HEAD = struct.Struct(">cI")
"""What stands before a request: its kind, and its length."""
REPLY = struct.Struct(">Id")
"""What stands before a reply, after its nonce: its length, and the seconds that a job took of its own."""


def read_exactly(file: int, size: int) -> bytes:
    """So many bytes; the end of a pipe ends this process."""
    parts = []
    while size:
        more = os.read(file, size)
        if not more:
            os._exit(0)
        parts.append(more)
        size -= len(more)
    return b"".join(parts)


def write_all(file: int, data: bytes) -> None:
    """Write, in as many parts as it takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


PATIENCE = 4
"""How many times its limit of seconds a job takes at most, where others use the processors."""

JobRecord = tuple[int, bytes]
"""``TOLD`` or ``JUDGED``, and JSON: a value, or why there is none."""


@dataclass(frozen=True, slots=True)
class Job:
    """One answer: what to run, and within which limits."""

    source: str
    calls: list[str]
    legacy: bool
    wall_seconds: float
    """For one call, without the time for which its process waits for a processor."""
    cpu_seconds: float
    """For one call."""
    total_seconds: float
    """For all calls, without that time."""
    memory_mib: int
    """Of one process (address space), and of all of them (resident)."""
    processes: int
    file_mib: int
    output_kib: int
    """Of the result of one call."""
    uid: int
    gid: int
    kind: ClassVar[bytes] = b"j"

    @property
    def records(self) -> int:
        """How many there are in the reply."""
        return len(self.calls)

    @property
    def longest_seconds(self) -> float:
        """That a job takes by the clock, also on a machine that is busy with others."""
        return PATIENCE * self.total_seconds

    @property
    def max_record(self) -> int:
        """Bytes of a record: the one limit of results, which all sides go by."""
        return max(self.output_kib << 10, MAX_FAILURE)

    @property
    def max_reply(self) -> int:
        """Bytes of all records, each with its head of 5 bytes."""
        return len(self.calls) * (self.max_record + 5)
