"""The sandbox: grading, its rules of equality, limits and refusals, and its workers."""

import asyncio
import os
import subprocess
import sys
import time as clock
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

import coterie
from coterie.errors import UserError
from coterie.tools.sandbox import worker
from coterie.tools.sandbox.inside.job import BY_ANSWER, JOB
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import Graded, format_value, judge
from coterie.tools.sandbox.worker import (
    SandboxSettings,
    Worker,
    WorkerPool,
    make_jail,
    pack,
    request,
)
from tests.helpers.run_python import ONE_WORKER
from tests.helpers.run_python import run_in_sandbox as inside

QUICK = SandboxSettings(workers=1, wall_seconds=1.0, cpu_seconds=0.3, total_seconds=3.0)
TWO = SandboxSettings(workers=2)


def graded(
    source: str,
    calls: list[str],
    expected: list[Any],
    limits: SandboxSettings = ONE_WORKER,
    **how: Any,
) -> Graded:
    grade: Graded = inside(lambda s: s.grade(source, calls, expected, **how), limits)
    return grade


def test_an_answer_is_graded_call_by_call() -> None:
    source = (
        "import os\nseen = []\ndef double(x, kept=[]):\n    seen.append(x); kept.append(x)\n"
        "    if x == 3: raise ValueError('odd')\n    if x == 4: os._exit(0)\n    while x == 5: pass\n"
        "    return [x * 2 if x else 1, seen, kept]"
    )
    expected = [[2 * x, [x], [x]] for x in range(7)]
    result = graded(source, [f"double({x})" for x in range(7)], expected, QUICK)
    assert [test.passed for test in result.tests] == [False, True, True, False, False, False, True]
    assert result.fraction == 3 / 7 and not result.success
    failures = [test.result.failed for test in result.tests]
    assert failures == ["", "", "", "error", "ended", "timeout", ""]
    assert result.tests[0].reason == "the value is another"
    assert "ValueError: odd" in result.tests[3].reason
    for calls, values in [([], []), (["f(1)"], [])]:
        with pytest.raises(UserError):
            graded(source, calls, values)


ANSWERS = {
    "helper": "def g(x): return x + 1\ndef f(x): return g(x)",
    "import at the top": "import math\ndef f(x): return x + int(math.cos(0))",
    "constant": "ONE = 1\ndef f(x): return x + ONE",
    "recursion": "def f(x): return 1 if x == 0 else 1 + f(x - 1)",
    "class": "class C:\n    def __init__(self, x): self.x = x\ndef f(x): return C(x).x + 1",
    "alone": "def f(x):\n    import math\n    return x + int(math.cos(0))",
}


def test_legacy_mode_fails_what_the_original_grader_failed() -> None:
    """The parity table: helpers, imports, constants, classes and recursion pass in a module's namespace only."""

    async def table(sandbox: Sandbox) -> None:
        for name, source in ANSWERS.items():
            module, legacy = [
                await sandbox.grade(source, ["f(1)"], [2], mode=mode)
                for mode in ("module", "legacy")
            ]
            assert module.success and legacy.success is (name == "alone"), name
            assert legacy.success or "NameError" in legacy.tests[0].reason

    inside(table)
    calls, expected = ["f(1)", "f(1.0)", "f(None)", "f([True])"], [1.0, 1, None, [1]]
    same = "def f(x): return x"
    assert graded(same, calls, expected, mode="legacy").fraction == 0.75
    assert graded(same, calls, expected).fraction == 1.0
    assert graded(same, calls, expected, strict=True).fraction == 0.25


HONEST = """
import bz2, ctypes, dataclasses, hashlib, lzma, os, socket, sqlite3, ssl, subprocess, sys, threading, zlib
from datetime import datetime
from zoneinfo import ZoneInfo
@dataclasses.dataclass
class Point:
    x: "int"
def f():
    with open("note.txt", "w") as file: file.write("kept")
    found = []
    thread = threading.Thread(target=found.append, args=(open("note.txt").read(),))
    thread.start(); thread.join()
    child = subprocess.run([sys.executable, "-I", "-c", "print(6 * 7)"], capture_output=True, text=True)
    data = sqlite3.connect("a.db").execute("select 1 + 1").fetchone()
    return [found, child.stdout, data, Point(3).x, sorted(os.listdir(".")),
            datetime(2024, 7, 1, tzinfo=ZoneInfo('Europe/Berlin'))]
"""
ARRAY = (
    "import numpy\ndef f(): return numpy.int64(3), numpy.float32(0.5), numpy.eye(2), numpy.bool_(1)"
)


def test_an_answer_has_the_standard_library_numpy_a_folder_threads_and_processes() -> None:
    day = datetime(2024, 6, 30, 22, tzinfo=UTC)
    value = [["kept"], "42\n", (2,), 3, ["a.db", "note.txt"], day]
    result = graded(HONEST, ["f()"], [value])
    assert result.success, result.tests[0]
    assert graded(ARRAY, ["f()"], [(3, 0.5, [[1, 0], [0, 1]], True)]).success


LEAVE = (
    "open('left', 'w').write('1')\nos.mkdir('.left')\nos.chmod('.', 0o711)\nos.utime('.', (1, 1))\n"
    "fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)\ntry: os.setxattr('.', 'user.left', b'1')\n"
    "except OSError: pass"
)
LOOK = (
    "[os.listdir('.'), os.listxattr('.'), oct(os.stat('.').st_mode), os.stat('.').st_mtime > 1, "
    "fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK)]"
)


def test_the_next_answer_finds_nothing() -> None:
    async def work(sandbox: Sandbox) -> list[Any]:
        (left,) = await sandbox.run(f"import fcntl, os\n{LEAVE}", ["os.listdir('.')"])
        (after,) = await sandbox.run("import fcntl, os", [LOOK])
        return [sorted(left.value), *after.value]

    assert inside(work) == [[".left", "left"], [], [], "0o40700", True, 0]


LOOKS = """
import importlib.metadata, os, socket, sys, sysconfig
ours = (sysconfig.get_path("stdlib"), "/packages/numpy", "/usr/share/zoneinfo")
def machine():
    return [os.getpid(), sorted(os.environ), socket.gethostname(), os.listdir('/proc'), os.getuid()]
def python():
    return [top for top, _, names in os.walk("/") if any(name.endswith(".py") for name in names)
            and not top.startswith(ours) or "-packages/" in top]
def packages():
    return [one.name for one in importlib.metadata.distributions()], sorted(os.listdir("/packages"))
def there(*paths): return [path for path in paths if os.path.exists(path) and os.listdir(path)]
def loads(*names):
    found = []
    for name in names:
        try: found.append(__import__(name).__name__)
        except ImportError: pass
    return found
"""


def test_an_answer_sees_nothing_else_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_TEST_SECRET", "hunter2")
    repository, packages = Path(coterie.__file__).parents[2], Path(psutil.__file__).parents[1]
    ours = str(repository), str(packages), str(Path.home() / ".cache"), "/code", "/home", "/usr/bin"
    names = "'numpy', 'sqlite3', 'psutil', 'torch', 'sympy', 'pip', 'yaml', 'coterie.config'"
    calls = ["machine()", "packages()", "python()", f"there{ours}", f"loads({names})"]
    machine, numpy, *rest = (one.value for one in inside(lambda s: s.run(LOOKS, calls)))
    pid, variables, host, processes, uid = machine
    assert pid == 1 and host == "sandbox" and processes == [] and uid != 0
    assert set(variables) <= {*worker.ENVIRONMENT, "PWD"}
    assert not set(variables) & {"USER", "PYTHONPATH"}
    assert numpy in (([], ["numpy"]), ([], ["numpy", "numpy.libs"])), "a wheel has libraries"
    assert rest == [[], [], ["numpy", "sqlite3"]]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "no program bwrap.*\n.*pip install"),
        ("/none/bwrap", "/none/bwrap.*\n.*bwrap_path"),
        ("failing", r"No permissions to create new namespace\n.*container"),
    ],
)
def test_a_machine_without_a_jail_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, problem: str
) -> None:
    monkeypatch.setattr(worker, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    if path == "failing":  # like bubblewrap on a kernel without user namespaces
        program = tmp_path / path
        error = "bwrap: No permissions to create new namespace"
        program.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 1\n")
        program.chmod(0o755)
        path = str(program)
    with pytest.raises(UserError, match=problem):
        inside(lambda s: s.run("", ["1"]), SandboxSettings(bwrap_path=path))


ORDER = "[list({'alpha', 'beta', b'c', None, 2.5}), hash('x'), hash(None), sys.flags.isolated]"


def test_sets_have_one_order_in_every_process() -> None:
    """Of workers of several sandboxes, for references and answers, and in processes that answers start."""
    source = f"import subprocess, sys\ndef own(): return {ORDER}\n" + (
        f"def child(): return eval(subprocess.run([sys.executable, '-c', {'import sys; print(' + ORDER + ')'!r}],"
        " capture_output=True, text=True).stdout)"
    )

    async def work(sandbox: Sandbox) -> list[Any]:
        runs = [run(source, ["own()"]) for run in (sandbox.run, sandbox.run_reference) * 3]
        return [result[0].value for result in await asyncio.gather(*runs)]

    orders = [order for _ in range(2) for order in inside(work, TWO)]
    assert all(order == orders[0] for order in orders)
    (child,) = inside(lambda s: s.run(source, ["child()"]))
    assert child.value[1] == orders[0][1]


SIZED = "def f(n):\n    return 'x' * n"


def test_a_result_that_is_too_large_fails_its_call_alone() -> None:
    """Many of all sizes at a time: each is told apart, no worker is lost and nothing waits for a full pipe."""
    sizes = [10, 100_000, 300_000, 10, 1_000_000, 200_000, 250_000, 1]

    async def work(sandbox: Sandbox) -> list[Graded]:
        calls, expected = [f"f({n})" for n in sizes], ["x" * n for n in sizes]
        return await asyncio.gather(*(sandbox.grade(SIZED, calls, expected) for _ in range(6)))

    for grade in inside(work, TWO):
        assert [test.passed for test in grade.tests] == [n < 262_000 for n in sizes]
        assert {test.result.failed for test in grade.tests if not test.passed} == {"output"}
        assert "too large" in grade.tests[2].reason and "262,144" in grade.tests[2].reason


ODD = """
class Shy:
    def __repr__(self): raise SystemExit
    __str__ = __hash__ = __eq__ = __repr__
class Key(tuple):
    __hash__ = lambda self: 1
class Loud(Exception):
    def __str__(self): raise Loud
def deep(n):
    value = []
    for _ in range(n): value = [value]
    return value
def angry(): raise Loud
def odd(): raise ValueError('\\ud800')
def named(): raise type('N' * 10**5, (Exception,), {})('x' * 10**5)
"""
ODD_CALLS = {
    "10**5000": "", "{10**5000: {1: 2}}": "", "{Key([[]]): 1}": "", "{float('nan'): 1}": "", "[float('nan')]": "",
    "deep(50)": "", "deep(100)": "not plain", "deep(10**5)": "not plain", "Shy()": "not plain", "[Shy()]": "not plain",
    "angry()": "error", "odd()": "error", "named()": "error", "'\\ud800'": "", "Key": "not plain", "...": "not plain",
    "10**(10**6)": "output", "1 / 0": "error", "(": "error", "iter(int, 1)": "output", "b'x' * 10**6": "output",
}  # fmt: skip


def test_whatever_a_call_gives_there_is_a_verdict() -> None:
    calls = list(ODD_CALLS)
    results = inside(lambda s: s.run(ODD, calls), SandboxSettings(workers=1, cpu_seconds=5))
    assert {result.call: result.failed for result in results} == ODD_CALLS
    for result in results:
        result.reason.encode()
        other = ["list", [result.wire or ["none", None]]]
        for mode in ("module", "legacy"):
            assert not judge(result, other, mode, 1e-6, strict=False).passed
        if result.wire is not None:
            assert judge(result, result.wire, "module", 1e-6, strict=True).passed
            assert format_value(result.wire, 50)


# -- workers ------------------------------------------------------------------------------------


def test_runs_keep_their_own_results_when_a_worker_is_killed_or_a_run_is_cancelled() -> None:
    async def work(sandbox: Sandbox) -> None:
        runs = [sandbox.run(f"def f(): return {n}", ["f()"]) for n in range(40)]
        assert [one.value for (one,) in await asyncio.gather(*runs)] == list(range(40))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run("while True: pass", ["1"]), 0.2)
        source = "import time\ndef f():\n    time.sleep(0.5)\n    return 1"
        run = asyncio.create_task(sandbox.grade(source, ["f()"], [1]))
        while not sandbox.answers.busy:
            await asyncio.sleep(0.05)
        (busy,) = sandbox.answers.busy
        busy.kill()
        assert (await run).success, "it is run again"

    inside(work, TWO)


def test_leaving_a_sandbox_cancels_its_runs_and_leaves_no_process() -> None:
    """Runs that run, one that waits for a worker, and a cell."""

    async def work() -> tuple[list[int], list[Any]]:
        async with Sandbox(ONE_WORKER) as sandbox, sandbox.session(0) as session:
            endless = "import time; time.sleep(1000)"
            calls = [sandbox.run(endless, ["1"]), sandbox.run(endless, ["1"]), session.run(endless)]
            calls.append(sandbox.run_reference(endless, ["1"]))
            tasks = [asyncio.create_task(call) for call in calls]
            pools, pids = (
                (sandbox.answers, sandbox.references, sandbox.sessions.workers),
                list[int](),
            )
            while len(pids) < len(pools):
                await asyncio.sleep(0.05)
                pids = [one.pid for pool in pools for one in pool.busy]
        return pids, await asyncio.gather(*tasks, return_exceptions=True)

    began = clock.monotonic()
    pids, ends = asyncio.run(asyncio.wait_for(work(), 60))
    assert clock.monotonic() - began < 10
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 4
    assert len(pids) == 3 and not any(map(psutil.pid_exists, pids))


def test_a_worker_whose_pipe_is_full_can_be_closed() -> None:
    """Its reply is larger than a pipe and a reader's buffer, and nobody takes it."""

    async def work() -> None:
        worker = await Worker.start(make_jail(ONE_WORKER))
        own = {"source": SIZED, "calls": ["f(250_000)"] * 8, "legacy": False}
        job = request(JOB, ONE_WORKER, worker.user, **own)
        worker._in.write(pack(job) + bytes(16))
        while len(worker._out._buffer) < 1 << 17:  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
        await asyncio.wait_for(worker.close(), 30)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_run_that_is_cancelled_while_its_worker_comes_up_leaves_nothing_waiting() -> None:
    """At each of the first steps of the start."""

    async def work(steps: int) -> None:
        workers = WorkerPool(ONE_WORKER)
        run = asyncio.create_task(workers.run("", ["1"], False, ONE_WORKER))
        for _ in range(steps):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run])
        records, _ = await workers.run("", ["1"], False, ONE_WORKER)
        assert records == [(BY_ANSWER, b'{"value": ["int", "1"]}')]
        await workers.close()

    async def every() -> None:
        await asyncio.gather(*(asyncio.wait_for(work(steps), 60) for steps in range(1, 7)))

    asyncio.run(every())


def test_no_two_workers_have_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where we are root: also not those of another process of the machine."""
    first = 100_000 + 4 * os.getpid()
    monkeypatch.setattr(worker, "UIDS", range(first, first + 3))
    monkeypatch.setattr(worker.os, "geteuid", lambda: 0)
    code = (
        "import os\nfrom coterie.tools.sandbox import worker as users\n"
        f"users.UIDS, os.geteuid = range({first}, {first + 3}), lambda: 0\n"
        "print(users.claim_user().uid)"
    )
    command = [sys.executable, "-c", code]
    claimed = [worker.claim_user() for _ in range(3)]
    assert {user.uid for user in claimed} == set(worker.UIDS)
    with pytest.raises(UserError, match="in use"):
        worker.claim_user()
    assert "in use" in subprocess.run(command, capture_output=True, text=True).stderr
    claimed[1].release()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    again = worker.claim_user()
    assert int(done.stdout) == claimed[1].uid == again.uid
    for user in (*claimed, again):
        user.release()
