"""Judge of contest programs: their tests run in the sandbox, and outputs are compared outside of it.

Each test has its own process, standard input and files (``sandbox.inside.program``). Expected outputs never enter the
jail of a program. Checkers of outputs and ``check`` tests run in jails where no program of an agent runs.
"""

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Literal

from coterie.datasets.code_rows import ContestLimits, ContestTest
from coterie.engines.protocol import LEFT_OUT, EngineError
from coterie.tools.sandbox.inside.check import REPLAYER
from coterie.tools.sandbox.inside.plain import NotPlain, encode
from coterie.tools.sandbox.inside.program import RUNNER
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult, same
from coterie.tools.sandbox.worker import SandboxSettings

TOLERANCE = 1e-6
"""Absolute or relative tolerance of most problems (CodeContests uses 1e-5)."""
LONGEST = 400
"""Characters of a number; longer numbers are compared as text."""
_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d{1,4})?", re.ASCII)


def same_output(expected: str, printed: str) -> bool:
    """Compare outputs line by line and word by word.

    Lines are stripped, and empty lines at both ends are ignored, as in LiveCodeBench. Words are equal if they have the
    same spelling or the same numeric value. An expected number with a decimal point matches within :data:`TOLERANCE`,
    as in CodeContests; integers match exactly, even if the expected number has a decimal point.
    """
    ours, theirs = (
        [line.split() for line in text.strip().split("\n")] for text in (expected, printed)
    )
    return list(map(len, ours)) == list(map(len, theirs)) and all(
        map(_same_word, chain(*ours), chain(*theirs))
    )


def same_value(expected: str, value: str) -> bool:
    """Return True if two values in JSON are equal. ``1``, ``1.0`` and ``true`` are equal, as in Python."""
    try:
        ours, theirs = (encode(json.loads(text, parse_int=_whole)) for text in (expected, value))
    except (ValueError, RecursionError, NotPlain):
        return False
    return same(ours, theirs, TOLERANCE)


def _whole(digits: str) -> int | Decimal:
    """Parse an integer of any length; Python's ``int`` refuses long ones."""
    return int(digits) if len(digits) <= LONGEST else Decimal(digits)


def _same_word(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    if max(len(expected), len(printed)) > LONGEST:
        return False
    ours, theirs = _NUMBER.fullmatch(expected), _NUMBER.fullmatch(printed)
    if ours is None or theirs is None:
        return False
    expected_value, printed_value = Decimal(expected), Decimal(printed)
    is_exact = not any(ours.groups()) or (
        not any(theirs.groups()) and expected_value == expected_value.to_integral_value()
    )
    if is_exact or expected_value == printed_value:
        return expected_value == printed_value
    sides = float(expected_value), float(printed_value)
    return all(map(math.isfinite, sides)) and math.isclose(
        *sides, rel_tol=TOLERANCE, abs_tol=TOLERANCE
    )


Outcome = Literal[
    "passed", "wrong output", "error", "too slow", "too much memory", "too much output"
]
MOST = 8 * 2**20
"""Bytes that a program may print on a test. Independent of the expected output, which it would reveal."""
ESCAPED = 6
"""Upper bound of JSON bytes per printed byte."""
WAITING = 4
"""Factor on the limit of CPU seconds that bounds the wall time."""
ERRORS = 2000
"""Bytes of a program's stderr to keep."""
MAX_WHY = 200
_FAILED: dict[str, Outcome] = {
    "timeout": "too slow",
    "memory": "too much memory",
    "output": "too much output",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one test."""

    outcome: Outcome
    why: str = ""
    """Details, partly written by the program; never the expected output."""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


VALUE_KIB = 1024
"""Size of a value that a function returns to a ``check`` test, as JSON."""
MOST_ROUNDS = 200
"""Upper bound of the times that a ``check`` test is run again because its calls depend on earlier results."""
_CHECKER = """\
import sys
files = {files!r}
for name, text in files.items():
    with open(name, "w", encoding="utf-8", newline="") as file:
        file.write(text)
sys.argv = ["checker.py", *files]
exec(compile({checker!r}, "checker.py", "exec"))
"""


async def judge_program(
    sandbox: Sandbox,
    program: str,
    tests: Sequence[ContestTest],
    function: str,
    limits: ContestLimits,
    *,
    prelude: str = "",
    checker: str = "",
    answer: str = "",
) -> tuple[Verdict, ...]:
    """Return a verdict for each test, in order.

    Functional tests call ``function``. ``prelude`` is a source before the program of ``check`` tests, and before the
    tests. ``checker`` is a program that judges outputs (:class:`ContestRow`). ``answer`` is a right program, if it is
    known, which ``check`` tests must accept.

    Raises ``SandboxFailed``, and ``EngineError`` with ``LEFT_OUT`` if the row's test or checker can't be used.
    """
    longest = max(len(test.input.encode(errors="replace")) for test in tests)
    program_settings = sandbox.settings.model_copy(
        update={
            "cpu_seconds": limits.seconds,
            "wall_seconds": WAITING * limits.seconds,
            "total_seconds": limits.total_seconds,
            "memory_mib": limits.memory_mib,
            "file_mib": sandbox.settings.file_mib + (longest + MOST) // 2**20 + 1,
            "output_kib": ESCAPED * MOST // 1024 + 4,
        }
    )
    if tests[0].kind == "check":
        checked = await _check_all(sandbox, program, tests, function, prelude, program_settings)
        if answer and not all(verdict.passed for verdict in checked):
            task = (answer, prelude, function, *tests)
            if task not in _accepted:
                right = await _check_all(
                    sandbox, answer, tests, function, prelude, program_settings, True
                )
                _accepted[task] = all(verdict.passed for verdict in right)
            if not _accepted[task]:
                raise EngineError(f"{LEFT_OUT}its own right answer fails its test")
        return checked
    source = f"from {RUNNER} import run\nPROGRAM = {program!r}\n"
    calls = [
        f"run(PROGRAM, {test.input!r}, {function if test.kind == 'functional' else None!r}, {MOST}, {ERRORS})"
        for test in tests
    ]
    verdicts: list[Verdict] = []
    async for result in sandbox.run_apart(source, calls, program_settings):
        test, printed = tests[len(verdicts)], _output(result)
        if isinstance(printed, Verdict):
            verdicts.append(printed)
        elif checker:
            passed = await _accepts(sandbox, checker, test, printed, program_settings)
            if not passed and not await _accepts(
                sandbox, checker, test, test.output, program_settings
            ):
                raise EngineError(f"{LEFT_OUT}its checker refuses the expected output")
            verdicts.append(Verdict("passed" if passed else "wrong output"))
        else:
            is_same = same_value if test.kind == "functional" else same_output
            passed = await asyncio.to_thread(is_same, test.output, printed)
            verdicts.append(Verdict("passed" if passed else "wrong output"))
    return tuple(verdicts)


def _failure(result: CallResult) -> Verdict:
    return Verdict(_FAILED.get(result.failed, "error"), result.reason[:MAX_WHY])


def _output(result: CallResult) -> str | Verdict:
    """Return the output of a program, or a verdict if it failed."""
    if not result.ok:
        return _failure(result)
    match result.wire:
        case ["list", [["int", code], ["bool", too_much], ["str", printed], ["str", stderr]]]:
            pass
        case _:
            return Verdict("error", "what its process told is not a result")
    if too_much:
        return Verdict("too much output")
    if code != "0":
        lines = stderr.strip().splitlines() or [""]
        return Verdict("error", f"it ended with status {int(code, 16)}: {lines[-1]}"[:MAX_WHY])
    return str(printed)


async def _accepts(
    sandbox: Sandbox, checker: str, test: ContestTest, printed: str, limits: SandboxSettings
) -> bool:
    """Run a checker, which prints 1 for a right output, as ``checker.py INPUT EXPECTED OUTPUT``."""
    names = ("input.txt", "correct_output.txt", "solution_output.txt")
    files = dict(zip(names, (test.input, test.output, printed), strict=True))
    program = _CHECKER.format(files=files, checker=checker)
    call = f"run({program!r}, '', None, {MOST}, {ERRORS})"
    (result,) = await sandbox.run_reference(f"from {RUNNER} import run", [call], limits=limits)
    score = _output(result)
    return isinstance(score, str) and score.split()[-1:] in (["1"], ["1.0"])


_accepted: dict[tuple[object, ...], bool] = {}
"""For each right answer whose tests another program failed: True if it passes them."""


async def _check_all(
    sandbox: Sandbox,
    program: str,
    tests: Sequence[ContestTest],
    function: str,
    prelude: str,
    limits: SandboxSettings,
    reference: bool = False,
) -> tuple[Verdict, ...]:
    """Run ``check`` tests, all together at most ``limits.total_seconds``."""
    verdicts: list[Verdict] = []
    seconds_left = limits.total_seconds
    for test in tests:
        verdict, seconds_left = await _check(
            sandbox, program, test, function, prelude, limits, seconds_left, reference
        )
        verdicts.append(verdict)
    return tuple(verdicts)


async def _check(
    sandbox: Sandbox,
    program: str,
    test: ContestTest,
    function: str,
    prelude: str,
    limits: SandboxSettings,
    seconds_left: float,
    reference: bool,
) -> tuple[Verdict, float]:
    """Run a ``check`` test within ``seconds_left``; also return the seconds that are left.

    Its calls run in the program's jail, and the test in another one, with their results. A call that fails is a failed
    test, so tests can't expect exceptions.
    """
    known_results: dict[str, object] = {}
    values = limits.model_copy(update={"output_kib": VALUE_KIB})
    for _ in range(MOST_ROUNDS):
        if seconds_left <= 0:
            return Verdict("too slow", "no time was left for this test"), seconds_left
        (result,) = await sandbox.run_reference(
            f"{prelude}\nfrom {REPLAYER} import replay",
            [f"replay({test.input!r}, {function!r}, {json.dumps(known_results)!r}, globals())"],
            limits=limits,
        )
        seconds_left -= result.seconds
        if not result.ok and known_results:
            return Verdict("wrong output", "the test can't run with its values"), seconds_left
        if not result.ok:
            raise EngineError(
                f"{LEFT_OUT}its test can't run apart from the program: {result.reason}"
            )
        match result.wire:
            case ["list", [["list", call_wires], ["str", why]]]:
                calls = [str(content) for _, content in call_wires]
            case _:  # a test that evaluates its values may report anything
                return Verdict("wrong output", "the test can't run with its values"), seconds_left
        # Without known results, nothing depends on the program. After that, no value may leave the task out.
        if not calls and not known_results:
            raise EngineError(
                f"{LEFT_OUT}its test does not call the function ({why or 'and passes'})"
            )
        if not calls:
            return Verdict("wrong output", why) if why else Verdict("passed"), seconds_left
        source = f"{prelude}\nexec({program!r})\nfrom {REPLAYER} import apply"
        expressions = [f"apply({function}, {call!r})" for call in calls]
        waiting = iter(calls)
        timed = values.model_copy(update={"total_seconds": seconds_left})
        async for returned in sandbox.run_apart(source, expressions, timed, reference=reference):
            seconds_left -= returned.seconds
            if not returned.ok:
                return _failure(returned), seconds_left
            known_results[next(waiting)] = returned.wire
    return Verdict("too slow", f"its calls take more than {MOST_ROUNDS} rounds"), seconds_left


def verdict_metrics(verdicts: Sequence[Verdict]) -> dict[str, float | str]:
    """Return the share of passed tests, and the outcome of the first failed test with its reason."""
    passed = sum(verdict.passed for verdict in verdicts)
    failure = next(
        ((n, verdict) for n, verdict in enumerate(verdicts, 1) if not verdict.passed), None
    )
    metrics: dict[str, float | str] = {
        "fraction": passed / len(verdicts),
        "slow": float(any(verdict.outcome == "too slow" for verdict in verdicts)),
        "crashed": float(any(verdict.outcome == "error" for verdict in verdicts)),
        "outcome": "passed" if failure is None else failure[1].outcome,
    }
    if failure is not None:
        metrics["why"] = (
            f"test {failure[0]} of {len(verdicts)}: {failure[1].why or failure[1].outcome}"
        )
    return metrics
