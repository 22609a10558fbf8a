"""What every ``coterie reproduce`` collects and prints: results, claims, tables, one JSON object."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from coterie.cli.console import results
from coterie.errors import UserError
from coterie.evaluation.claims import Claim, HeldOut
from coterie.recipes.registry import micro_world, settings
from coterie.recipes.settings import RecipeSettings
from coterie.runs.folder import Run, Step
from coterie.runs.held_out import Evaluation, evaluation, held_out_results

ENOUGH = 500
"""Held-out tasks a seed that a claim needs."""
WIDTH = 120
"""Columns that the table of results needs."""
Scores = dict[tuple[str, int], dict[str, HeldOut]]
"""Held-out results by (method, seed) and task."""


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy of one method and seed on the held-out tasks."""

    method: str
    seed: int
    iteration: int
    n: int
    score: float
    tokens: float
    rows: int
    """Training rows so far."""
    steps: int
    """Optimiser steps so far."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Means of what the environment's grades say besides, such as turns."""

    @property
    def row(self) -> dict[str, object]:
        """As it is printed: one flat object."""
        values = asdict(self)
        return values | values.pop("means")


@dataclass(slots=True)
class Findings:
    """What has been measured so far."""

    rows: list[PolicyResult] = field(default_factory=list)
    tasks: Scores = field(default_factory=dict)
    """Held-out results of each method's newest policy."""

    def add(self, method: str, seed: int, run: Run, version: int) -> None:
        """Take in one policy."""
        self.rows.append(_result(method, seed, run, version))
        self.tasks[method, seed] = held_out_results(run.store, version)


def tested(name: str, words: Sequence[str]) -> RecipeSettings:
    """A recipe's settings; refuses other data than that on which claims are tested."""
    own, first = settings(name, words), micro_world(name)
    if own.dataset != first:
        raise UserError(
            f"dataset={own.dataset}: claims are tested on the micro-world {first}",
            "leave dataset out; `coterie run` takes any",
        )
    return own


def print_findings(folder: Path, found: Findings, claims: Sequence[Claim]) -> None:
    """Write per-task results beside the runs; print tables and, as the last line, one JSON object."""
    _write_tasks(folder / "held_out.jsonl", found.tasks)
    results(WIDTH).print(_table(found.rows))
    results().print(_claims_table(claims))
    shown = {"claims": [asdict(claim) for claim in claims], "rows": [r.row for r in found.rows]}
    print(json.dumps(shown))


def _result(method: str, seed: int, run: Run, version: int) -> PolicyResult:
    point = evaluation(run.store, version)
    steps = (Step(i, "train") for i in range(version))
    trainings = [run.metrics(step) for step in steps if run.is_finished(step)]
    return PolicyResult(
        method,
        seed,
        version,
        point.n,
        round(point.score, 4),
        round(point.tokens, 2),
        sum(int(metrics["rows"]) for metrics in trainings),
        sum(int(metrics["steps"]) for metrics in trainings),
        _means(point),
    )


def _means(point: Evaluation) -> dict[str, float]:
    """What grades say, and with turns how long a reply is."""
    found = {name: round(value, 4) for name, value in point.means.items()}
    if turns := point.means.get("turns"):
        found["tokens_a_turn"] = round(point.tokens / turns, 2)
    return found


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
    names = list(dict.fromkeys(name for result in results for name in result.means))
    heads = (name.replace("_", " ") for name in names)
    titles = ("method", "seed", "iteration", "n", "score", "tokens", *heads, "rows", "steps")
    table.add_column(titles[0], min_width=max(len(result.method) for result in results))
    for title in titles[1:]:
        table.add_column(title, justify="right")
    for r in results:
        more = [f"{r.means[name]:.2f}" if name in r.means else "" for name in names]
        cells = (
            r.seed,
            r.iteration,
            r.n,
            f"{r.score:.3f}",
            f"{r.tokens:.1f}",
            *more,
            r.rows,
            r.steps,
        )
        table.add_row(r.method, *map(str, cells))
    return table


def _claims_table(claims: Sequence[Claim]) -> Table:
    table = Table(title="claims", box=None)
    for title in ("claim", "holds", "effect", "p", "tried"):
        table.add_column(title)
    for c in claims:
        table.add_row(c.claim, "yes" if c.holds else "NO", f"{c.effect:+.3f}", f"{c.p}", c.tried)
    return table
