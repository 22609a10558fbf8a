"""``coterie sweep`` and ``coterie merge``: run over values of keys, and merge the parts of a run."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.table import Table

from coterie.config.plugins import label
from coterie.terminal import Overrides, notes, results

if TYPE_CHECKING:
    from coterie.recipes.sweep import Point, SweepRow
    from coterie.record.browse import Fields

WIDTH = 120
"""Width of the tables in columns."""


def sweep(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Such as moat/maths, or path/file.py:NAME.")
    ],
    overrides: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of all runs; default: runs/sweep-RECIPE-KEY.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds, counted up from the seed of the settings.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option(help="Print the plan of all runs and their shared stages, and stop.")
    ] = False,
) -> None:
    """Run a recipe over all combinations of values of some keys. Commas separate the values of a key.

    Each run has its own folder and can be resumed. A run reuses stages of an earlier run with the same settings.
    Prints a table of held-out scores with 95% intervals and, last, one JSON object. The page with the plot is
    FOLDER/sweep.html.

    Examples:

        coterie sweep moat/maths correct.critic.model=script,smollm2 --seeds 3

        coterie sweep optima/isft reward.lambda_token=0,0.3,0.6 train.learning_rate=1e-6,1e-5 --dry-run
    """
    from coterie.cli.arguments import read_arguments
    from coterie.cli.report import write_report, write_tables
    from coterie.recipes.sweep import plan_sweep, run_sweep, split_overrides
    from coterie.runs.loop import command_line
    from coterie.terminal import ConsoleProgress

    arguments, console = read_arguments(recipe, overrides or [], None), notes()
    recipe, overrides = arguments.recipe, list(arguments.overrides)
    # The names of the keys with several values.
    key = ",".join(split_overrides(overrides)[0])
    folder = folder or Path("runs") / f"sweep-{label(recipe)}-{key}".translate(
        str.maketrans("/,", "--")
    )
    points = plan_sweep(recipe, overrides, folder, seeds)
    first_recipe = points[0].recipe
    # The plan is the result of a dry run, but only a note before the runs of a sweep.
    out = results(WIDTH) if dry_run else console
    out.print(_costs(key, points), "", _runs(points))
    if dry_run:
        return
    rows = run_sweep(points, console.print, ConsoleProgress(console), write_report)
    title = f"{first_recipe.title} on {first_recipe.settings.benchmark} over {key}"
    section = sweep_section(key, first_recipe.environment.metric, rows)
    write_tables(title, command_line(sys.argv), [section], folder / "sweep.html")
    out = results(WIDTH)
    table = Table(title=f"held-out results over {key}", box=None)
    for head in section["heads"]:
        table.add_column(head, justify="right", overflow="fold")
    for cells in section["rows"]:
        # A terminal shows the text of a link.
        table.add_row(*(cell["text"] if isinstance(cell, dict) else cell for cell in cells))
    out.print(table)
    out.print(f"plot: {folder / 'sweep.html'}", soft_wrap=True)
    print(json.dumps({"recipe": recipe, "key": key, "rows": list(map(asdict, rows))}))


def sweep_section(key: str, metric: str, rows: "Sequence[SweepRow]") -> "Fields":
    """Return the held-out losses, or scores, by value, as a table and a chart. Seeds of a value are one point."""
    from coterie.reports.sections import chart, line, section

    # With several seeds, only their means are plotted.
    plot_rows = [row for row in rows if row.seed is None] or rows
    has_loss = all(row.loss is not None for row in rows)
    compared = "held-out loss" if has_loss else metric
    series = [line(compared, map(_compared, plot_rows))]
    together = "" if plot_rows == rows else ", all seeds together"
    score = ("n", "score")
    measured = ("loss", "95% interval", *score) if has_loss else (*score, "95% interval")
    return section(
        "scores",
        "Held-out losses" if has_loss else "Scores on held-out tasks",
        f"Intervals are 95% intervals over {'rows' if has_loss else 'tasks'}{together}."
        + f" The score ({metric}) is of the replies to n prompts." * has_loss,
        (key, "seed", "iteration", *measured, "tokens", "run"),
        map(_cells, rows),
        [chart(f"{compared} over {key}", key, [row.value for row in plot_rows], series)],
    )


def _compared(row: "SweepRow") -> tuple[float, float, float]:
    """Return what runs are compared by, with its interval: the held-out loss if there is one, else the score."""
    if row.loss is None or row.loss_low is None or row.loss_high is None:
        return row.score, row.low, row.high
    return row.loss, row.loss_low, row.loss_high


def _cells(row: "SweepRow") -> tuple[object, ...]:
    seed, name = "all" if row.seed is None else f"{row.seed}", Path(row.folder).name
    value, low, high = _compared(row)
    interval, score = f"{low:.3f} to {high:.3f}", (f"{row.n:,}", f"{row.score:.3f}")
    measured = (*score, interval) if row.loss is None else (f"{value:.3f}", interval, *score)
    # The page of the sweep is beside the folders of its runs.
    link = {"text": name, "href": f"{quote(name)}/report.html"} if name else ""
    return (row.value, seed, f"{row.iteration}", *measured, f"{row.tokens:.1f}", link)


def _costs(key: str, points: "Sequence[Point]") -> Table:
    """Return a table of the costs of one run at each value."""
    # The plan of a value's first seed, because the others cost the same.
    lines = {point.value: dict(point.recipe.plan().lines()) for point in reversed(points)}
    values = list(dict.fromkeys(point.value for point in points))
    table = Table(title=f"plan of {points[0].recipe.title} over {key}", box=None)
    table.add_column("one run")
    for value in values:
        table.add_column(value, justify="right", overflow="fold")
    for name in dict.fromkeys(name for value in values for name in lines[value]):
        table.add_row(name, *(lines[value].get(name, "") for value in values))
    return table


def _runs(points: "Sequence[Point]") -> Table:
    """Return a table of the runs and the stages that they share."""
    table = Table(title="runs", box=None)
    for title in ("value", "seed", "stages", "shared", "with", "folder"):
        table.add_column(title, overflow="fold")
    for point in points:
        source = f"{point.source.value}, seed {point.source.seed}" if point.source else ""
        counts = (len(point.recipe.stage_keys()), len(point.shared))
        cells = (point.seed, *counts, source, point.folder)
        table.add_row(point.value, *map(str, cells))
    return table


def merge(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, at least two.")
    ],
    folder: Annotated[Path, typer.Option(help="New folder for the merged run.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Allow missing parts; the merged run samples them.")
    ] = False,
) -> None:
    """Merge the parts of a run that several machines have sampled. Does not change the parts.

    Parts have the same settings except rollout.shard=[0,3], [1,3] and [2,3], and finished rollouts. The merged run
    equals a run on a single machine: it selects from the tasks of all parts. `coterie run` continues it.

    Examples:

        coterie merge runs/part-0 runs/part-2 --folder runs/whole --partial
    """
    from coterie.recipes.sweep import merge as merge_parts
    from coterie.terminal import ConsoleProgress

    console = notes()
    progress = ConsoleProgress(console)
    recipe, tasks, missing = merge_parts(runs, folder, console.print, progress, partial=partial)
    console.print(f"{tasks} tasks of {len(runs)} runs are in {folder}")
    if missing:
        parts = ", ".join(map(str, missing))
        console.print(f"the tasks of part {parts} are missing; the merged run samples them")
    print(f"coterie run {recipe} --folder {folder}")
