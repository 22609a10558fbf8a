"""Runs one command and ends it, with everything that it started, when its holder is gone.

    python leash.py HOLDER GRACE COMMAND...
    python leash.py --talk HOLDER GRACE COMMAND...

The command runs in a process group of its own. It is ended (SIGTERM, GRACE seconds later SIGKILL, to that
group alone) when standard input is closed, when the process HOLDER is no longer the parent, or on SIGTERM;
so it outlives neither a clean exit of the holder nor its SIGKILL. With ``--talk`` standard input is the command's own,
and its end ends nothing. Should this process be killed, Linux kills
the command. On Linux, descendants that left the group are ended too, and all are gone when this exits. Exits as
the command did (128 + n for signal n). Standard library only: it starts at once.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK = 0.25
"""Seconds between two looks at the holder and the command."""
REAP_SECONDS = 5.0
"""How long killed descendants are waited for."""


def main(holder: int, grace: float, command: list[str], *, talk: bool = False) -> int:
    """Run ``command`` until it ends or is to be ended; returns its exit status."""
    ending = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _control(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            command,
            stdin=None if talk else subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        print(f"can't run {command[0]}: {error}", file=sys.stderr, flush=True)
        return 127
    while not ending and not _over(child.pid):
        ready, _, _ = select.select([] if talk else [0], [], [], TICK)
        ending = ending or os.getppid() != holder or (bool(ready) and not os.read(0, 1))
    if ending and not _over(child.pid):
        os.killpg(child.pid, signal.SIGTERM)
        until = time.monotonic() + grace
        while time.monotonic() < until and not _over(child.pid):
            time.sleep(TICK / 5)
    # Not yet reaped, so that its id, which is the group's, can't be another's.
    os.killpg(child.pid, signal.SIGKILL)
    status = child.wait()
    _end_orphans()
    return status if status >= 0 else 128 - status


def _over(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_orphans() -> None:
    """Kill and reap what the command left behind: on Linux its orphans are now our children."""
    until = time.monotonic() + REAP_SECONDS
    while time.monotonic() < until:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(TICK / 10)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Our children, where the system lists them; none is reaped meanwhile, so the ids are theirs."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listed:
            return [int(pid) for pid in listed.read().split()]
    except OSError:
        return []


def _die_with_parent() -> None:
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    talk = sys.argv[1] == "--talk"
    holder, grace, *command = sys.argv[2 if talk else 1 :]
    sys.exit(main(int(holder), float(grace), command, talk=talk))
