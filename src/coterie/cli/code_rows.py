"""Check of ColBench's rows: run each reference on its tests. Prints a table and one JSON object.

The published test set has references that fail, are random or return NaN.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from coterie.config.folders import check_new_folder, expanded, whole_folder
from coterie.datasets.catalogue import DataSet
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.files import read_rows
from coterie.datasets.load import load
from coterie.environments.coding import compared
from coterie.errors import UserError
from coterie.progress import Progress, Silent
from coterie.terminal import ConsoleProgress, results
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import format_value, has_nan, same

SHOWN = 12
"""Maximum number of row numbers in a table cell."""
RUNS = 2
"""Number of runs of a reference, each in a separate process."""

Kind = Literal["empty", "fails", "random", "not plain"]
MEANING: dict[Kind, str] = {
    "empty": "no reference, or no test",
    "fails": "the reference does not run, or fails on a test",
    "random": "the reference returns different values in a second run",
    "not plain": "the reference returns NaN or something other than plain data",
}
Finding = tuple[Kind, str]
"""Reason why a row can't be a task, and its details."""


def check(entry: DataSet, source: str, out: Path | None, console: Console) -> None:
    """Run the references of a source on their tests, print the problems, and write the usable rows to ``out``."""
    if not issubclass(entry.row, CodeRow):
        raise UserError(f"rows of {entry.name} have no code to run", "use colbench_code")
    if out is not None:
        check_new_folder(out, "give another folder")
    file = expanded(source)
    splits: Mapping[str, Sequence[CodeRow]]
    if file.is_file() and out is None:
        splits = {file.name: list(read_rows(file, CodeRow))}
    else:
        splits = load(entry.name, source).rows  # type: ignore[assignment]
    with closing(ConsoleProgress(console)) as progress:
        findings = asyncio.run(_check_all(splits, progress))
    table = Table("split", "finding", "meaning", "rows", "row numbers", box=None)
    reports = []
    for name, rows in findings.items():
        numbers: dict[Kind, list[int]] = {}
        for kind in MEANING:
            if places := [n for n, one in enumerate(rows, 1) if one and one[0] == kind]:
                numbers[kind] = places
                text = ", ".join(map(str, places[:SHOWN])) + ", ..." * (len(places) > SHOWN)
                table.add_row(name, kind, MEANING[kind], f"{len(places):,}", text)
        known = {"name": name, "rows": len(rows), "unusable": sum(map(bool, rows))}
        reports.append({**known, "findings": numbers})
    if table.rows:
        results().print(table)
    for one in reports:
        results().print(f"{one['name']}: {one['rows']:,} rows, {one['unusable']:,} can't be tasks")
    if out is not None:
        with whole_folder(out) as folder:
            for name, split in splits.items():
                both = zip(split, findings[name], strict=True)
                text = "".join(f"{row.model_dump_json()}\n" for row, bad in both if not bad)
                (folder / f"{name}.jsonl").write_text(text, "utf-8", newline="\n")
    print(json.dumps({"set": entry.name, "splits": reports}))


async def _check_all(
    splits: Mapping[str, Sequence[CodeRow]], progress: Progress
) -> dict[str, list[Finding | None]]:
    async with Sandbox() as sandbox:
        return {name: await check_rows(rows, sandbox, progress) for name, rows in splits.items()}


async def check_rows(
    rows: Sequence[CodeRow], sandbox: Sandbox, progress: Progress | None = None
) -> list[Finding | None]:
    """Check rows concurrently. Return the problem of each row, or ``None``."""
    bar = progress or Silent()
    bar.start(len(rows), "check")
    slots = asyncio.Semaphore(2 * sandbox.settings.count)

    async def check(row: CodeRow) -> Finding | None:
        async with slots:
            finding = await check_row(row, sandbox)
        bar.advance(1)
        return finding

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(check(row)) for row in rows]
    return [task.result() for task in tasks]


async def check_row(row: CodeRow, sandbox: Sandbox) -> Finding | None:
    """Run a reference on its tests. Return the problem, or ``None``."""
    if not row.usable:
        return "empty", "no tests" if row.answer.strip() else "no reference"
    calls = [compared(call) for call in row.tests]  # as in the environment
    first, *again = [await sandbox.run_reference(row.answer, calls) for _ in range(RUNS)]
    failed = [result for run in (first, *again) for result in run if not result.ok]
    if failed:
        worst = min(failed, key=lambda result: result.failed == "not plain")
        kind: Kind = "not plain" if worst.failed == "not plain" else "fails"
        return kind, f"`{worst.call}`: {worst.reason}"
    show = partial(format_value, max_length=60)
    values = [result.wire for result in first if result.wire is not None]
    for result, value in zip(first, values, strict=True):
        if has_nan(value):
            return "not plain", f"`{result.call}` gives {show(value)}"
    for result, value in (
        (one, value) for run in again for one, value in zip(run, values, strict=True)
    ):
        if result.wire is not None and not same(value, result.wire):
            return "random", f"`{result.call}` gives {show(value)} and {show(result.wire)}"
    return None
