"""Faults of rows of ColBench's Backend Programming, found before an agent meets them: a table, and one JSON object.

Upstream's own test set has rows of most of these kinds: references that are random or give NaN, tests
that a constant passes, tests that hold their own verdict, and signatures that are cut off.
"""

import ast
import asyncio
import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from coterie.config.folders import check_new_folder, expanded, whole_folder
from coterie.datasets.catalogue import DataSet
from coterie.datasets.code_rows import CodeRow, signature
from coterie.datasets.files import read_rows
from coterie.datasets.load import load
from coterie.environments.coding import compared
from coterie.errors import UserError
from coterie.progress import Progress, Silent
from coterie.terminal import ConsoleProgress, results
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult, format_value, has_nan, same

SHOWN = 12
"""Row numbers that a table's cell has."""
TESTS = 10
"""So many has a row of upstream."""
RUNS = 2
"""How often a reference is run, each time in a process of its own."""
SHOWN_CHARACTERS = 60
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

    @property
    def unusable(self) -> bool:
        """Whether no answer to the row can be graded fairly."""
        return self.kind in UNUSABLE


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row and what is wrong with it."""

    number: int
    row: CodeRow
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        return not any(finding.unusable for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Report:
    """Checked rows of a split, or of a file."""

    name: str
    rows: tuple[CheckedRow, ...]

    def numbers(self, kind: FindingKind) -> list[int]:
        return [row.number for row in self.rows if any(f.kind == kind for f in row.findings)]

    @property
    def unusable(self) -> int:
        """Number of rows that can be no task."""
        return sum(not row.usable for row in self.rows)


def check(entry: DataSet, source: str, out: Path | None, console: Console) -> None:
    """Run every reference of a source's rows on its tests, print what is wrong, and write the other rows to ``out``."""
    if not issubclass(entry.row, CodeRow):
        raise UserError(
            f"rows of {entry.name} have no code to run", "give a set that has: colbench_code"
        )
    if out is not None:
        check_new_folder(out, "give another folder")
    file = expanded(source)
    rows: Mapping[str, Sequence[Any]]
    if file.is_file() and out is None:
        rows = {file.name: list(read_rows(file, CodeRow))}
    else:
        rows = {str(split): some for split, some in load(entry.name, source).rows.items()}
    reports = _checked(rows, console)
    _print(reports, results())
    if out is not None:
        with whole_folder(out) as folder:
            for one in reports:
                lines = [row.row.model_dump_json() + "\n" for row in one.rows if row.usable]
                (folder / f"{one.name}.jsonl").write_text("".join(lines), "utf-8", newline="\n")
    print(json.dumps({"set": entry.name, "splits": [_json(one) for one in reports]}))


def _checked(rows: Mapping[str, Sequence[CodeRow]], console: Console) -> list[Report]:
    progress = ConsoleProgress(console)

    async def run() -> list[Report]:
        async with Sandbox() as sandbox:
            return [
                Report(name, tuple(await check_rows(list(enumerate(some, 1)), sandbox, progress)))
                for name, some in rows.items()
            ]

    try:
        return asyncio.run(run())
    finally:
        progress.close()


def _print(reports: Sequence[Report], console: Console) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("split", "finding", "what it means", "rows", "their numbers"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    for one in reports:
        for kind, meaning in MEANING.items():
            if numbers := one.numbers(kind):
                shown = ", ".join(map(str, numbers[:SHOWN])) + ", ..." * (len(numbers) > SHOWN)
                table.add_row(one.name, kind, meaning, f"{len(numbers):,}", shown)
    if table.rows:
        console.print(table)
    for one in reports:
        found = sum(bool(row.findings) for row in one.rows)
        console.print(
            f"{one.name}: {len(one.rows):,} rows, {found:,} with findings, "
            f"{one.unusable:,} can't be tasks",
        )


def _json(one: Report) -> dict[str, object]:
    findings = {kind: numbers for kind in MEANING if (numbers := one.numbers(kind))}
    return {
        "name": one.name,
        "rows": len(one.rows),
        "unusable": one.unusable,
        "findings": findings,
    }


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
    failed = [result for run in (first, *again) for result in run if not result.ok]
    if failed:
        worst = min(failed, key=lambda result: result.failed == "not plain")
        kind: FindingKind = "not plain" if worst.failed == "not plain" else "fails"
        return [Finding(kind, f"`{worst.call}`: {worst.reason}")]
    values = [result.wire for result in first if result.wire is not None]
    for result, value in zip(first, values, strict=True):
        if has_nan(value):
            return [
                Finding(
                    "not plain", f"`{result.call}` gives {format_value(value, SHOWN_CHARACTERS)}"
                )
            ]
    for run in again:
        for result, value in zip(run, values, strict=True):
            if result.wire is not None and not same(value, result.wire):
                both = f"{format_value(value, SHOWN_CHARACTERS)} and {format_value(result.wire, SHOWN_CHARACTERS)}"
                return [Finding("random", f"`{result.call}` gives {both}")]
    findings = []
    if len(values) > 1 and all(same(values[0], value) for value in values):
        findings.append(
            Finding("constant", f"all give {format_value(values[0], SHOWN_CHARACTERS)}")
        )
    nothing = next((result for result in first if result.wire == ["none", None]), None)
    if nothing is not None:
        findings.append(Finding("none", f"`{nothing.call}`"))
    return findings
