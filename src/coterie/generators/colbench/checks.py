"""What can be wrong with a row of ColBench's Backend Programming, found before an agent meets it.

Upstream's own test set has rows of most of these kinds: references that are random or give NaN, tests
that a constant passes, tests that hold their own verdict, and signatures that are cut off.
"""

import ast
import asyncio
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.datasets.code_rows import CodeRow, signature
from coterie.environments.colbench import compared
from coterie.progress import Progress, Silent
from coterie.tools.sandbox.compare import has_nan, same
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult
from coterie.tools.sandbox.shown import shown

TESTS = 10
"""So many has a row of upstream."""
RUNS = 2
"""How often a reference is run, each time in a process of its own."""
SHOWN = 60
"""Characters that are shown of a value."""

FindingKind = Literal[
    "empty", "fails", "random", "not plain", "constant", "none", "duplicate", "verdict", "signature",
    "count",
]  # fmt: skip
MEANING: dict[FindingKind, str] = {
    "empty": "there is no reference, or no test",
    "fails": "the reference does not run, or fails on a test",
    "random": "the reference gives other values when it is run again",
    "not plain": "the reference gives something else than plain data, or NaN",
    "constant": "all tests expect the same, so a constant passes",
    "none": "a test expects None, which legacy grading never passes",
    "duplicate": "a test is there twice",
    "verdict": "a test is a comparison, so it holds its own verdict",
    "signature": "the description has no signature, or one that is cut off",
    "count": f"there are not {TESTS} tests",
}
UNUSABLE: frozenset[FindingKind] = frozenset({"empty", "fails", "random", "not plain"})
"""Kinds that leave nothing to grade by; the others are only reported."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a row."""

    kind: FindingKind
    why: str
    """Such as the test and what came of it."""

    @property
    def unusable(self) -> bool:
        """Whether no answer to the row can be graded fairly."""
        return self.kind in UNUSABLE


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row and what is wrong with it."""

    number: int
    """Of the row in its file, from 1."""
    row: CodeRow
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether the row can be a task."""
        return not any(finding.unusable for finding in self.findings)


async def check_row(row: CodeRow, sandbox: Sandbox) -> list[Finding]:
    """All that is wrong with a row: first what running its reference tells, then what its text does."""
    if not row.usable:
        return static_findings(row)
    calls = [compared(call) for call in row.tests]  # as the environment asks them
    first, *again = [await sandbox.run_reference(row.answer, calls) for _ in range(RUNS)]
    return [*_run_findings(first, again), *static_findings(row)]


async def check_rows(
    rows: Sequence[tuple[int, CodeRow]], sandbox: Sandbox, progress: Progress | None = None
) -> list[CheckedRow]:
    """Check numbered rows, as many at a time as the sandbox has workers; the result is in their order."""
    shown = progress or Silent()
    shown.start(len(rows), "check")
    places = asyncio.Semaphore(2 * sandbox.settings.count)

    async def check(number: int, row: CodeRow) -> CheckedRow:
        async with places:
            findings = await check_row(row, sandbox)
        shown.advance(1)
        return CheckedRow(number, row, tuple(findings))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(check(number, row)) for number, row in rows]
    return [task.result() for task in tasks]


def static_findings(row: CodeRow) -> list[Finding]:
    """What is wrong with a row's text; nothing of it is run."""
    findings = []
    if not row.usable:
        lacking = "tests" if row.answer.strip() else "reference"
        findings.append(Finding("empty", f"no {lacking}"))
    told = signature(row.question)
    if told is None or not told.whole:
        findings.append(Finding("signature", f"`{told.text}`" if told else "there is none"))
    if len(row.tests) != TESTS:
        findings.append(Finding("count", f"{len(row.tests)} tests"))
    counts = Counter(" ".join(call.split()) for call in row.tests)
    findings += [Finding("duplicate", f"`{call}`") for call, n in counts.items() if n > 1]
    findings += [Finding("verdict", f"`{call}`") for call in row.tests if is_verdict(call)]
    return findings


def is_verdict(call: str) -> bool:
    """Whether a test compares by itself, as ``f(2) == 4`` does; ``f(lambda x: x > 2)`` does not."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return _compares(ast.parse(call.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _compares(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return any(map(_compares, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return True
    return isinstance(node, ast.Compare)


def _run_findings(
    first: Sequence[CallResult], again: Sequence[Sequence[CallResult]]
) -> list[Finding]:
    """What the reference's runs tell."""
    failed = [result for run in (first, *again) for result in run if not result.ok]
    if failed:
        worst = min(failed, key=lambda result: result.failed == "not plain")
        kind: FindingKind = "not plain" if worst.failed == "not plain" else "fails"
        return [Finding(kind, f"`{worst.call}`: {worst.reason}")]
    values = [result.wire for result in first if result.wire is not None]
    for result, value in zip(first, values, strict=True):
        if has_nan(value):
            return [Finding("not plain", f"`{result.call}` gives {shown(value, SHOWN)}")]
    for run in again:
        for result, value in zip(run, values, strict=True):
            if result.wire is not None and not same(value, result.wire):
                both = f"{shown(value, SHOWN)} and {shown(result.wire, SHOWN)}"
                return [Finding("random", f"`{result.call}` gives {both}")]
    findings = []
    if len(values) > 1 and all(same(values[0], value) for value in values):
        findings.append(Finding("constant", f"all give {shown(values[0], SHOWN)}"))
    nothing = next((result for result in first if result.wire == ["none", None]), None)
    if nothing is not None:
        findings.append(Finding("none", f"`{nothing.call}`"))
    return findings
