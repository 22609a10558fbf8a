"""What is asked of a session in a jail, and what comes back: read by the host and by the processes in the jail.

The process that runs cells tells of each one byte (``TOLD``) and writes to a pipe, which holds whatever was printed.
Neither is relied upon: a cell may write what it likes to both.
"""

from dataclasses import dataclass
from typing import ClassVar

from coterie.tools.sandbox.inside.job import MAX_FAILURE, PATIENCE

TOLD: dict[bytes, str] = {b"k": "", b"e": "error", b"s": "syntax", b"r": "refused"}
"""What the process may say of a cell: how it failed, if it did."""
NOT_OPENED = b"f"
"""What it says before the first cell, if it could not be confined."""
GONE = "gone"
"""That the process was ended by nothing that a cell did."""
CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character."""
OPENING_SECONDS = 10.0
"""For a new process to confine itself, without waiting for a processor."""
CLOSING_SECONDS = 10.0
"""For all processes of a session to be gone."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A new session; one that is there is ended."""

    seed: int
    memory_mib: int
    """Of one process (address space)."""
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
        """Those of getting ready."""
        return Limits(OPENING_SECONDS, OPENING_SECONDS, self.memory_mib, MAX_FAILURE)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one cell may use."""

    wall_seconds: float
    """Without the time for which its process waits for a processor."""
    cpu_seconds: float
    """Of all processes together."""
    memory_mib: int
    """Of all processes together (resident)."""
    kept_bytes: int
    """Of the beginning of what is printed, and as many of its end."""

    @property
    def longest_seconds(self) -> float:
        """By the clock, also on a machine that is busy with others."""
        return PATIENCE * self.wall_seconds


@dataclass(frozen=True, slots=True)
class Cell(Limits):
    """One cell. Its reply has three records: a verdict, and the beginning and the end of what was printed."""

    source: str
    kind: ClassVar[bytes] = b"c"
    records: ClassVar[int] = 3

    @property
    def max_reply(self) -> int:
        """Bytes of all records, each with its head of 5 bytes."""
        return MAX_FAILURE + 2 * self.kept_bytes + 15


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a session: all its processes are gone before the reply."""

    kind: ClassVar[bytes] = b"x"
    records: ClassVar[int] = 0
    longest_seconds: ClassVar[float] = CLOSING_SECONDS
    max_reply: ClassVar[int] = 0
