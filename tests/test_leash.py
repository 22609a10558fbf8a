"""A command on a leash: it ends with its holder, whole, and as it would alone."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from coterie.engines.servers import leash

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def leashed(code: str, grace: float = 0.2) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-I", "-S", str(Path(leash.__file__)), str(psutil.Process().pid),
        str(grace), sys.executable, "-c", code,
    ]  # fmt: skip
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def descendants(held: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    assert held.stdout is not None and held.stdout.readline() == "up\n"
    found = psutil.Process(held.pid).children(recursive=True)
    assert len(found) == count
    return found


@pytest.mark.parametrize("status", [0, 3])
def test_it_exits_as_its_command(status: int) -> None:
    with leashed(f"raise SystemExit({status})") as held:
        assert held.wait(20) == status


def test_it_tells_by_which_signal_its_command_died() -> None:
    with leashed("import os; os.kill(os.getpid(), 9)") as held:
        assert held.wait(20) == 128 + signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the process group is ended")
@pytest.mark.parametrize("how", ["closed", "SIGTERM"])
def test_nothing_is_left_when_it_is_let_go(how: str) -> None:
    with leashed(STUBBORN) as held:
        found = descendants(held, 3)
        if how == "closed":
            assert held.stdin is not None
            held.stdin.close()
        else:
            held.send_signal(signal.SIGTERM)
        held.wait(20)
        assert not [process for process in found if process.is_running()]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a child with its parent")
def test_the_command_dies_even_if_the_leash_is_killed() -> None:
    with leashed("import time; print('up', flush=True); time.sleep(600)") as held:
        (command,) = descendants(held, 1)
        held.kill()
        _, alive = psutil.wait_procs([command], timeout=20)
        assert not alive


def test_a_command_that_is_not_there_is_said_so() -> None:
    command = [sys.executable, str(Path(leash.__file__)), "1", "1", "/nowhere/server"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.PIPE)
    assert done.returncode == 127 and "can't run /nowhere/server" in done.stderr
