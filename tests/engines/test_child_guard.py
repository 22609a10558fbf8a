"""A guarded command ends with its holder, whole, and as it would alone."""

import signal
import subprocess
import sys

import psutil
import pytest

from coterie.engines.child_guard import guarded

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def run(code: str) -> "subprocess.Popen[str]":
    command = guarded([sys.executable, "-c", code], 0.2)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def descendants(held: "subprocess.Popen[str]", count: int) -> list[psutil.Process]:
    assert held.stdout is not None and held.stdout.readline() == "up\n"
    found = psutil.Process(held.pid).children(recursive=True)
    assert len(found) == count
    return found


def test_it_exits_as_its_command() -> None:
    for code, status in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)):
        with run(code) as held:
            assert held.wait(20) == status
    command = guarded(["/nowhere/server"], 1)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.PIPE)
    assert done.returncode == 127 and "can't run /nowhere/server" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the process group is ended")
@pytest.mark.parametrize("how", ["closed", "SIGTERM"])
def test_nothing_is_left_when_it_ends(how: str) -> None:
    with run(STUBBORN) as held:
        found = descendants(held, 3)
        if how == "closed":
            assert held.stdin is not None
            held.stdin.close()
        else:
            held.send_signal(signal.SIGTERM)
        held.wait(20)
        assert not [process for process in found if process.is_running()]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a child with its parent")
def test_the_command_dies_even_if_the_guard_is_killed() -> None:
    with run("import time; print('up', flush=True); time.sleep(600)") as held:
        (command,) = descendants(held, 1)
        held.kill()
        _, alive = psutil.wait_procs([command], timeout=20)
        assert not alive
