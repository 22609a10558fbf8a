"""Programs of contests on their tests: the real sandbox, what programs do to it, and which outputs are the same."""

from collections.abc import AsyncIterator, Sequence

import pytest

from coterie.datasets.code_rows import ContestTest
from coterie.engines.protocol import LEFT_OUT, EngineError
from coterie.tools.contest import ContestLimits, Verdict, judge_program, same_output, same_value
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult
from tests.helpers.run_python import run_in_sandbox

ADD = (ContestTest(input="1 2\n", output="3\n"), ContestTest(input="4 5\n", output="9"))
ROOMY = ContestLimits(seconds=5.0, total_seconds=60.0, memory_mib=256)
SHORT = ContestLimits(seconds=0.25, total_seconds=20.0, memory_mib=256)
RIGHT = "a, b = map(int, input().split())\nprint(a + b)"


def verdicts(
    *programs: str,
    tests: Sequence[ContestTest] = ADD,
    function: str = "",
    limits: ContestLimits = ROOMY,
    prelude: str = "",
    checker: str = "",
    answer: str = "",
) -> list[list[str]]:
    """The outcome of each program on each test."""

    async def work(sandbox: Sandbox) -> list[tuple[Verdict, ...]]:
        more = {"prelude": prelude, "checker": checker, "answer": answer}
        return [
            await judge_program(sandbox, one, tests, function, limits, **more) for one in programs
        ]

    return [[one.outcome for one in verdict] for verdict in run_in_sandbox(work)]


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
    "import sys\nf = sys._getframe()\nwhile 'max_bytes' not in f.f_locals: f = f.f_back\n"
    "print('x' * (f.f_locals['max_bytes'] // 2**20))": "wrong output",
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


# -- checkers of outputs ---------------------------------------------------------------------------

CHECKER = """
import sys

def main():
    given, expected, printed = (open(name).read() for name in sys.argv[1:])
    one, other = map(int, printed.split())
    assert len(expected.split()) == 2
    print(int(one + other == int(given) and min(one, other) > 0))

if __name__ == "__main__":
    main()
"""
SPLIT = (ContestTest(input="4\n", output="1 3\n"), ContestTest(input="9\n", output="4 5\n"))
SPLITS = {
    "n = int(input())\nprint(n - 1, 1)": PASSED,
    "print(2, 2)": ["passed", "wrong output"],
    "print(0, int(input()))": ["wrong output"] * 2,
    "print('a b')": ["wrong output"] * 2,  # at which the checker fails
    "print()": ["wrong output"] * 2,
    "print('1' * 4301, 1)": ["wrong output"] * 2,
    "raise SystemExit(1)": ["error"] * 2,
    "while True: print('x' * 1000)": ["too much output"] * 2,
    # What would decide if a program could reach its checker.
    "import os, sys\nfor name in ('checker.py', 'solution_output.txt', 'sys.py'):\n"
    "    open(name, 'w').write('print(1)')\nprint(1)": ["wrong output"] * 2,
}


def test_a_checker_accepts_any_right_output_and_runs_apart_from_programs() -> None:
    outcomes = verdicts(*SPLITS, tests=SPLIT, checker=CHECKER)
    assert dict(zip(SPLITS, outcomes, strict=True)) == SPLITS


@pytest.mark.parametrize("checker", [
    "print(1)", "print('ok')\nprint(1.0)", "from __future__ import annotations\nprint(1)",
    "import sys\nsys.stdout.write(open('solution_output.txt').read() and '1')",
])  # fmt: skip
def test_a_checker_accepts_by_printing_1_last(checker: str) -> None:
    assert verdicts("print('?')", tests=ADD, checker=checker) == [PASSED]


@pytest.mark.parametrize("checker", [
    "print(0)", "print(0.5)", "pass", "print(1)\nraise SystemExit(1)", "import nothing\nprint(1)",
    "import time\ntime.sleep(60)\nprint(1)",
])  # fmt: skip
def test_a_checker_that_refuses_the_expected_output_gives_no_score(checker: str) -> None:
    with pytest.raises(EngineError, match=f"{LEFT_OUT}its checker refuses the expected output"):
        verdicts(RIGHT, tests=ADD, checker=checker, limits=SHORT)


# -- tests of a function in Python -----------------------------------------------------------------

PRELUDE = "import math\n\ndef half(x):\n    return x / 2\n\ndef twice(x):\n    pass\n"
CHECK = """
SECRET = 31337

def check(candidate):
    import random
    assert candidate(2) == 4, "a number"
    assert candidate((1, 2)) == (1, 2, 1, 2) and not candidate("")
    assert abs(candidate(math.pi) - 2 * math.pi) < 1e-9
    for _ in range(5):
        x = random.randint(0, 10**6)
        assert half(candidate(x)) == x
    first = candidate(x=3)
    assert twice(first) == 12
    assert SECRET == 31337
"""
CHECKED = {
    "def twice(x):\n    return x * 2": "passed",
    "from __future__ import annotations\ndef twice(x: int):\n    return x + x": "passed",
    "import math, sys\nsys.stdout = None\ndef twice(x):\n    return x * 2": "passed",
    "def twice(x):\n    return 4": "wrong output",
    "def twice(x):\n    return [1, 2, 1, 2] if isinstance(x, tuple) else x * 2": "wrong output",
    "x = 1": "wrong output",  # the function of the prelude is left
    "def twice(x):\n    return x * 2 if x != 2 else 1 / 0": "error",
    "def twice(x): return x *": "error",
    "def twice(x):\n    while x == 2: pass\n    return x * 2": "too slow",
    "import os\nos._exit(0)": "error",
    "raise SystemExit(0)": "error",
    "def twice(x):\n    return x * 2 if x != 3 else 'x' * 2**21": "too much output",
    "class Same:\n    __eq__ = __lt__ = lambda *a: True\ndef twice(x):\n    return Same()": "error",
    "def twice(x):\n    return range(10**12)": "wrong output",
    "import builtins\ndef twice(x):\n    builtins.AssertionError = ValueError\n    return 0": "wrong output",
    "import gc, sys\ndef twice(x):\n    texts = [one for one in gc.get_objects() if isinstance(one, dict)]\n"
    "    return 'seen' if any('SECRET' in one for one in texts) or 'check' in dir(sys.modules['answer']) else x * 2":
        "passed",
}  # fmt: skip


def test_a_check_runs_apart_from_the_function_with_the_values_that_it_returned() -> None:
    test = ContestTest(input=CHECK, output="", kind="check")
    limits = ROOMY.model_copy(update={"seconds": 1.0})
    outcomes = verdicts(*CHECKED, tests=[test], function="twice", prelude=PRELUDE, limits=limits)
    assert {one: outcome for one, (outcome,) in zip(CHECKED, outcomes, strict=True)} == CHECKED


def test_a_method_is_checked_with_arguments_by_name() -> None:
    test = "def check(candidate):\n    assert candidate(xs = [1, 2], k = 2) == [2, 4]"
    program = (
        "class Solution:\n    def scale(self, xs: List[int], k: int): return [k * x for x in xs]"
    )
    tests = [ContestTest(input=test, output="", kind="check")]
    words = {"tests": tests, "function": "Solution().scale", "prelude": "from typing import *\n"}
    assert verdicts(program, program.replace("k *", ""), **words) == [["passed"], ["wrong output"]]


@pytest.mark.parametrize(("test", "why"), [
    ("class Node: pass\ndef check(candidate):\n    assert candidate(Node()) is None", "Node is not plain data"),
    ("def check(candidate):\n    while True: pass", "it took too long"),
    ("x = 1", "does not call the function .KeyError"), ("def check(candidate):\n    pass", "does not call .* passes"),
    ("def check(candidate):\n    y = 1 / 0\n    assert candidate(2) == y", "does not call the function .Zero"),
    ("def check(candidate):\n    assert candidate(2) == missing", "an undefined name: missing"),
    ("def check(candidate):\n    if candidate(2) == 3:\n        missing()", "an undefined name: missing"),
])  # fmt: skip
def test_a_check_that_can_not_run_apart_gives_no_score(test: str, why: str) -> None:
    tests = [ContestTest(input=test, output="", kind="check")]
    with pytest.raises(EngineError, match=f"{LEFT_OUT}.*{why}"):
        verdicts("def f(x):\n    return 1", tests=tests, function="f", limits=SHORT)


TYPES = """
def f(kind):
    import enum, numpy
    Color = enum.Enum("Color", {"red": "ab"})
    return {
        "map": map(str, "ab"), "generator": (x for x in "ab"), "iterator": iter(("a", "b")),
        "keys": {"a": 0, "b": 1}.keys(), "values": dict(enumerate("ab")).values(), "items": {"a": 1}.items(),
        "bool": numpy.bool_(True), "false": numpy.bool_(False), "enum": Color.red, "nested": ([numpy.bool_(True)],),
        "array": numpy.array([1, 2]), "numbers": [numpy.int64(3), numpy.float64(1.5), numpy.array(4)],
    }[kind]
"""
TYPED = """
def check(candidate):
    ITEMS = {"map": ["a", "b"], "generator": ["a", "b"], "iterator": ["a", "b"], "keys": ["a", "b"],
             "values": ["a", "b"], "items": [("a", 1)], "array": [1, 2]}
    for kind, items in ITEMS.items():
        value = candidate(kind)
        assert value != items and value != tuple(items) and not isinstance(value, (list, tuple)), kind
        assert list(value) == items and candidate(kind), kind
    assert candidate("bool") != True and candidate("bool") is not True and candidate("bool")
    assert not candidate("false") and candidate("false") is not False
    assert candidate("enum") != "ab" and candidate("nested") != ([True],)
    assert len(candidate("keys")) == 2 and {*candidate("keys")} == {"a", "b"}
    assert candidate("numbers") == [3, 1.5, 4]
    it = candidate("map")
    assert next(it) == "a" and list(it) == ["b"] and not hasattr(it, "__len__")
"""


def test_a_value_that_is_not_plain_equals_none_that_is() -> None:
    test = ContestTest(input=TYPED, output="", kind="check")
    assert verdicts(TYPES, tests=[test], function="f", limits=ROOMY) == [["passed"]]


EVALUATES = "def check(candidate):\n    assert eval(candidate(3)) == 9"


INTERPRETER = "coterie.tools.sandbox.inside.interpreter"
EVALUATED = {
    "3 * 3": "passed",
    "missing": "wrong output",
    "__import__('os')._exit(0)": "wrong output",
    # What the test's process reports is then no list of calls.
    f"setattr(__import__('sys').modules['{INTERPRETER}'], 'encode', lambda *more: ['int', '0'])": "wrong output",
}  # fmt: skip


def test_no_returned_value_leaves_a_task_out() -> None:
    tests = [ContestTest(input=EVALUATES, output="", kind="check")]
    programs = [f"def f(x):\n    return {value!r}" for value in EVALUATED]
    outcomes = verdicts(*programs, tests=tests, function="f")
    assert [outcome for (outcome,) in outcomes] == list(EVALUATED.values())


SORT = "def f(xs):\n    xs.sort()"
SORTED = "def check(candidate):\n    xs = [2, 1]\n    candidate(xs)\n    assert xs == [1, 2]"
RAISE = "def f(xs):\n    raise ValueError"
RAISED = """
def check(candidate):
    try:
        candidate([])
    except ValueError:
        return
    assert False
"""


@pytest.mark.parametrize(("answer", "test"), [(SORT, SORTED), (RAISE, RAISED)])
def test_a_check_that_refuses_the_right_answer_of_its_row_gives_no_score(
    answer: str, test: str
) -> None:
    tests = [ContestTest(input=test, output="", kind="check")]
    for program in (answer, "def f(xs):\n    return 7"):
        with pytest.raises(EngineError, match=f"{LEFT_OUT}its own right answer fails"):
            verdicts(program, tests=tests, function="f", answer=answer)


def test_a_check_that_accepts_the_right_answer_of_its_row_gives_a_score() -> None:
    tests = [ContestTest(input=CHECK, output="", kind="check")]
    right, wrong = (f"def twice(x):\n    return {n} * x" for n in (2, 3))
    words = {"function": "twice", "prelude": PRELUDE, "answer": right}
    assert verdicts(wrong, right, wrong, tests=tests, **words) == [  # type: ignore[arg-type]
        ["wrong output"], ["passed"], ["wrong output"],
    ]  # fmt: skip


@pytest.mark.parametrize("test", [
    "import os\ndef check(candidate):\n    assert candidate(os.urandom(9))",
    "def check(candidate):\n    n = 0\n    while candidate(n): n += 1",
])  # fmt: skip
def test_a_function_that_keeps_its_check_calling_is_too_slow(
    test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.tools.contest.MOST_ROUNDS", 5)
    tests = [ContestTest(input=test, output="", kind="check")]
    assert verdicts("def f(x):\n    return True", tests=tests, function="f") == [["too slow"]]


def test_all_calls_of_all_checks_together_have_a_time_limit() -> None:
    """Four rounds of 0.6 s in the first test, of which 2 s are allowed."""
    test = "def check(candidate):\n    n = 0\n    while n < 4: n = candidate(n)"
    tests = [ContestTest(input=f"{test}  # {n}", output="", kind="check") for n in range(9)]
    program = "import time\ndef f(n):\n    time.sleep(0.6)\n    return n + 1"
    limits = ContestLimits(seconds=1.0, total_seconds=2.0)
    assert verdicts(program, tests=tests, function="f", limits=limits) == [["too slow"] * 9]
