"""Requests to a jail and their replies, shared by the host and both processes in the jail."""

import os
import struct
from dataclasses import dataclass
from typing import ClassVar

BY_ANSWER, BY_SUPERVISOR = 0, 1
"""Author of a record: the answer's process or the supervisor."""
MAX_FAILURE = 4000
"""Bytes of a record that reports a failure; every limit on results leaves room for it."""
HEAD = struct.Struct(">cI")
"""Header of a request: its kind and length."""
REPLY = struct.Struct(">Id")
"""Header of a reply, after the nonce: its length, and the seconds a job took without waiting for a CPU."""


def read_exactly(file: int, size: int) -> bytes:
    """Read ``size`` bytes. Exit this process at the end of the pipe."""
    parts = []
    while size:
        more = os.read(file, size)
        if not more:
            os._exit(0)
        parts.append(more)
        size -= len(more)
    return b"".join(parts)


def write_all(file: int, data: bytes) -> None:
    """Write all data, in several calls if necessary."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


PATIENCE = 4
"""Factor on a job's limit of seconds that bounds its wall time while others use the CPUs."""

JobRecord = tuple[int, bytes]
"""``BY_ANSWER`` or ``BY_SUPERVISOR``, and JSON with a value or a failure."""


@dataclass(frozen=True, slots=True)
class Job:
    """Request to run one answer: source, calls and limits."""

    source: str
    calls: list[str]
    legacy: bool
    wall_seconds: float
    """Wall time of one call, without the time its process waits for a CPU."""
    cpu_seconds: float
    """CPU time of one call."""
    total_seconds: float
    """Wall time of all calls, without waiting for a CPU."""
    memory_mib: int
    """Address space of one process, and resident memory of all processes."""
    processes: int
    file_mib: int
    output_kib: int
    """Size of the result of one call."""
    uid: int
    gid: int
    kind: ClassVar[bytes] = b"j"

    @property
    def records(self) -> int:
        """Number of records in the reply."""
        return len(self.calls)

    @property
    def longest_seconds(self) -> float:
        """Upper bound of the wall time on a busy machine."""
        return PATIENCE * self.total_seconds

    @property
    def max_record(self) -> int:
        """Limit on the bytes of a record, which all sides enforce."""
        return max(self.output_kib << 10, MAX_FAILURE)

    @property
    def max_reply(self) -> int:
        """Bytes of all records, including a header of 5 bytes each."""
        return len(self.calls) * (self.max_record + 5)
