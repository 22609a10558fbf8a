"""Results of an answer's calls, and of grading it."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from coterie.tools.sandbox.compare import equal, same
from coterie.tools.sandbox.crew import SandboxFailed
from coterie.tools.sandbox.inside.job import BY_SUPERVISOR, JobRecord
from coterie.tools.sandbox.inside.plain import NotPlain, Wire, check, decode

Mode = Literal["module", "legacy"]
"""How an answer's source and calls run: in a module's namespace; or, as in SWEET-RL's grader, with separate globals and
locals, so that an answer with helpers, top-level imports, constants or recursion fails."""
FAILURES = {
    "error": "it raised an exception",
    "not plain": "what it returned is not plain data",
    "timeout": "it took too long",
    "memory": "it used too much memory",
    "output": "its result is too large",
    "ended": "its process ended",
    "garbled": "what its process told is not a result",
}
_REPORTS = ("error", "not plain", "output")
"""Failures that an answer's process may report; the supervisor reports all others."""
MAX_WHY = 600
"""Characters."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one call: a plain value or a failure."""

    call: str
    wire: Wire | None = None
    """Value in the form of ``inside.plain``; ``None`` if the call failed."""
    failed: str = ""
    """One of ``FAILURES``; empty if the call returned a value."""
    why: str = ""
    """Details of the failure, partly written by the answer."""

    @property
    def ok(self) -> bool:
        return self.wire is not None

    @property
    def value(self) -> Any:
        """The value. Raises ``ValueError`` for a failed call."""
        if self.wire is None:
            raise ValueError(f"`{self.call}` returned no value: {self.reason}")
        return decode(self.wire)

    @property
    def reason(self) -> str:
        """Description of the failure; empty if the call succeeded."""
        if not self.failed:
            return ""
        return FAILURES[self.failed] + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test: a call's result and its expected value."""

    __test__ = False  # not for pytest to collect
    result: CallResult
    expected: Wire
    passed: bool

    @property
    def reason(self) -> str:
        """Description of the failure; empty if the test passed."""
        if self.passed:
            return ""
        return self.result.reason or "the value is another"


@dataclass(frozen=True, slots=True)
class Graded:
    """Tests of an answer, in the order of its calls."""

    tests: tuple[TestResult, ...]

    @property
    def fraction(self) -> float:
        """Fraction of tests that passed."""
        return sum(test.passed for test in self.tests) / len(self.tests)

    @property
    def success(self) -> bool:
        return all(test.passed for test in self.tests)


def judge(
    result: CallResult, expected: Wire, mode: Mode, tolerance: float, strict: bool
) -> TestResult:
    """Compare a call's result with the expected value.

    ``legacy`` uses only Python's ``==``, and an expected ``None`` never passes, as in SWEET-RL's grader.
    """
    if result.wire is None:
        passed = False
    elif mode == "legacy":
        passed = expected[0] != "none" and equal(expected, result.wire)
    else:
        passed = same(expected, result.wire, tolerance, strict=strict)
    return TestResult(result, expected, passed)


def read_record(call: str, record: JobRecord) -> CallResult:
    """Parse an untrusted record. Raises ``SandboxFailed`` if the supervisor could not run the answer."""
    by, text = record
    try:
        content = json.loads(text)
        if set(content) == {"value"}:
            check(content["value"])
            return CallResult(call, content["value"])
        failed, why = content["failed"], content["why"]
        if by == BY_SUPERVISOR and failed not in FAILURES:
            raise SandboxFailed(f"the sandbox could not confine an answer: {why}")
        if failed in (FAILURES if by == BY_SUPERVISOR else _REPORTS) and isinstance(why, str):
            why = why[:MAX_WHY].encode(errors="replace").decode()  # no lone surrogates
            return CallResult(call, None, failed, why)
    except (ValueError, TypeError, KeyError, RecursionError, NotPlain):
        pass
    return CallResult(call, None, "garbled")
