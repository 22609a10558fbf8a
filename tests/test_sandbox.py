"""The sandbox's main paths: grading, its rules of equality, limits, refusals."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

import coterie
from coterie.errors import UserError
from coterie.tools.sandbox import worker
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import Graded, format_value, judge
from coterie.tools.sandbox.worker import SandboxSettings
from tests.python_sessions import in_sandbox as inside

QUICK = SandboxSettings(workers=1, wall_seconds=1.0, cpu_seconds=0.3, total_seconds=3.0)


def graded(source: str, calls: list[str], expected: list[Any], **how: Any) -> Graded:
    found: Graded = inside(lambda s: s.grade(source, calls, expected, **how))
    return found


def test_an_answer_is_graded_call_by_call() -> None:
    source = "def double(x):\n    if x == 3: raise ValueError('odd')\n    return x * 2 if x else 1"
    result = graded(source, [f"double({n})" for n in (0, 1, 2, 3)], [0, 2, 4, 6])
    assert [test.passed for test in result.tests] == [False, True, True, False]
    assert result.fraction == 0.5 and not result.success
    reasons = [test.reason for test in result.tests]
    assert reasons[0] == "the value is another" and "ValueError: odd" in reasons[3]
    assert [test.result.value for test in result.tests[:3]] == [1, 2, 4]


HELPERS = {
    "helper": "def g(x): return x + 1\ndef f(x): return g(x)",
    "import at the top": "import math\ndef f(x): return x + int(math.cos(0))",
    "constant": "ONE = 1\ndef f(x): return x + ONE",
    "recursion": "def f(x): return 1 if x == 0 else 1 + f(x - 1)",
    "class": "class C:\n    def __init__(self, x): self.x = x\ndef f(x): return C(x).x + 1",
}
ALONE = "def f(x):\n    import math\n    return x + int(math.cos(0))"


def test_legacy_mode_fails_what_the_original_grader_failed() -> None:
    """The parity table: helpers, imports, constants, classes and recursion pass in a module's namespace only."""

    async def table(sandbox: Sandbox) -> None:
        for name, source in {**HELPERS, "alone": ALONE}.items():
            module, legacy = [
                await sandbox.grade(source, ["f(1)"], [2], mode=mode)
                for mode in ("module", "legacy")
            ]
            assert module.success and legacy.success is (name == "alone"), name
            assert legacy.success or "NameError" in legacy.tests[0].reason

    inside(table)


def test_legacy_mode_compares_as_the_original_did() -> None:
    calls, expected = ["f(1)", "f(1.0)", "f(None)", "f([True])"], [1.0, 1, None, [1]]
    same_source = "def f(x): return x"
    assert graded(same_source, calls, expected, mode="legacy").fraction == 0.75
    assert graded(same_source, calls, expected).fraction == 1.0
    assert graded(same_source, calls, expected, strict=True).fraction == 0.25


def test_calls_do_not_see_what_other_calls_left() -> None:
    source = (
        "seen = []\ndef f(x, kept=[]):\n    seen.append(x); kept.append(x)\n    return [seen, kept]"
    )
    assert graded(source, ["f(1)", "f(2)"], [[[1], [1]], [[2], [2]]]).success


def test_a_call_that_ends_its_process_costs_only_itself() -> None:
    source = (
        "import os\ndef f(x):\n    if x == 1: os._exit(0)\n    while x == 2: pass\n    return x"
    )
    result = inside(lambda s: s.grade(source, [f"f({n})" for n in range(4)], [0, 1, 2, 3]), QUICK)
    assert [test.passed for test in result.tests] == [True, False, False, True]
    assert [test.result.failed for test in result.tests] == ["", "ended", "timeout", ""]


def test_an_answer_has_the_standard_library_a_folder_threads_and_processes() -> None:
    source = """
import bz2, ctypes, dataclasses, hashlib, lzma, os, socket, sqlite3, ssl, subprocess, sys, threading, zlib
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
    return [found, child.stdout, data, Point(3).x, os.listdir("."), os.getcwd()]
"""
    (result,) = inside(lambda s: s.run(source, ["f()"]))
    assert result.ok, result.reason
    assert result.value[:4] == [["kept"], "42\n", (2,), 3] and "note.txt" in result.value[4]


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
        (found,) = await sandbox.run("import fcntl, os", [LOOK])
        return [sorted(left.value), *found.value]

    assert inside(work) == [[".left", "left"], [], [], "0o40700", True, 0]


def test_what_an_answer_sees_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_TEST_SECRET", "hunter2")
    source = """
import os, socket
def f():
    return [os.getpid(), sorted(os.environ), socket.gethostname(), os.listdir('/proc'), os.getuid()]
"""
    (result,) = inside(lambda s: s.run(source, ["f()"]))
    pid, names, host, processes, uid = result.value
    assert pid == 1 and host == "sandbox" and processes == [] and uid != 0
    assert set(names) <= {*worker.ENVIRONMENT, "PWD"} and not set(names) & {"USER", "PYTHONPATH"}


LOOKS = """
import importlib.metadata, os, sys, sysconfig
ours = (sysconfig.get_path("stdlib"), "/packages/numpy", "/usr/share/zoneinfo")
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


def test_an_answer_has_the_standard_library_and_numpy_and_nothing_else_of_the_machine() -> None:
    repository, packages = Path(coterie.__file__).parents[2], Path(psutil.__file__).parents[1]
    ours = str(repository), str(packages), str(Path.home() / ".cache"), "/code", "/home", "/usr/bin"
    calls = {
        "python()": [],
        f"there{ours}": [],
        "loads('numpy', 'sqlite3', 'psutil', 'torch', 'sympy', 'pip', 'yaml', 'coterie.config')": [
            "numpy", "sqlite3",
        ],
    }  # fmt: skip
    (shown,) = inside(lambda s: s.run(LOOKS, ["packages()"]))
    assert shown.value in (([], ["numpy"]), ([], ["numpy", "numpy.libs"])), "a wheel has libraries"
    assert {r.call: r.value for r in inside(lambda s: s.run(LOOKS, list(calls)))} == calls
    array = "import numpy\ndef f(): return numpy.int64(3), numpy.float32(0.5), numpy.eye(2), numpy.bool_(1)"
    assert graded(array, ["f()"], [(3, 0.5, [[1, 0], [0, 1]], True)]).success


def test_tests_that_cannot_be_graded_are_refused() -> None:
    for calls, expected in [([], []), (["f(1)"], []), (["f(1)"], [object()])]:
        with pytest.raises(UserError):
            graded("def f(x): return x", calls, expected)


@pytest.mark.parametrize(
    ("path", "said"),
    [("", "no program bwrap.*\n.*pip install"), ("/none/bwrap", "/none/bwrap.*\n.*bwrap_path")],
)
def test_a_machine_without_a_jail_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, path: str, said: str
) -> None:
    monkeypatch.setattr(worker, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=said):
        inside(lambda s: s.run("", ["1"]), SandboxSettings(bwrap_path=path))


def test_a_jail_that_does_not_start_is_refused_with_what_it_said(tmp_path: Any) -> None:
    """A kernel without user namespaces is played by a program that fails as bubblewrap does there."""
    program = tmp_path / "bwrap"
    said = "bwrap: No permissions to create new namespace"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"No permissions to create new namespace\n.*container"):
        inside(lambda s: s.run("", ["1"]), SandboxSettings(workers=2, bwrap_path=str(program)))


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

    two = SandboxSettings(workers=2)
    orders = [order for _ in range(2) for order in inside(work, two)]
    assert all(order == orders[0] for order in orders)
    (child,) = inside(lambda s: s.run(source, ["child()"]))
    assert child.value[1] == orders[0][1]


def test_time_zones_are_there() -> None:
    source = "from zoneinfo import ZoneInfo\nfrom datetime import datetime\n" + (
        "def f(): return datetime(2024, 7, 1, tzinfo=ZoneInfo('Europe/Berlin'))"
    )
    expected = datetime(2024, 6, 30, 22, tzinfo=UTC)
    assert inside(lambda s: s.grade(source, ["f()"], [expected])).success


SIZED = "def f(n):\n    return 'x' * n"


def test_a_result_that_is_too_large_fails_its_call_alone() -> None:
    """Many of all sizes at a time: each is told apart, no worker is lost and nothing waits for a full pipe."""
    sizes = [10, 100_000, 300_000, 10, 1_000_000, 200_000, 250_000, 1]

    async def work(sandbox: Sandbox) -> list[Graded]:
        calls, expected = [f"f({n})" for n in sizes], ["x" * n for n in sizes]
        return await asyncio.gather(*(sandbox.grade(SIZED, calls, expected) for _ in range(6)))

    for found in inside(work, SandboxSettings(workers=2)):
        assert [test.passed for test in found.tests] == [n < 262_000 for n in sizes]
        assert {test.result.failed for test in found.tests if not test.passed} == {"output"}
        assert "too large" in found.tests[2].reason and "262,144" in found.tests[2].reason


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
