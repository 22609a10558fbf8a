"""Programs of contests, run on their tests in the sandbox and judged outside of it.

Each test has a process, a standard input and files of its own (``sandbox.inside.program``). Nothing that depends on
what a right program gives enters the jail.
"""

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from coterie.config.settings import Settings, key
from coterie.datasets.code_rows import ContestTest
from coterie.tools.sandbox.compare import same
from coterie.tools.sandbox.inside.plain import NotPlain, encode
from coterie.tools.sandbox.inside.program import RUNNER
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult
from coterie.tools.sandbox.settings import SandboxSettings

# When what a program gives is what a test of a contest asks for.
#
# Lines are compared without the spaces around them, and empty lines at both ends do not count, as LiveCodeBench does.
# Words of a line are equal if they are spelled alike, or are the same number. A number that is expected with a point is
# met within :data:`TOLERANCE`, as CodeContests does; a whole number is met exactly, also by an integer where it is
# expected with a point.

TOLERANCE = 1e-6
"""Absolute or relative; that of most problems (CodeContests' own is 1e-5)."""
LONGEST = 400
"""Characters of a number; longer ones must be spelled alike."""
_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d{1,4})?", re.ASCII)


def same_output(expected: str, printed: str) -> bool:
    wanted, found = (_lines(text) for text in (expected, printed))
    return len(wanted) == len(found) and all(map(_same_line, wanted, found))


def same_value(expected: str, given: str) -> bool:
    """Whether a function gave what it should; both are JSON. ``1``, ``1.0`` and ``true`` are the same, as in Python."""
    try:
        wanted, found = (encode(json.loads(text, parse_int=_whole)) for text in (expected, given))
    except (ValueError, RecursionError, NotPlain):
        return False
    return same(wanted, found, TOLERANCE)


def _whole(digits: str) -> int | Decimal:
    """An integer of any length; Python's own reader refuses long ones."""
    return int(digits) if len(digits) <= LONGEST else Decimal(digits)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    wanted, found = expected.split(), printed.split()
    return len(wanted) == len(found) and all(map(_same_word, wanted, found))


def _same_word(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    if max(len(expected), len(printed)) > LONGEST:
        return False
    wanted, found = _NUMBER.fullmatch(expected), _NUMBER.fullmatch(printed)
    if wanted is None or found is None:
        return False
    one, other = Decimal(expected), Decimal(printed)
    whole = not any(wanted.groups()) or (not any(found.groups()) and one == one.to_integral_value())
    if whole or one == other:
        return one == other
    sides = float(one), float(other)
    return all(map(math.isfinite, sides)) and math.isclose(
        *sides, rel_tol=TOLERANCE, abs_tol=TOLERANCE
    )


Outcome = Literal[
    "passed", "wrong output", "error", "too slow", "too much memory", "too much output"
]
MOST = 8 * 2**20
"""Bytes that a program may print on a test, whatever the test expects: the program can find out how many."""
ESCAPED = 6
"""Bytes of JSON for one that is printed, at most."""
WAITING = 4
"""By the clock a program may take so many times its seconds of a processor, where others are busy and for what it
waits."""
ERRORS = 2000
"""Bytes that are kept of what a program writes to its standard error."""
MAX_WHY = 200
"""Characters."""
_FAILED: dict[str, Outcome] = {
    "timeout": "too slow",
    "memory": "too much memory",
    "output": "too much output",
}


class ContestLimits(Settings):
    """What a program may use."""

    seconds: float = key(6.0, "Seconds of a processor for one test.", source="AFM: 6", gt=0)
    total_seconds: float = key(
        300.0, "Seconds for all tests of a program.", source="AFM: 300 at most", gt=0
    )
    memory_mib: int = key(1024, "Memory of a program.", source="AFM: 5000", ge=64)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one test."""

    outcome: Outcome
    why: str = ""
    """More about it, in part in words of the program's own; nothing of what was expected."""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


async def judged(
    sandbox: Sandbox,
    program: str,
    tests: Sequence[ContestTest],
    function: str,
    limits: ContestLimits,
) -> tuple[Verdict, ...]:
    """A verdict for each test, in their order; ``function`` is what functional tests call.

    Each test has a process tree and a folder of its own. Raises ``SandboxFailed`` (an ``EngineError``), which is no
    fault of the program, and ``ValueError`` without tests.
    """
    if not tests:
        raise ValueError("a program can't be judged without tests")
    source = f"from {RUNNER} import run\nPROGRAM = {program!r}\n"
    calls = [
        f"run(PROGRAM, {test.input!r}, {function if test.kind == 'functional' else None!r}, {MOST}, {ERRORS})"
        for test in tests
    ]
    longest = max(len(test.input.encode(errors="replace")) for test in tests)
    found = sandbox.run_apart(source, calls, _limits(sandbox.settings, limits, longest))
    rest = iter(tests)
    return tuple([await asyncio.to_thread(_verdict, next(rest), one) async for one in found])


def _limits(own: SandboxSettings, limits: ContestLimits, longest: int) -> SandboxSettings:
    return own.model_copy(
        update={
            "cpu_seconds": limits.seconds,
            "wall_seconds": WAITING * limits.seconds,
            "total_seconds": limits.total_seconds,
            "memory_mib": limits.memory_mib,
            "file_mib": own.file_mib + (longest + MOST) // 2**20 + 1,
            "output_kib": ESCAPED * MOST // 1024 + 4,
        }
    )


def _verdict(test: ContestTest, found: CallResult) -> Verdict:
    if not found.ok:
        return Verdict(_FAILED.get(found.failed, "error"), found.reason[:MAX_WHY])
    match found.wire:
        case ["list", [["int", code], ["bool", too_much], ["str", printed], ["str", said]]]:
            pass
        case _:
            return Verdict("error", "what its process told is not a result")
    if too_much:
        return Verdict("too much output")
    if code != "0":
        lines = said.strip().splitlines() or [""]
        return Verdict("error", f"it ended with status {int(code, 16)}: {lines[-1]}"[:MAX_WHY])
    alike = same_value if test.kind == "functional" else same_output
    return Verdict("passed" if alike(test.output, printed) else "wrong output")
