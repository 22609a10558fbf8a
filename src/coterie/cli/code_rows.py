"""Check of ColBench's rows: run each reference on its tests. Prints a table and one JSON object.

The published test set has references that fail, are random or return NaN, and tests that a constant passes.
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
from coterie.tools.sandbox.results import CallResult, format_value, has_nan, same

SHOWN = 12
"""Maximum number of row numbers in a table cell."""
RUNS = 2
"""Number of runs of a reference, each in a separate process."""

Kind = Literal["empty", "fails", "random", "not plain", "constant", "none"]
MEANING: dict[Kind, str] = {
    "empty": "no reference, or no test",
    "fails": "the reference does not run, or fails on a test",
    "random": "the reference returns different values in a second run",
    "not plain": "the reference returns NaN or something other than plain data",
    "constant": "all tests expect the same value, so a constant passes",
    "none": "a test expects None, which legacy grading never passes",
}
USABLE = ("constant", "none")
"""Kinds that are only reported. The others make grading impossible."""
Finding = tuple[Kind, str]
"""Problem of a row, and its details."""


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
    unusable = {
        name: [any(kind not in USABLE for kind, _ in some) for some in rows]
        for name, rows in findings.items()
    }
    numbers = {name: _numbers(rows) for name, rows in findings.items()}
    table = Table("split", "finding", "meaning", "rows", "row numbers", box=None)
    for name, kinds in numbers.items():
        for kind, places in kinds.items():
            text = ", ".join(map(str, places[:SHOWN])) + ", ..." * (len(places) > SHOWN)
            table.add_row(name, kind, MEANING[kind], f"{len(places):,}", text)
    if table.rows:
        results().print(table)
    for name, rows in findings.items():
        results().print(
            f"{name}: {len(rows):,} rows, {sum(map(bool, rows)):,} with findings, "
            f"{sum(unusable[name]):,} can't be tasks"
        )
    if out is not None:
        with whole_folder(out) as folder:
            for name, split in splits.items():
                kept = [row for row, bad in zip(split, unusable[name], strict=True) if not bad]
                text = "".join(f"{row.model_dump_json()}\n" for row in kept)
                (folder / f"{name}.jsonl").write_text(text, "utf-8", newline="\n")
    reports = [
        {
            "name": name,
            "rows": len(rows),
            "unusable": sum(unusable[name]),
            "findings": numbers[name],
        }
        for name, rows in findings.items()
    ]
    print(json.dumps({"set": entry.name, "splits": reports}))


def _numbers(rows: Sequence[Sequence[Finding]]) -> dict[Kind, list[int]]:
    """Return the numbers of the rows with each kind of problem."""
    numbers: dict[Kind, list[int]] = {}
    for kind in MEANING:
        if places := [n for n, some in enumerate(rows, 1) if kind in dict(some)]:
            numbers[kind] = places
    return numbers


async def _check_all(
    splits: Mapping[str, Sequence[CodeRow]], progress: Progress
) -> dict[str, list[list[Finding]]]:
    async with Sandbox() as sandbox:
        return {name: await check_rows(rows, sandbox, progress) for name, rows in splits.items()}


async def check_rows(
    rows: Sequence[CodeRow], sandbox: Sandbox, progress: Progress | None = None
) -> list[list[Finding]]:
    """Check rows concurrently. Return the problems of each row."""
    bar = progress or Silent()
    bar.start(len(rows), "check")
    slots = asyncio.Semaphore(2 * sandbox.settings.count)

    async def check(row: CodeRow) -> list[Finding]:
        async with slots:
            findings = await check_row(row, sandbox)
        bar.advance(1)
        return findings

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(check(row)) for row in rows]
    return [task.result() for task in tasks]


async def check_row(row: CodeRow, sandbox: Sandbox) -> list[Finding]:
    """Run a reference on its tests. Return its problems."""
    if not row.usable:
        return [("empty", "no tests" if row.answer.strip() else "no reference")]
    calls = [compared(call) for call in row.tests]  # as in the environment
    first, *again = [await sandbox.run_reference(row.answer, calls) for _ in range(RUNS)]
    return _run_findings(first, again)


def _run_findings(
    first: Sequence[CallResult], again: Sequence[Sequence[CallResult]]
) -> list[Finding]:
    failed = [result for run in (first, *again) for result in run if not result.ok]
    if failed:
        worst = min(failed, key=lambda result: result.failed == "not plain")
        kind: Kind = "not plain" if worst.failed == "not plain" else "fails"
        return [(kind, f"`{worst.call}`: {worst.reason}")]
    values = [result.wire for result in first if result.wire is not None]
    show = partial(format_value, max_length=60)
    for result, value in zip(first, values, strict=True):
        if has_nan(value):
            return [("not plain", f"`{result.call}` gives {show(value)}")]
    for run in again:
        for result, value in zip(run, values, strict=True):
            if result.wire is not None and not same(value, result.wire):
                return [("random", f"`{result.call}` gives {show(value)} and {show(result.wire)}")]
    findings: list[Finding] = []
    if len(values) > 1 and all(same(values[0], value) for value in values):
        findings.append(("constant", f"all give {show(values[0])}"))
    none = next((result for result in first if result.wire == ["none", None]), None)
    return [*findings, ("none", f"`{none.call}`")] if none is not None else findings
