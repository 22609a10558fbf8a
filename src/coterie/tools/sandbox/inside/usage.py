"""Resource use of a jail's processes, measured by the supervisor."""

import os
from contextlib import suppress
from typing import NamedTuple

from coterie.tools.sandbox.inside import confine

TICK = 0.02
"""Seconds between two measurements."""


class Use(NamedTuple):
    """Resource use of an answer's processes."""

    processes: int
    seconds: float
    """CPU time."""
    resident: int
    """Resident bytes."""
    waited: float
    """Seconds that the first process waited for a CPU; 0 if the kernel does not report it."""


def processes_use(first: int, forker: int) -> Use:
    """Measure all processes of an answer; ``first`` is the id of the first one."""
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
    """Return each thread of an answer with its context switches; ``None`` if one may run.

    If two results are equal, no thread ran at some moment between them, since running and stopping adds a switch.
    """
    threads: list[tuple[bytes, ...]] = []
    for process in os.listdir(confine.processes()):
        if process.isdigit() and process not in ("1", str(forker)):
            with suppress(OSError):
                for thread in confine.threads(process):
                    lines = _read(f"{process}/task/{thread}/status").splitlines()
                    status = dict(line.partition(b":\t")[::2] for line in lines)
                    # D: in the kernel, before a pending stop signal
                    if status[b"State"][:1] not in b"TZXD":
                        return None
                    threads.append((status[b"Pid"], *(status[name] for name in _SWITCHES)))
    return threads


def _read(name: str) -> bytes:
    with confine.process_file(name) as file:
        return file.read()


_SWITCHES = (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")
_CLOCK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
