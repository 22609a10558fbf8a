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


def standing(forker: int) -> list[tuple[bytes, ...]] | None:
    """Every thread of an answer's with how often it was switched; ``None`` if one of them may run.

    Two equal looks mean that at a moment between them nothing ran: who runs and stops again is switched once more.
    """
    found: list[tuple[bytes, ...]] = []
    for process in os.listdir(confine.processes()):
        if process.isdigit() and process not in ("1", str(forker)):
            with suppress(OSError):
                for thread in confine.threads(process):
                    lines = _read(f"{process}/task/{thread}/status").splitlines()
                    told = dict(line.partition(b":\t")[::2] for line in lines)
                    if (
                        told[b"State"][:1] not in b"TZXD"
                    ):  # D: in the kernel, with a signal to stop before it
                        return None
                    found.append((told[b"Pid"], *(told[name] for name in _SWITCHES)))
    return found


def _read(name: str) -> bytes:
    with confine.process_file(name) as file:
        return file.read()


_SWITCHES = (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")
_CLOCK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
