"""``coterie sweep``: runs of one recipe over the values of one key, their plan, and what they came to."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.config.plugins import label, settled
from coterie.terminal.console import notes, results
from coterie.terminal.words import Words

if TYPE_CHECKING:
    from coterie.recipes.sweeping import PointResult, Sweep

WIDTH = 120
"""Columns that the tables need."""


def sweep(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Such as moat/maths, or path/file.py:NAME.")
    ],
    words: Words = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of all its runs; default: runs/sweep-RECIPE-KEY.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds: that of the settings, and those after it.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option(help="Print the plan of all runs, with what they share, and stop.")
    ] = False,
) -> None:
    """Run a recipe over several values of one key: an ablation. One KEY=VALUE has its values divided by commas.

    Each run has its own folder, in which it is resumed. A run begins with the stages that an earlier one has done
    under the same settings. Prints a table of held-out scores with 95% intervals and, last, one JSON object. A page
    with the plot is FOLDER/sweep.html.

    Examples:

        coterie sweep moat/maths rollout.samples=2,5,15

        coterie sweep moat/maths correct.critic.model=script,smollm2 --seeds 3

        coterie sweep optima/isft reward.lambda_token=0,0.3,0.6 --folder runs/tokens --dry-run

        coterie sweep dense_tree/tiny budget.tasks=6,12,24,48
    """
    from coterie.recipes.sweeping import plan_sweep, run_sweep
    from coterie.terminal.progress import ConsoleProgress

    recipe, console = settled(recipe), notes()
    folder = folder or _folder(recipe, words or [])
    planned = plan_sweep(recipe, words or [], folder, seeds)
    if dry_run:
        _print_plan(planned, results(WIDTH))
        return
    _print_plan(planned, console)
    found = run_sweep(planned, console.print, ConsoleProgress(console))
    page = folder / "sweep.html"
    _write_page(page, f"coterie sweep {' '.join([recipe, *(words or [])])}", planned, found)
    _print_found(recipe, planned, found, page)


def _write_page(page: Path, command: str, sweep: "Sweep", found: "Sequence[PointResult]") -> None:
    """The scores as a plot and a table."""
    from coterie.reports.sweep import SweepPoint, SweepReport, write_sweep_page

    points = tuple(
        SweepPoint(
            *(one.value, "all" if one.seed is None else f"{one.seed}", one.n),
            *(one.score, one.low, one.high, one.tokens),
        )
        for one in found
    )
    recipe = sweep.points[0].recipe
    title = f"{recipe.title} on {recipe.settings.played}"
    report = SweepReport(title, command, sweep.key, recipe.environment.metric, points)
    write_sweep_page(report, page)


def _print_found(recipe: str, sweep: "Sweep", found: "Sequence[PointResult]", page: Path) -> None:
    """The table, where the plot is, and as the last line one JSON object."""
    out = results(WIDTH)
    out.print(_table(sweep, found))
    out.print(f"plot: {page}", soft_wrap=True)
    rows = [asdict(one) for one in found]
    print(json.dumps({"recipe": recipe, "key": sweep.key, "rows": rows}))


def _folder(recipe: str, words: Sequence[str]) -> Path:
    """Named after the recipe and the key."""
    from coterie.recipes.sweeping import swept

    key, _, _ = swept(words)
    return Path("runs") / f"sweep-{label(recipe).replace('/', '-')}-{key}"


def _print_plan(sweep: "Sweep", out: Console) -> None:
    """What each value costs, and which stages its runs share."""
    values = list(dict.fromkeys(point.value for point in sweep.points))
    first = {point.value: point for point in reversed(sweep.points)}
    lines = {value: dict(first[value].recipe.plan().lines()) for value in values}
    table = Table(title=f"plan of {first[values[0]].recipe.title} over {sweep.key}", box=None)
    table.add_column("one run")
    for value in values:
        table.add_column(value, justify="right", overflow="fold")
    for what in dict.fromkeys(what for some in lines.values() for what in some):
        table.add_row(what, *(lines[value].get(what, "") for value in values))
    out.print(table)
    out.print()
    table = Table(title="runs", box=None)
    for title in ("value", "seed", "stages", "shared", "with", "folder"):
        table.add_column(title, overflow="fold")
    for point in sweep.points:
        source = f"{point.source.value}, seed {point.source.seed}" if point.source else ""
        stages = len(point.recipe.steps())
        cells = (point.seed, stages, len(point.shared), source, point.folder)
        table.add_row(point.value, *map(str, cells))
    out.print(table)


def _table(sweep: "Sweep", rows: "Sequence[PointResult]") -> Table:
    """Held-out scores by value."""
    table = Table(title=f"held-out results over {sweep.key}", box=None)
    for title in ("value", "seed", "iteration", "n", "score", "95% interval", "tokens"):
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row.value,
            "all" if row.seed is None else f"{row.seed}",
            f"{row.iteration}",
            f"{row.n}",
            f"{row.score:.3f}",
            f"{row.low:.3f} to {row.high:.3f}",
            f"{row.tokens:.1f}",
        )
    return table
