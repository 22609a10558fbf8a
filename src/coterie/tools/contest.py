"""Programs of contests, run on their tests in the sandbox and judged outside of it.

Each test has a process, a standard input and files of its own (``contest_child``). What a right program gives never
enters the jail.
"""

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Literal

from coterie.config.settings import Settings, key
from coterie.datasets.code_rows import ContestTest
from coterie.engines.protocol import EngineError
from coterie.tools import contest_child
from coterie.tools.contest_child import TOO_MUCH
from coterie.tools.sandbox.compare import same
from coterie.tools.sandbox.inside.plain import NotPlain, encode
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult
from coterie.tools.sandbox.settings import SandboxSettings

# When what a program gives is what a test of a contest asks for.
#
# Lines are compared without the spaces around them, and empty lines at both ends do not count, as LiveCodeBench does.
# Words of a line are equal if they are spelled alike, or are the same number. A number that is expected with a point is
# met within :data:`TOLERANCE`, as CodeContests does; a whole number is met exactly.

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
        wanted, found = (encode(json.loads(text)) for text in (expected, given))
    except (ValueError, RecursionError, NotPlain):
        return False
    return same(wanted, found, TOLERANCE)


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
    if any(wanted.groups()):
        one, other = float(expected), float(printed)
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return Decimal(expected) == Decimal(printed)


Outcome = Literal[
    "passed", "wrong output", "error", "too slow", "too much memory", "too much output"
]
ROOM = 4096
"""Bytes that a program may print beyond twice of what is expected."""
ESCAPED = 6
"""Bytes of JSON for one that is printed, at most."""
WAITING = 4
"""By the clock a program may take so many times its seconds of a processor, where others are busy and for what it
waits."""
MAX_WHY = 200
"""Characters."""
_FAILED: dict[str, Outcome] = {
    "timeout": "too slow",
    "memory": "too much memory",
    "output": "too much output",
}
_NOT_ITS_FAULT = ("lost", "open")


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

    Raises ``EngineError`` where the sandbox failed, which is no fault of the program, and ``ValueError`` without tests.
    """
    if not tests:
        raise ValueError("a program can't be judged without tests")
    source = f"{_child()}\nPROGRAM = {program!r}\n"
    room = [2 * len(test.output.encode(errors="replace")) + ROOM for test in tests]
    calls = [
        f"run(PROGRAM, {test.input!r}, {function if test.kind == 'functional' else None!r}, {most})"
        for test, most in zip(tests, room, strict=True)
    ]
    longest = max(len(test.input.encode(errors="replace")) for test in tests)
    found = await sandbox.run(
        source, calls, limits=_limits(sandbox.settings, limits, room, longest)
    )
    for one in found:
        if one.failed in _NOT_ITS_FAULT:
            raise EngineError(f"the sandbox failed: {one.reason}")
    return await asyncio.to_thread(lambda: tuple(map(_verdict, tests, found)))


def _limits(
    own: SandboxSettings, limits: ContestLimits, room: Sequence[int], longest: int
) -> SandboxSettings:
    files = (longest + max(room)) // 2**20 + 2
    return own.model_copy(
        update={
            "cpu_seconds": limits.seconds,
            "wall_seconds": WAITING * limits.seconds,
            "total_seconds": limits.total_seconds,
            "memory_mib": limits.memory_mib,
            "file_mib": max(own.file_mib, files),
            "output_kib": ESCAPED * (max(room) + ROOM) // 1024 + 1,
        }
    )


def _verdict(test: ContestTest, found: CallResult) -> Verdict:
    if not found.ok:
        return Verdict(_FAILED.get(found.failed, "error"), found.reason[:MAX_WHY])
    match found.value:
        case [str(ended), str(printed), str(said)]:
            pass
        case _:
            return Verdict("error", "what its process told is not a result")
    if ended == TOO_MUCH:
        return Verdict("too much output")
    if ended:
        lines = said.strip().splitlines() or [""]
        return Verdict("error", f"it ended {ended}: {lines[-1]}"[:MAX_WHY])
    alike = same_value if test.kind == "functional" else same_output
    return Verdict("passed" if alike(test.output, printed) else "wrong output")


@cache
def _child() -> str:
    return Path(contest_child.__file__).read_text(encoding="utf-8")
