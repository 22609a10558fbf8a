"""What is wrong with rows of ColBench: a table, and one JSON object."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coterie.datasets.catalogue import SPLITS, DataSet
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.local import rows_file
from coterie.datasets.preparing import Examine
from coterie.datasets.reading import read_rows
from coterie.datasets.splits import split_of
from coterie.errors import UserError
from coterie.generators.colbench.checks import (
    MEANING,
    CheckedRow,
    FindingKind,
    check_rows,
)
from coterie.progress import Silent
from coterie.terminal.console import results
from coterie.terminal.progress import ConsoleProgress
from coterie.tools.sandbox.pool import Sandbox

SHOWN = 12
"""Row numbers that a table's cell has."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file's rows, checked."""

    file: Path
    rows: tuple[CheckedRow, ...]

    def numbers(self, kind: FindingKind) -> list[int]:
        """The rows that have a finding of this kind."""
        return [row.number for row in self.rows if any(f.kind == kind for f in row.findings)]

    @property
    def unusable(self) -> int:
        """How many rows can be no task."""
        return sum(not row.usable for row in self.rows)


def check(entry: DataSet, source: str, console: Console) -> None:
    """Run every reference of a source's rows on its tests, and print what is wrong."""
    if not issubclass(entry.row, CodeRow):
        raise UserError(
            f"rows of {entry.name} have no code to run and no plans to read",
            "give a set that has, such as colbench_code or gsm8k_plans",
        )
    files = list(dict.fromkeys(rows_file(entry.name, split, source) for split in SPLITS))
    rows = {file: _numbered(file) for file in files}
    reports = _checked(rows, console)
    _print(reports, results())
    print(json.dumps({"set": entry.name, "files": [_json(one) for one in reports]}))


def examiner(entry: DataSet, console: Console) -> Examine | None:
    """For a set of code, what runs every reference of files on its tests, prints what is wrong, and names the rows that
    can be no tasks."""
    if not issubclass(entry.row, CodeRow):
        return None

    def examine(files: Sequence[Path]) -> dict[Path, set[int]]:
        rows = {}
        for file in files:
            split = split_of(file)
            rows[file] = _numbered(file, entry.first(split) if split else None)
        reports = _checked(rows, console)
        if any(row.findings for one in reports for row in one.rows):
            _print(reports, console)
        return {one.file: {row.number for row in one.rows if not row.usable} for one in reports}

    return examine


def _checked(
    rows: Mapping[Path, Sequence[tuple[int, CodeRow]]], console: Console
) -> list[FileReport]:
    """The rows of some files, checked in the sandbox."""
    progress = ConsoleProgress(console)

    async def run() -> list[FileReport]:
        async with Sandbox() as sandbox:
            return [
                FileReport(file, tuple(await check_rows(numbered, sandbox, progress)))
                for file, numbered in rows.items()
            ]

    try:
        return asyncio.run(run())
    finally:
        progress.close()


def _numbered(file: Path, first: int | None = None) -> list[tuple[int, CodeRow]]:
    return list(enumerate(islice(read_rows(file, CodeRow, Silent()), first), 1))


def _print(reports: Sequence[FileReport], console: Console) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("file", "finding", "what it means", "rows", "their numbers"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    for one in reports:
        for kind, meaning in MEANING.items():
            if numbers := one.numbers(kind):
                shown = ", ".join(map(str, numbers[:SHOWN])) + ", ..." * (len(numbers) > SHOWN)
                table.add_row(one.file.name, kind, meaning, f"{len(numbers):,}", shown)
    if table.rows:
        console.print(table)
    for one in reports:
        found = sum(bool(row.findings) for row in one.rows)
        console.print(
            f"{one.file.name}: {len(one.rows):,} rows, {found:,} with findings, "
            f"{one.unusable:,} can't be tasks",
        )


def _json(one: FileReport) -> dict[str, object]:
    findings = {kind: numbers for kind in MEANING if (numbers := one.numbers(kind))}
    return {
        "file": str(one.file),
        "rows": len(one.rows),
        "unusable": one.unusable,
        "findings": findings,
    }
