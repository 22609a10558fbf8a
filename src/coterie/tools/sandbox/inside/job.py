"""Requests to a jail and its replies, for answers and for sessions; read by the host and inside.

For each cell, the process that runs it writes one status byte (``STATUSES``) to one pipe and the output to another.
Neither is trusted, since a cell may write anything to both.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

BY_ANSWER, BY_SUPERVISOR = 0, 1
"""Author of a record: the answer's process or the supervisor."""
JobRecord = tuple[int, bytes]
"""``BY_ANSWER`` or ``BY_SUPERVISOR``, and JSON with a value or a failure."""
MAX_FAILURE = 4000
"""Bytes of a record that reports a failure; every limit on results leaves room for it."""
JOB, OPENING, CELL, CLOSING = "job", "opening", "cell", "closing"
"""Kinds of requests: run an answer; open a session, which ends the current one; run a cell of it; end it."""
HEAD = struct.Struct(">I")
RECORD = struct.Struct(">BI")
REPLY = struct.Struct(">Id")
"""Headers of a request, a record and a reply; see ``supervisor``."""
PATIENCE = 4
"""Factor on a job's limit of seconds that bounds its wall time while others use the CPUs."""
STATUSES: dict[bytes, str] = {b"k": "", b"e": "error", b"s": "syntax", b"r": "refused"}
"""Status bytes of a cell, with how the cell failed; empty for success."""
NOT_OPENED = b"f"
"""Status byte of a process that could not be confined."""
GONE = "gone"
"""Status of a session whose process ended through no action of a cell."""
CONTINUATION = bytes(range(0x80, 0xC0))
SECONDS = 10.0
"""Timeout for a new process to confine itself, and for ending all processes of a session."""


def read_exactly(file: int, size: int) -> bytes:
    """Read ``size`` bytes. Exit this process at the end of the pipe."""
    parts = []
    while size:
        chunk = os.read(file, size)
        if not chunk:
            os._exit(0)
        parts.append(chunk)
        size -= len(chunk)
    return b"".join(parts)


def write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


@dataclass(frozen=True, slots=True)
class Request:
    """Request with its limits (``SandboxSettings``), which hold for an answer, or for one cell."""

    kind: str
    """``JOB``, ``OPENING``, ``CELL`` or ``CLOSING``."""
    wall_seconds: float
    cpu_seconds: float
    total_seconds: float
    memory_mib: int
    processes: int
    file_mib: int
    output_kib: int
    kept_bytes: int
    """Bytes of the beginning of a cell's output, and of its end."""
    uid: int
    source: str = ""
    """Source of an answer, or of a cell."""
    calls: Sequence[str] = ()
    legacy: bool = False
    seed: int = 0

    @property
    def records(self) -> int:
        """Records of the reply; a cell has a verdict, and the beginning and end of the output."""
        return len(self.calls) if self.kind == JOB else 0 if self.kind == CLOSING else 3

    @property
    def longest_seconds(self) -> float:
        """Upper bound of the wall time on a busy machine."""
        return PATIENCE * (self.total_seconds if self.kind == JOB else self.wall_seconds)

    @property
    def max_record(self) -> int:
        """Limit on the bytes of an answer's record, which all sides enforce."""
        return max(self.output_kib << 10, MAX_FAILURE)

    @property
    def max_reply(self) -> int:
        """Limit on the bytes of all records with their headers."""
        size = len(self.calls) * self.max_record + MAX_FAILURE + 2 * self.kept_bytes
        return size + self.records * RECORD.size
