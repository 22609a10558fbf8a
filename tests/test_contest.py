"""Programs of contests on their tests: the real sandbox, what programs do to it, and which outputs are the same."""

from collections.abc import AsyncIterator, Sequence

import pytest

from coterie.datasets.code_rows import ContestTest
from coterie.tools.contest import ContestLimits, Verdict, judge_program, same_output, same_value
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult
from tests.python_sessions import in_sandbox

ADD = (ContestTest(input="1 2\n", output="3\n"), ContestTest(input="4 5\n", output="9"))
ROOMY = ContestLimits(seconds=5.0, total_seconds=60.0, memory_mib=256)
SHORT = ContestLimits(seconds=0.25, total_seconds=20.0, memory_mib=256)
RIGHT = "a, b = map(int, input().split())\nprint(a + b)"


def verdicts(
    *programs: str,
    tests: Sequence[ContestTest] = ADD,
    function: str = "",
    limits: ContestLimits = ROOMY,
) -> list[list[str]]:
    """The outcome of each program on each test."""

    async def work(sandbox: Sandbox) -> list[tuple[Verdict, ...]]:
        return [await judge_program(sandbox, one, tests, function, limits) for one in programs]

    return [[one.outcome for one in verdict] for verdict in in_sandbox(work)]


PASSED = ["passed", "passed"]
PROGRAMS = {
    RIGHT: PASSED,
    "import sys\nprint(sum(map(int, sys.stdin.read().split())))": PASSED,
    "print(sum(map(int, open(0).read().split())))\nimport sys\nsys.exit(0)": PASSED,
    "import os, io\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n"
    "os.write(1, b'%d' % sum(map(int, input().split())))\nos._exit(0)": PASSED,
    f"{RIGHT}\nimport sys\nsys.stdout.close()": PASSED,
    "import threading\ndef main():\n    print(sum(map(int, input().split())))\n"
    "threading.Thread(target=main).start()": PASSED,
    "import atexit\natexit.register(lambda: print(sum(map(int, input().split()))))": PASSED,
    "if __name__ == '__main__':\n    exit(print(sum(map(int, input().split()))))": PASSED,
    f"{RIGHT}\nimport builtins\nbuiltins.print = builtins.input = None": PASSED,
    "import sys\nx = input()\nif x[0] == '1':\n    sys.exit(3)\nprint(9)": ["error", "passed"],
    "print(3)": ["passed", "wrong output"],
    "print(3)\nraise SystemExit(3)": ["error", "error"],  # printed, and failed
}
BAD = {
    "import sys\nsys.exit(0)": "wrong output",
    "raise SystemExit('no')": "error",
    "print(": "error",
    "while True: pass": "too slow",
    "import time\ntime.sleep(60)": "too slow",
    "while True: print('x' * 1000)": "too much output",
    "print('x' * 100_000_000)": "too much output",
    "x = [0] * 10**10": "error",
    "import os\nwhile True: os.fork()": "error",
    "import os\nos.kill(os.getppid(), 9)": "wrong output",
    "import os\nos.write(3, b'x')": "error",
    "import ctypes\nctypes.string_at(0)": "error",
    "open('tests.json').read()": "error",
    "import sys\nf = sys._getframe()\nwhile 'most' not in f.f_locals: f = f.f_back\n"
    "print('x' * (f.f_locals['most'] // 2**20))": "wrong output",
    "print(10**9000)": "wrong output",
}


def test_a_program_is_run_as_a_process_with_its_own_input_and_output() -> None:
    for program, outcome in zip(PROGRAMS, verdicts(*PROGRAMS), strict=True):
        assert outcome == PROGRAMS[program], program


def test_a_bad_program_has_a_recorded_outcome_and_the_next_one_is_judged() -> None:
    for limits in (SHORT, ROOMY):
        bad = {one: what for one, what in BAD.items() if (what == "too slow") is (limits is SHORT)}
        outcomes = verdicts(*(one for program in bad for one in (program, RIGHT)), limits=limits)
        assert dict(zip(bad, outcomes[::2], strict=True)) == {one: [bad[one]] * 2 for one in bad}
        assert outcomes[1::2] == [PASSED] * len(bad)


def test_nothing_that_goes_into_a_jail_depends_on_what_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[object] = []

    async def run_apart(self: Sandbox, *given: object) -> AsyncIterator[CallResult]:
        sent.append(given)
        yield CallResult("", None, "error")

    monkeypatch.setattr(Sandbox, "run_apart", run_apart)
    for output in ("YES", "NO\n" * 10**6, ""):
        verdicts(RIGHT, tests=[ContestTest(input="1 2", output=output)])
    assert len(sent) == 3 and sent[0] == sent[1] == sent[2]


SEES = """
import gc, os, resource, sys, time
a, b = map(int, input().split())
frame = sys._getframe()
while frame:
    if "5 %d" % 4 in repr((frame.f_locals, frame.f_globals)) and a == 1: sys.exit("the next test")
    frame = frame.f_back
print(a + b if os.listdir(".") == [] and len(os.listdir("/tmp")) == 0 else "the test before")
open("left", "wb").write(bytes(9 * 2**20)); os.symlink("left", "link"); os.chmod(".", 0)
"""


def test_a_test_sees_nothing_of_the_others_and_has_a_whole_folder() -> None:
    tests = (ADD[0], ContestTest(input="5 4", output="9"), ContestTest(input="7 8", output="15"))
    assert verdicts(SEES, tests=tests) == [["passed"] * 3]


FUNCTIONS = {
    "class Solution:\n    def join(self, xs: List[int], s: str):\n        print('noise')\n"
    "        return (s, sum(xs))": "passed",
    "def join(xs, s):\n    return [s, float(sum(xs))]": "passed",
    "import numpy\n"
    "def join(xs, s): return numpy.array([s, numpy.sum(xs, dtype=int)], object)": "passed",
    "print('[\"ab\", 3]')\ndef join(xs, s): return 0": "wrong output",
    "def join(xs, s):\n    return {s}": "error",
    "x = 1": "error",
}


def test_functions_and_methods_are_called_with_lines_of_json() -> None:
    rows = (('[1, 2]\n"ab"', '["ab", 3]'), ('[]\n""', '["", 0]'))
    tests = [ContestTest(input=one, output=two, kind="functional") for one, two in rows]
    outcomes = verdicts(*FUNCTIONS, tests=tests, function="join")
    assert outcomes == [[outcome] * 2 for outcome in FUNCTIONS.values()]


def test_all_tests_together_have_a_time_limit() -> None:
    many = [ContestTest(input="1 2", output="3")] * 30
    limits = ContestLimits(seconds=1.0, total_seconds=2.0)
    (outcome,) = verdicts("import time\ntime.sleep(0.3)\nprint(3)", tests=many, limits=limits)
    assert (outcome[0], outcome[-1], len(outcome)) == ("passed", "too slow", 30)


@pytest.mark.parametrize(("expected", "printed", "same"), [
    ("1 2\n3\n", " 1  2 \n3", True), ("1 2\n3", "1 2 3", False), ("1\n\n2", "1\n2", False), ("1\n2", "1", False),
    ("1", "1\n2", False), ("YES", "yes", False), ("0.5", "0.5000000001", True), ("0.5", "0.51", False),
    ("0.5", "1e0", False), ("3", "3.0", True), ("1000000000", "1000000001", False), ("3", "3.0000001", False),
    ("0.5", "nan", False), ("10", "1_0", False), ("1e300", "inf", False), ("a 1.0", "a 1", True),
    ("1.0", "9" * 1000, False), ("1e400", "1e500", False), ("1000000007.0", "1000000008", False),
    ("1000000007.0", "1000000007", True), ("1000000007", "1000000007.01", False), ("2.5", "2.5000001", True),
])  # fmt: skip
def test_outputs_are_compared_by_lines_and_words(expected: str, printed: str, same: bool) -> None:
    assert same_output(expected, printed) is same


@pytest.mark.parametrize(("expected", "given", "same"), [
    ("[1, 2]", "[1,2]", True), ("[1, 2]", "[2, 1]", False), ("0.1", "0.10000000001", True), ("true", "1", True),
    ('"1"', "1", False), ("null", "null", True), ("1", "", False), ("[1", "[1", False), ("1", "[" * 100_000, False),
    ("1", "9" * 100_000, False), ("9" * 9000, "9" * 9000, True), ("9" * 9000, "9" * 8999 + "8", False),
    ("1000000007", "1000000106.0", False), ("[7.0]", "[7]", True), ("1000000007.0", "1000000008", False),
    ("1" + "0" * 500, "Infinity", False), ("NaN", "NaN", True), ("2", "2.0000000001", False),
])  # fmt: skip
def test_values_are_compared_as_json(expected: str, given: str, same: bool) -> None:
    assert same_value(expected, given) is same
