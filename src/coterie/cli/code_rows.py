"""Checks for rows of ColBench's Backend Programming. Prints a table and one JSON object.

The published test set has rows with most of these problems: references that are random or return NaN, tests that a
constant passes, tests that contain the expected value, and incomplete signatures.
"""

import ast
import asyncio
import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
"""Maximum number of row numbers in a table cell."""
TESTS = 10
"""Number of tests of a published row."""
RUNS = 2
"""Number of runs of a reference, each in a separate process."""
SHOWN_CHARACTERS = 60
"""Maximum length of a printed value in characters."""

FindingKind = Literal[
    "empty", "fails", "random", "not plain", "constant", "none", "duplicate", "verdict", "signature",
    "count",
]  # fmt: skip
MEANING: dict[FindingKind, str] = {
    "empty": "no reference, or no test",
    "fails": "the reference does not run, or fails on a test",
    "random": "the reference returns different values in a second run",
    "not plain": "the reference returns NaN or something other than plain data",
    "constant": "all tests expect the same value, so a constant passes",
    "none": "a test expects None, which legacy grading never passes",
    "duplicate": "a test appears twice",
    "verdict": "a test is a comparison, so it contains the expected value",
    "signature": "the description has no signature, or an incomplete one",
    "count": f"the row does not have {TESTS} tests",
}
UNUSABLE: frozenset[FindingKind] = frozenset({"empty", "fails", "random", "not plain"})
"""Kinds that make grading impossible. Other kinds are only reported."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a row."""

    kind: FindingKind
    detail: str

    @property
    def unusable(self) -> bool:
        """Return True if answers to the row can't be graded fairly."""
        return self.kind in UNUSABLE


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row and its problems."""

    number: int
    row: CodeRow
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        return not any(finding.unusable for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Report:
    """Checked rows of a split or file."""

    name: str
    rows: tuple[CheckedRow, ...]

    def numbers(self, kind: FindingKind) -> list[int]:
        return [row.number for row in self.rows if any(f.kind == kind for f in row.findings)]

    @property
    def unusable(self) -> int:
        """Number of rows that can't be tasks."""
        return sum(not row.usable for row in self.rows)


def check(entry: DataSet, source: str, out: Path | None, console: Console) -> None:
    """Run the references of a source on their tests, print the problems, and write the usable rows to ``out``."""
    if not issubclass(entry.row, CodeRow):
        raise UserError(f"rows of {entry.name} have no code to run", "use colbench_code")
    if out is not None:
        check_new_folder(out, "give another folder")
    file = expanded(source)
    rows: Mapping[str, Sequence[Any]]
    if file.is_file() and out is None:
        rows = {file.name: list(read_rows(file, CodeRow))}
    else:
        rows = {str(split): part for split, part in load(entry.name, source).rows.items()}
    reports = _check_all(rows, console)
    _print(reports, results())
    if out is not None:
        with whole_folder(out) as folder:
            for report in reports:
                lines = [row.row.model_dump_json() + "\n" for row in report.rows if row.usable]
                (folder / f"{report.name}.jsonl").write_text("".join(lines), "utf-8", newline="\n")
    print(json.dumps({"set": entry.name, "splits": [_json(report) for report in reports]}))


def _check_all(rows: Mapping[str, Sequence[CodeRow]], console: Console) -> list[Report]:
    progress = ConsoleProgress(console)

    async def run() -> list[Report]:
        async with Sandbox() as sandbox:
            return [
                Report(name, tuple(await check_rows(list(enumerate(part, 1)), sandbox, progress)))
                for name, part in rows.items()
            ]

    try:
        return asyncio.run(run())
    finally:
        progress.close()


def _print(reports: Sequence[Report], console: Console) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("split", "finding", "meaning", "rows", "row numbers"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    for report in reports:
        for kind, meaning in MEANING.items():
            if numbers := report.numbers(kind):
                text = ", ".join(map(str, numbers[:SHOWN])) + ", ..." * (len(numbers) > SHOWN)
                table.add_row(report.name, kind, meaning, f"{len(numbers):,}", text)
    if table.rows:
        console.print(table)
    for report in reports:
        count = sum(bool(row.findings) for row in report.rows)
        console.print(
            f"{report.name}: {len(report.rows):,} rows, {count:,} with findings, "
            f"{report.unusable:,} can't be tasks",
        )


def _json(report: Report) -> dict[str, object]:
    findings = {kind: numbers for kind in MEANING if (numbers := report.numbers(kind))}
    return {
        "name": report.name,
        "rows": len(report.rows),
        "unusable": report.unusable,
        "findings": findings,
    }


async def check_row(row: CodeRow, sandbox: Sandbox) -> list[Finding]:
    """Return the problems of a row: first from running its reference, then from its text."""
    if not row.usable:
        return static_findings(row)
    calls = [compared(call) for call in row.tests]  # as in the environment
    first, *again = [await sandbox.run_reference(row.answer, calls) for _ in range(RUNS)]
    return [*_run_findings(first, again), *static_findings(row)]


async def check_rows(
    rows: Sequence[tuple[int, CodeRow]], sandbox: Sandbox, progress: Progress | None = None
) -> list[CheckedRow]:
    """Check numbered rows concurrently. The results have the order of the rows."""
    bar = progress or Silent()
    bar.start(len(rows), "check")
    slots = asyncio.Semaphore(2 * sandbox.settings.count)

    async def check(number: int, row: CodeRow) -> CheckedRow:
        async with slots:
            findings = await check_row(row, sandbox)
        bar.advance(1)
        return CheckedRow(number, row, tuple(findings))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(check(number, row)) for number, row in rows]
    return [task.result() for task in tasks]


def static_findings(row: CodeRow) -> list[Finding]:
    """Return the problems of a row's text, without running it."""
    findings = []
    if not row.usable:
        missing = "tests" if row.answer.strip() else "reference"
        findings.append(Finding("empty", f"no {missing}"))
    header = signature(row.question)
    if header is None or not header.whole:
        findings.append(Finding("signature", f"`{header.text}`" if header else "no signature"))
    if len(row.tests) != TESTS:
        findings.append(Finding("count", f"{len(row.tests)} tests"))
    counts = Counter(" ".join(call.split()) for call in row.tests)
    findings += [Finding("duplicate", f"`{call}`") for call, n in counts.items() if n > 1]
    findings += [Finding("verdict", f"`{call}`") for call in row.tests if is_verdict(call)]
    return findings


def is_verdict(call: str) -> bool:
    """Return True if a test is a comparison, as ``f(2) == 4`` is; ``f(lambda x: x > 2)`` is not."""
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
    show = partial(format_value, max_length=SHOWN_CHARACTERS)
    for result, value in zip(first, values, strict=True):
        if has_nan(value):
            return [Finding("not plain", f"`{result.call}` gives {show(value)}")]
    for run in again:
        for result, value in zip(run, values, strict=True):
            if result.wire is not None and not same(value, result.wire):
                both = f"{show(value)} and {show(result.wire)}"
                return [Finding("random", f"`{result.call}` gives {both}")]
    findings = []
    if len(values) > 1 and all(same(values[0], value) for value in values):
        findings.append(Finding("constant", f"all give {show(values[0])}"))
    none = next((result for result in first if result.wire == ["none", None]), None)
    if none is not None:
        findings.append(Finding("none", f"`{none.call}`"))
    return findings
