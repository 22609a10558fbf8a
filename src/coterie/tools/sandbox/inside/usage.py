"""What the processes of a jail use, as the supervisor sees them."""

import os
from contextlib import suppress
from typing import NamedTuple

from coterie.tools.sandbox.inside import confine

TICK = 0.02
"""Seconds between two looks at an answer's processes."""


class Use(NamedTuple):
    """What an answer's processes have used."""

    processes: int
    seconds: float
    """Of CPU."""
    resident: int
    """Bytes."""
    waited: float
    """Seconds that the first of them waited for a processor; 0 on a kernel that doesn't tell."""


def processes_use(first: int, forker: int) -> Use:
    """Of all of an answer's processes, of which ``first`` is the first."""
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


def _read(name: str) -> bytes:
    with confine.process_file(name) as file:
        return file.read()


_CLOCK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
