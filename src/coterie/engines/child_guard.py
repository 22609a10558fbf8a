"""Child-process guard: run a command, and end it with all its descendants when the holder is gone.

    python child_guard.py HOLDER GRACE COMMAND...
    python child_guard.py --talk HOLDER GRACE COMMAND...

The command's process group gets SIGTERM, and SIGKILL after GRACE seconds, when standard input is closed, when the
process HOLDER is no longer the parent, or on SIGTERM. With ``--talk`` the command inherits standard input, whose end
has no effect. On Linux, the command dies with this process, and descendants outside the group are killed. The exit
status is the command's (128 + n for signal n). Uses only the standard library, to start fast.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK = 0.25
"""Seconds between two checks of the holder and the command."""
REAP_SECONDS = 5.0
"""Maximum wait for killed descendants."""


def guarded(command: Sequence[str], grace: float, *, talk: bool = False) -> list[str]:
    """Return the command line of a guard that runs ``command`` and is held by this process."""
    options = ["--talk"] if talk else []
    return [
        sys.executable, "-I", "-S", __file__, *options, str(os.getpid()), str(grace), *command
    ]  # fmt: skip


def main(holder: int, grace: float, command: list[str], *, talk: bool = False) -> int:
    """Run ``command`` until it ends or has to be ended. Return its exit status."""
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
            preexec_fn=lambda: _control(PR_SET_PDEATHSIG, signal.SIGKILL),
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
    # The child is not reaped yet, so its id, which is the group's, can't be reused.
    os.killpg(child.pid, signal.SIGKILL)
    status = child.wait()
    _end_orphans()
    return status if status >= 0 else 128 - status


def _over(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_orphans() -> None:
    """Kill and reap the command's orphans, which on Linux are now children of this process."""
    until = time.monotonic() + REAP_SECONDS
    while time.monotonic() < until:
        # No child is reaped meanwhile, so the ids stay valid. Only Linux lists them.
        with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as listed:
            for pid in listed.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(TICK / 10)
        except ChildProcessError:
            return


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    talk = sys.argv[1] == "--talk"
    holder, grace, *command = sys.argv[2 if talk else 1 :]
    sys.exit(main(int(holder), float(grace), command, talk=talk))
