"""What came of an answer's calls, and of grading it."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from coterie.tools.sandbox.compare import equal, same
from coterie.tools.sandbox.crew import SandboxFailed
from coterie.tools.sandbox.inside.job import JUDGED, JobRecord
from coterie.tools.sandbox.inside.plain import NotPlain, Wire, check, decode

Mode = Literal["module", "legacy"]
"""How an answer's source and calls are run: in one module's namespace; or, as SWEET-RL's grader did, with separate
globals and locals, so that an answer with helpers, imports at its top, constants or recursion fails."""
FAILURES = {
    "error": "it raised an exception",
    "not plain": "what it returned is not plain data",
    "timeout": "it took too long",
    "memory": "it used too much memory",
    "output": "its result is too large",
    "ended": "its process ended",
    "garbled": "what its process told is not a result",
}
_TOLD = ("error", "not plain", "output")
"""What an answer's process may say of itself; all else is for the supervisor to say."""
MAX_WHY = 600
"""Characters."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one call gave: a plain value, or why there is none."""

    call: str
    wire: Wire | None = None
    """The value as ``inside.plain`` writes it; ``None`` if the call failed."""
    failed: str = ""
    """One of ``FAILURES``, empty if the call gave a value."""
    why: str = ""
    """More about the failure, in part in words of the answer's own."""

    @property
    def ok(self) -> bool:
        return self.wire is not None

    @property
    def value(self) -> Any:
        """The value; raises ``ValueError`` for a call that failed."""
        if self.wire is None:
            raise ValueError(f"`{self.call}` gave no value: {self.reason}")
        return decode(self.wire)

    @property
    def reason(self) -> str:
        """Why the call failed, for a person; empty if it didn't."""
        if not self.failed:
            return ""
        return FAILURES[self.failed] + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test: a call, what it should give and what it gave."""

    __test__ = False  # not for pytest to collect
    result: CallResult
    expected: Wire
    passed: bool

    @property
    def reason(self) -> str:
        """Why the test failed, for a person; empty if it passed."""
        if self.passed:
            return ""
        return self.result.reason or "the value is another"


@dataclass(frozen=True, slots=True)
class Graded:
    """An answer's tests, in the order of its calls."""

    tests: tuple[TestResult, ...]

    @property
    def fraction(self) -> float:
        """Share of tests that passed."""
        return sum(test.passed for test in self.tests) / len(self.tests)

    @property
    def success(self) -> bool:
        return all(test.passed for test in self.tests)


def judge(
    result: CallResult, expected: Wire, mode: Mode, tolerance: float, strict: bool
) -> TestResult:
    """Whether a call gave what it should.

    ``legacy`` takes Python's ``==`` and nothing else, and an expected ``None`` never passes, as in SWEET-RL's grader.
    """
    if result.wire is None:
        passed = False
    elif mode == "legacy":
        passed = expected[0] != "none" and equal(expected, result.wire)
    else:
        passed = same(expected, result.wire, tolerance, strict=strict)
    return TestResult(result, expected, passed)


def read_record(call: str, record: JobRecord) -> CallResult:
    """What a record says, taking nothing on trust. Raises ``SandboxFailed`` if the supervisor could run nothing."""
    by, text = record
    try:
        told = json.loads(text)
        if set(told) == {"value"}:
            check(told["value"])
            return CallResult(call, told["value"])
        failed, why = told["failed"], told["why"]
        if by == JUDGED and failed not in FAILURES:
            raise SandboxFailed(f"the sandbox could not be closed around an answer: {why}")
        if failed in (FAILURES if by == JUDGED else _TOLD) and isinstance(why, str):
            why = why[:MAX_WHY].encode(errors="replace").decode()  # no lone surrogates
            return CallResult(call, None, failed, why)
    except (ValueError, TypeError, KeyError, RecursionError, NotPlain):
        pass
    return CallResult(call, None, "garbled")
