"""What is wrong with rows of ColBench: a table, and one JSON object."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coterie.cli.console import results
from coterie.cli.progress import ConsoleProgress
from coterie.datasets.catalogue import SPLITS, DataSet
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.local import rows_file
from coterie.datasets.prepared import split_of
from coterie.datasets.reading import read_rows
from coterie.environments.colbench.checks import (
    MEANING,
    Checked,
    Kind,
    check_rows,
    static_findings,
)
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.tools.sandbox.pool import Sandbox

SHOWN = 12
"""Row numbers that a table's cell has."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file's rows, checked."""

    file: Path
    rows: tuple[Checked, ...]

    def numbers(self, kind: Kind) -> list[int]:
        """The rows that have a finding of this kind."""
        return [row.number for row in self.rows if any(f.kind == kind for f in row.findings)]

    @property
    def unusable(self) -> int:
        """How many rows can be no task."""
        return sum(not row.usable for row in self.rows)


def check(entry: DataSet, source: str, console: Console) -> None:
    """Run every reference of a source's rows on its tests, and print what is wrong."""
    if not issubclass(entry.row, CodeRow):
        raise UserError(f"rows of {entry.name} have no checks", "such as colbench_code has")
    files = list(dict.fromkeys(rows_file(entry.name, split, source) for split in SPLITS))
    rows = {file: _numbered(file) for file in files}
    progress = ConsoleProgress(console)

    async def checked() -> list[FileReport]:
        async with Sandbox() as sandbox:
            return [
                FileReport(file, tuple(await check_rows(rows[file], sandbox, progress)))
                for file in files
            ]

    try:
        reports = asyncio.run(checked())
    finally:
        progress.close()
    _print(reports, results())
    print(json.dumps({"set": entry.name, "files": [_json(one) for one in reports]}))


def tell_static(entry: DataSet, files: Iterable[Path], console: Console) -> None:
    """Print what the text of upstream's rows shows to be wrong; nothing of it is run."""
    reports = []
    for file in files:
        split = split_of(file)
        first = entry.upstream(split).first if split else None
        rows = (Checked(n, row, tuple(static_findings(row))) for n, row in _numbered(file, first))
        reports.append(FileReport(file, tuple(rows)))
    if any(row.findings for one in reports for row in one.rows):
        _print(reports, console)


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
