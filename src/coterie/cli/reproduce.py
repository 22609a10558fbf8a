"""``coterie reproduce optima/isft``: iSFT against its base and two controls, over several seeds.

Claims, margins and tests are fixed here, before any run (one-sided paired bootstrap over tasks and
seeds, p < 0.05). Controls train on as many dialogues as iSFT did in each iteration, under the same
training settings, so in as many steps (``recipes.optima_controls``):

* ``random``: dialogues drawn at random from the control's own rollouts, instead of the best;
* ``scripted``: more pre-training on the scripted corpus that made the base.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coterie.errors import UserError
from coterie.evaluation.claims import Claim, HeldOut, better
from coterie.progress import Progress
from coterie.recipes.optima import NAME, Optima
from coterie.recipes.optima_controls import ScriptedControl
from coterie.recipes.optima_settings import OptimaSettings
from coterie.recipes.registry import FIRST, settings
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.held_out import evaluation, held_out_results
from coterie.runs.loop import fork, run_steps

MARGIN_OVER_CONTROLS = 0.10
Scores = dict[tuple[str, int], dict[str, HeldOut]]
"""Held-out results by (method, seed) and task."""


@dataclass(frozen=True, slots=True)
class Result:
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


@dataclass(slots=True)
class Findings:
    """What has been measured so far."""

    rows: list[Result] = field(default_factory=list)
    tasks: Scores = field(default_factory=dict)
    """Held-out results of each method's newest policy."""

    def add(self, method: str, seed: int, run: Run, version: int) -> None:
        """Take in one policy."""
        self.rows.append(_result(method, seed, run, version))
        self.tasks[method, seed] = held_out_results(run.store, version)


def reproduce(
    folder: Path,
    seeds: Iterable[int],
    words: Sequence[str],
    console: Console,
    progress: Progress,
) -> list[Claim]:
    """Run (or resume) everything, print the table and, as the last line, one JSON object."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Findings()
    for seed in seeds:
        own = settings(NAME, [*words, f"seed={seed}"])
        if own.dataset != FIRST:
            raise UserError(
                f"dataset={own.dataset}: claims are tested on the micro-world {FIRST}",
                "leave dataset out; `coterie run` takes any",
            )
        base = folder / f"seed-{seed}"
        base.mkdir(exist_ok=True)
        console.print(f"seed {seed}: iSFT, then the controls")
        counts = _isft(base, own, progress, found)
        _random(base, own, counts, progress, found)
        _scripted(base, own, counts, progress, found)
    claims = _claims(found.tasks)
    _write_tasks(folder / "held_out.jsonl", found.tasks)
    Console().print(_table(found.rows))
    Console().print(_claims_table(claims))
    shown = {"claims": [asdict(claim) for claim in claims], "rows": [asdict(r) for r in found.rows]}
    print(json.dumps(shown))
    return claims


def _isft(base: Path, own: OptimaSettings, progress: Progress, found: Findings) -> list[int]:
    """The recipe; gives how many dialogues each iteration selected."""
    recipe = Optima(own)
    recipe.check()
    with open_run(base / "isft", NAME, own) as run:
        run_steps(recipe, run, progress)
        found.add("base", own.seed, run, 0)
        for version in range(1, own.iterations + 1):
            found.add("isft", own.seed, run, version)
        selects = [run.metrics(Step(i, "select")) for i in range(own.iterations)]
        return [int(metrics["selected"]) for metrics in selects]


def _random(
    base: Path, own: OptimaSettings, counts: list[int], progress: Progress, found: Findings
) -> None:
    select = own.select.model_copy(update={"rule": "random", "counts": tuple(counts)})
    control = own.model_copy(update={"select": select})
    recipe = Optima(control)
    if not (base / "random").exists():  # the base's evaluation and the first rollouts are the same
        fork(recipe, base / "isft", base / "random", control)
    _control("random", recipe, base, progress, found)


def _scripted(
    base: Path, own: OptimaSettings, counts: list[int], progress: Progress, found: Findings
) -> None:
    _control("scripted", ScriptedControl(own, counts), base, progress, found)


def _control(method: str, recipe: Optima, base: Path, progress: Progress, found: Findings) -> None:
    with open_run(base / method, NAME, recipe.settings) as run:
        run_steps(recipe, run, progress)
        found.add(method, recipe.settings.seed, run, recipe.settings.iterations)


def _result(method: str, seed: int, run: Run, version: int) -> Result:
    point = evaluation(run.store, version)
    trainings = [run.metrics(Step(i, "train")) for i in range(version)]
    return Result(
        method,
        seed,
        version,
        point.n,
        round(point.score, 4),
        round(point.tokens, 2),
        sum(int(metrics["rows"]) for metrics in trainings),
        sum(int(metrics["steps"]) for metrics in trainings),
    )


def _claims(scores: Scores) -> list[Claim]:
    """The claims, each tested on all seeds."""
    margins = {"base": 0.0, "random": MARGIN_OVER_CONTROLS, "scripted": MARGIN_OVER_CONTROLS}
    ours = {seed: tasks for (method, seed), tasks in scores.items() if method == "isft"}
    return [
        better("isft", ours, other, {seed: scores[other, seed] for seed in ours}, margin)
        for other, margin in margins.items()
    ]


def _write_tasks(path: Path, scores: Scores) -> None:
    """Per-task scores, from which the claims can be computed again."""
    with path.open("w") as file:
        for (method, seed), tasks in scores.items():
            for task, found in sorted(tasks.items()):
                row = {"method": method, "seed": seed, "task": task, **asdict(found)}
                file.write(json.dumps(row) + "\n")


def _table(results: Sequence[Result]) -> Table:
    table = Table(title="held-out results", box=None)
    for title in ("method", "seed", "iteration", "n", "score", "tokens", "rows", "steps"):
        table.add_column(title, justify="left" if title == "method" else "right")
    for r in results:
        cells = (r.seed, r.iteration, r.n, f"{r.score:.3f}", f"{r.tokens:.1f}", r.rows, r.steps)
        table.add_row(r.method, *map(str, cells))
    return table


def _claims_table(claims: Sequence[Claim]) -> Table:
    table = Table(title="claims", box=None)
    for title in ("claim", "holds", "effect", "p", "tried"):
        table.add_column(title)
    for c in claims:
        table.add_row(c.claim, "yes" if c.holds else "NO", f"{c.effect:+.3f}", f"{c.p}", c.tried)
    return table
