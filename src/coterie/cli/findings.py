"""What every ``coterie reproduce`` prints: tables of results, one of claims, and one JSON object."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import typer
from rich.table import Table

from coterie.evaluation.claims import Claim
from coterie.recipes.findings import ClaimResults, GateResult, PolicyResult, Scores
from coterie.terminal.console import results

ENOUGH = 500
"""Held-out tasks a seed that a claim needs."""
WIDTH = 120
"""Columns that the tables of results need."""


def print_findings(folder: Path, tested: ClaimResults) -> None:
    """Write per-task results beside the runs; print tables and, as the last line, one JSON object."""
    found, claims = tested.found, tested.claims
    _write_tasks(folder / "held_out.jsonl", found.tasks)
    results(WIDTH).print(_table(found.rows))
    if any(result.means for result in found.rows):
        results(WIDTH).print(_means_table(found.rows))
    results().print(_claims_table(claims))
    shown = {"claims": [asdict(claim) for claim in claims], "rows": [r.row for r in found.rows]}
    print(json.dumps(shown))


def pass_gate(measured: GateResult, *, alone: bool) -> None:
    """Say what was measured before any training; end with status 1 if that is not enough.

    ``alone`` makes it the last line, as one JSON object.
    """
    told = ", ".join(f"{name} {value:.3f}" for name, value in measured.values.items())
    results().print(f"before training: {told}")
    if not measured.passed:
        results().print(f"that is not enough to test the claims: {measured.asked}")
    if alone or not measured.passed:
        print(
            json.dumps(
                {**{k: round(v, 4) for k, v in measured.values.items()}, "passed": measured.passed}
            )
        )
    if not measured.passed:
        raise typer.Exit(1)


def _write_tasks(path: Path, scores: Scores) -> None:
    """Per-task scores, from which the claims can be computed again."""
    with path.open("w") as file:
        for (method, seed), tasks in scores.items():
            for task, found in sorted(tasks.items()):
                row = {"method": method, "seed": seed, "task": task, **asdict(found)}
                file.write(json.dumps(row) + "\n")


def _table(results: Sequence[PolicyResult]) -> Table:
    few = any(result.n < ENOUGH for result in results)
    note = f" (fewer than {ENOUGH} tasks: for trying out, not a test)" * few
    table = Table(title=f"held-out results{note}", box=None)
    table.add_column("method", min_width=max(len(result.method) for result in results))
    for title in ("seed", "iteration", "n", "score", "tokens", "rows", "steps"):
        table.add_column(title, justify="right")
    for r in results:
        counts = (r.seed, r.iteration, r.n, f"{r.score:.3f}", f"{r.tokens:.1f}", r.rows, r.steps)
        table.add_row(r.method, *map(str, counts))
    return table


def _means_table(results: Sequence[PolicyResult]) -> Table:
    """What grades say besides: a row for each measure, a column for each method's newest policy."""
    newest = {(r.method, r.seed): r for r in results}
    methods = list(dict.fromkeys(r.method for r in newest.values() if r.means))
    table = Table(title="means of each method's newest policies", box=None)
    table.add_column("")
    for method in methods:
        table.add_column(method, justify="right")
    for name in dict.fromkeys(name for r in newest.values() for name in r.means):
        values = [
            [r.means[name] for (of, _), r in newest.items() if of == method and name in r.means]
            for method in methods
        ]
        table.add_row(name.replace("_", " "), *(f"{fmean(v):.2f}" if v else "" for v in values))
    return table


def _claims_table(claims: Sequence[Claim]) -> Table:
    table = Table(title="claims", box=None)
    for title in ("claim", "holds", "effect", "p", "tried"):
        table.add_column(title)
    for c in claims:
        table.add_row(c.claim, "yes" if c.holds else "NO", f"{c.effect:+.3f}", f"{c.p}", c.tried)
    return table
