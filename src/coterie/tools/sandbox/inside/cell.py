"""Requests to a session in a jail and their replies, shared by the host and the processes in the jail.

For each cell, the process that runs it writes one status byte (``STATUSES``) to one pipe and the output to another.
Neither is trusted, since a cell may write anything to both.
"""

from dataclasses import dataclass
from typing import ClassVar

from coterie.tools.sandbox.inside.job import MAX_FAILURE, PATIENCE

STATUSES: dict[bytes, str] = {b"k": "", b"e": "error", b"s": "syntax", b"r": "refused"}
"""Status bytes of a cell, with how the cell failed; empty for success."""
NOT_OPENED = b"f"
"""Status byte of a process that could not be confined."""
GONE = "gone"
"""Status of a session whose process ended through no action of a cell."""
CONTINUATION = bytes(range(0x80, 0xC0))
"""Continuation bytes of UTF-8."""
OPENING_SECONDS = 10.0
"""Timeout for a new process to confine itself, without the time it waits for a CPU."""
CLOSING_SECONDS = 10.0
"""Timeout for ending all processes of a session."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Request to open a session; ends the current one."""

    seed: int
    memory_mib: int
    """Address space of one process."""
    processes: int
    file_mib: int
    uid: int
    gid: int
    kind: ClassVar[bytes] = b"o"
    records: ClassVar[int] = 3
    longest_seconds: ClassVar[float] = PATIENCE * OPENING_SECONDS
    max_reply: ClassVar[int] = 3 * MAX_FAILURE + 15

    @property
    def limits(self) -> "Limits":
        """Limits while the process starts."""
        return Limits(OPENING_SECONDS, OPENING_SECONDS, self.memory_mib, MAX_FAILURE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one cell."""

    wall_seconds: float
    """Wall time, without the time its process waits for a CPU."""
    cpu_seconds: float
    """CPU time of all processes together."""
    memory_mib: int
    """Resident memory of all processes together."""
    kept_bytes: int
    """Bytes of the beginning of the output, and of its end."""

    @property
    def longest_seconds(self) -> float:
        """Upper bound of the wall time on a busy machine."""
        return PATIENCE * self.wall_seconds


@dataclass(frozen=True, slots=True)
class Cell(Limits):
    """Request to run one cell. The reply has three records: a verdict, and the beginning and end of the output."""

    source: str
    kind: ClassVar[bytes] = b"c"
    records: ClassVar[int] = 3

    @property
    def max_reply(self) -> int:
        """Bytes of all records, including a header of 5 bytes each."""
        return MAX_FAILURE + 2 * self.kept_bytes + 15


@dataclass(frozen=True, slots=True)
class Closing:
    """Request to end a session. All its processes have ended before the reply."""

    kind: ClassVar[bytes] = b"x"
    records: ClassVar[int] = 0
    longest_seconds: ClassVar[float] = CLOSING_SECONDS
    max_reply: ClassVar[int] = 0
