"""Rows of ``coterie data check`` and ``coterie data filter``.

``check`` runs the references of ColBench's rows on their tests: the published test set has references that fail, are
random or return NaN. ``filter`` keeps rows that a policy solves sometimes, but not always: other tasks have zero
advantage in reinforcement learning. AFM (arXiv 2508.13167) keeps web tasks that a model without tools solves at most
3 times in 10, and drops code tasks that it solves 8 times in 8.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rich.console import Console

from coterie.cli.evaluate import play_benchmark
from coterie.config.folders import atomic_folder, check_new, expanded
from coterie.datasets.catalogue import DataSet, Split
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.files import read_rows
from coterie.datasets.load import Rows, load_rows
from coterie.datasets.rows import QuestionRow, question_key
from coterie.environments.coding import compared
from coterie.environments.qa_metrics import question_of
from coterie.environments.registry import TaskSettings
from coterie.errors import UserError
from coterie.progress import Progress, Silent
from coterie.recipes.registry import settings as recipe_settings
from coterie.record.store import Store
from coterie.runs.benchmark import benchmark_settings
from coterie.runs.loop import EVALUATION, REINFORCE
from coterie.runs.reinforce_record import groups_taken, step_records, step_stage
from coterie.runs.run import read_config
from coterie.terminal import ConsoleProgress, results
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import format_value, has_nan, same

SHOWN = 12

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
        check_new(out, "give another folder")
    file = expanded(source)
    splits: Mapping[str, Sequence[CodeRow]]
    # A single file is checked as it is, but a new folder needs both splits.
    if file.is_file() and out is None:
        splits = {file.name: list(read_rows(file, CodeRow))}
    else:
        splits = load_rows(entry.name, source).rows  # type: ignore[assignment]

    async def check_splits() -> dict[str, list[Finding | None]]:
        async with Sandbox() as sandbox:
            return {name: await check_rows(splits[name], sandbox, progress) for name in splits}

    with closing(ConsoleProgress(console)) as progress:
        findings = asyncio.run(check_splits())
    reports = []
    for name, rows in findings.items():
        numbers: dict[Kind, list[int]] = {}
        for number, finding in enumerate(rows, 1):
            if finding:
                numbers.setdefault(finding[0], []).append(number)
        count = sum(map(bool, rows))
        results().print(f"{name}: {len(rows):,} rows, {count:,} can't be tasks")
        for finding_kind, of_kind in numbers.items():
            text = ", ".join(map(str, of_kind[:SHOWN])) + ", ..." * (len(of_kind) > SHOWN)
            results().print(
                f"  {finding_kind}: {MEANING[finding_kind]}; {len(of_kind):,} rows: {text}"
            )
        reports.append({"name": name, "rows": len(rows), "unusable": count, "findings": numbers})
    if out is not None:
        pairs = {name: zip(splits[name], findings[name], strict=True) for name in splits}
        _write_rows(out, {name: [row for row, bad in pairs[name] if not bad] for name in pairs})
    print(json.dumps({"set": entry.name, "splits": reports}))


async def check_rows(
    rows: Sequence[CodeRow], sandbox: Sandbox, progress: Progress | None = None
) -> list[Finding | None]:
    """Check rows concurrently. Return the problem of each row, or ``None``."""
    bar = progress or Silent()
    bar.start(len(rows), "check")
    # Two rows for each worker keep the sandbox busy while results are compared.
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
    if row.flaw:
        return "empty", "no tests" if row.answer.strip() else "no reference"
    calls = [compared(call) for call in row.tests]  # as in the environment
    runs = [await sandbox.run_reference(row.answer, calls) for _ in range(2)]  # two processes
    if failed := [result for run in runs for result in run if not result.ok]:
        # A call that fails says more than one that returns no plain data.
        worst = min(failed, key=lambda result: result.failed == "not plain")
        finding: Kind = "not plain" if worst.failed == "not plain" else "fails"
        return finding, f"`{worst.call}`: {worst.reason}"
    show = partial(format_value, max_length=60)
    values = [
        (run.call, run.wire, second_run.wire)
        for run, second_run in zip(*runs, strict=True)
        if run.wire is not None and second_run.wire is not None
    ]
    # NaN differs from itself, so it is found before both runs are compared.
    for call, value, _ in values:
        if has_nan(value):
            return "not plain", f"`{call}` gives {show(value)}"
    for call, value, second in values:
        if not same(value, second):
            return "random", f"`{call}` gives {show(value)} and {show(second)}"
    return None


# -- filter ---------------------------------------------------------------------------------------


class PassRate(NamedTuple):
    """Pass rate of one task. Failed and ungraded dialogues are not counted."""

    passed: int
    graded: int

    @property
    def rate(self) -> float:
        return self.passed / self.graded


PassRates = Mapping[str, PassRate]
"""Pass rates by task id, and by question key for tasks whose ids differ from the row ids."""


def rate_of(rates: PassRates, data_set: str, row: QuestionRow) -> PassRate | None:
    """Return the pass rate of a row's task; ``None`` if it has no graded dialogue."""
    # Ids of tasks begin with the data set. Tasks with other ids are found by their question.
    return rates.get(f"{data_set}-{row.id}") or rates.get(row.key)


def pass_rates(store: Store, iteration: int, stages: Iterable[str], passing: float) -> PassRates:
    """Return the pass rates of stages; later stages count. A dialogue passes with a score of at least ``passing``."""
    rates: dict[str, PassRate] = {}
    for tree in (tree for stage in stages for tree in store.outlines(iteration, stage)):
        scores = [o.score for o in tree.outcomes.values() if o.score is not None]
        if scores:
            rate = PassRate(sum(score >= passing for score in scores), len(scores))
            rates[tree.task] = rate
            rates[question_key(question_of(store.task(tree.task)))] = rate
    return rates


def step_rates(store: Store, iteration: int, stage: str, passing: float) -> PassRates:
    """Return the pass rate of each task in the newest reinforcement learning step that sampled it.

    Only finished steps count, because the groups of an unfinished step may be incomplete.
    """
    # A step may train on groups that earlier draws sampled. Records without groups mean the step itself.
    records = step_records(store, iteration, stage)
    draws = {draw for record in records.values() for draw, _ in groups_taken(record)} or {*records}
    return pass_rates(store, iteration, [step_stage(stage, n) for n in sorted(draws)], passing)


Place = Literal["kept", "too_easy", "too_hard", "not_played"]


@dataclass(frozen=True, slots=True)
class RateRule:
    """Inclusive range of pass rates to keep."""

    least: float
    most: float
    passing: float = 1.0
    unplayed: Literal["kept", "not_played"] = "not_played"

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= 1:
            problem = f"no rate is at least {self.least:g} and at most {self.most:g}"
            raise UserError(problem, "give two shares from 0 to 1, the lower share first")

    def place(self, rate: float | None) -> Place:
        if rate is None:
            return self.unplayed
        return "too_hard" if rate < self.least else "too_easy" if rate > self.most else "kept"


def filter_rows(
    benchmark: str,
    overrides: Sequence[str],
    out: Path,
    rule: RateRule,
    split: Split,
    file: Path | None,
    console: Console,
) -> None:
    """Filter a split by a new evaluation, or by the store of an earlier one, and write a folder of rows."""
    check_new(out, "give another folder")
    settings: TaskSettings
    if file is None:
        # The user's own values override these defaults.
        typed = {pair.partition("=")[0] for pair in overrides}
        defaults = {"samples": 8, "temperature": 1}  # greedy dialogues of a task are all equal
        overrides = [*overrides, *(f"{k}={v}" for k, v in defaults.items() if k not in typed)]
        settings, results = play_benchmark(benchmark, overrides, console=console, split=split)
        file = results[0].store
    else:
        where = "`coterie data filter --help` has examples"
        settings = benchmark_settings(TaskSettings, benchmark, overrides, where=where)
    rows = _rows(settings)
    with Store.open(file, read_only=True) as store:
        rates = pass_rates(store, _newest(store, file, EVALUATION), [EVALUATION], rule.passing)
    _write(rows, rates, file, out, rule, split, console)


def filter_run(folder: Path, out: Path, rule: RateRule, console: Console) -> None:
    """Filter a run's training rows by its reinforcement learning, and write a folder of rows."""
    check_new(out, "give another folder")
    name, stored = read_config(folder)
    file = folder / "store.sqlite"
    with Store.open(file, read_only=True) as store:
        rates = step_rates(store, _newest(store, file, REINFORCE), REINFORCE, rule.passing)
    _write(_rows(recipe_settings(name, (), stored)), rates, file, out, rule, "train", console)


def _rows(settings: TaskSettings) -> Rows:
    """Return the rows of the settings. Raises ``UserError`` for an environment without rows."""
    if settings.dataset.name is None:
        problem = f"{settings.benchmark} makes its own tasks and has no rows to filter"
        raise UserError(problem, "give a data set: `coterie data filter mhqa dataset=2wiki`")
    return Rows(settings.dataset)


def _newest(store: Store, file: Path, stage: str) -> int:
    iterations = store.iterations(stage)
    if not iterations:
        fix = "give the store of an evaluation as --store, or a run with reinforcement learning as --from"
        raise UserError(f"{file} has no dialogue of {stage!r}", fix)
    return max(iterations)


def _write(
    rows: Rows,
    rates: PassRates,
    file: Path,
    out: Path,
    rule: RateRule,
    split: Split,
    console: Console,
) -> None:
    by_outcome: dict[Place, list[QuestionRow]] = {outcome: [] for outcome in get_args(Place)}
    passed = Counter[str]()
    for row in rows.split(split):
        rate = rate_of(rates, rows.name, row)
        by_outcome[rule.place(rate.rate if rate else None)].append(row)
        passed.update([f"{rate.passed}/{rate.graded}"] if rate else [])
    counts = {outcome.replace("_", " "): len(part) for outcome, part in by_outcome.items()}
    if not passed:
        problem = f"no {split} row of this data set has a graded dialogue in {file}"
        raise UserError(problem, "give what was played there (dataset.source=, --split)")
    if not by_outcome["kept"]:
        totals = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        raise UserError(f"no row is kept: {totals}", "allow other rates (--least, --most)")
    parts: dict[str, list[QuestionRow]] = {split: by_outcome["kept"]}
    # The other split is copied, so that the folder is a complete data set.
    parts |= {name: rows.split(name) for name in rows.splits if name != split}
    parts |= {"too_easy": by_outcome["too_easy"], "too_hard": by_outcome["too_hard"]}
    _write_rows(out, parts)
    for outcome, count in counts.items():
        console.print(f"{outcome}: {count:,} rows")
    # Sorted by length first, so that 2/16 comes before 10/16.
    rates_by_length = sorted(passed.items(), key=lambda item: (len(item[0]), item[0]))
    console.print("passed: " + ", ".join(f"{rate} of {count:,}" for rate, count in rates_by_length))


def _write_rows(out: Path, parts: Mapping[str, Sequence[QuestionRow]]) -> None:
    with atomic_folder(out) as folder:
        for name, rows in parts.items():
            text = "".join(f"{row.model_dump_json()}\n" for row in rows)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")
