"""What ``coterie run``, the stage commands and ``coterie report`` do."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from coterie.cli.given import stored_settings
from coterie.config.plugins import absolute_name, label
from coterie.errors import UserError, nearest
from coterie.models.loading import load_renderer
from coterie.recipes.base import Recipe
from coterie.recipes.recorded_run import recorded_run
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import run_report, settings
from coterie.recipes.settings import RecipeSettings
from coterie.reports.page import write_page
from coterie.runs.evaluation_results import evaluation
from coterie.runs.folder import Run, Step, open_run, read_config
from coterie.runs.loop import check_finished, fork, run_steps
from coterie.terminal import ConsoleProgress, beside, in_words, means_table, share


def run_recipe(
    own: RecipeSettings,
    folder: Path,
    console: Console,
    *,
    fork_to: Path | None = None,
) -> None:
    """Check, print the plan, then run (or resume) all steps and write the report."""
    recipe = recipe_of(own)
    console.print(plan_table(recipe))
    if fork_to is not None:
        kept = fork(recipe, folder, fork_to, recipe.settings)
        console.print(f"kept from {folder}: {', '.join(map(str, kept)) or 'nothing'}")
        folder = fork_to
    with open_run(folder, own.recipe, own) as run:
        run_all(recipe, run, console)
        console.print(*summary(recipe, run), sep="\n")
        print(run.report)


def run_all(recipe: Recipe, run: Run, console: Console) -> None:
    """Every step that is left; the report is written after each."""
    began = time.monotonic()
    with _reported(recipe, run):
        run_steps(recipe, run, ConsoleProgress(console), after=lambda: _report(recipe, run))
    console.print(f"finished in {time.monotonic() - began:.0f} s; report: {run.report}")


def run_stage(
    stage: str,
    folder: Path,
    words: Sequence[str],
    name: str,
    iteration: int | None,
    console: Console,
) -> None:
    name = absolute_name(name)
    if (folder / "config.yaml").is_file():
        name = read_config(folder)[0]
    recipe = recipe_of(settings(name, words, stored_settings(name, folder)))
    recipe.check()
    if not folder.exists() and recipe.at(_step(recipe, stage, iteration)).after:
        raise UserError(
            f"there is no run folder {folder}, and {stage} needs one{_near(folder)}",
            f"make one with: coterie run {name} --folder {folder}",
        )
    if not (folder / "config.yaml").is_file():
        console.print(f"{folder} is not there yet: a new run of {name}")
    with open_run(folder, name, recipe.settings) as run:
        step = _wanted(recipe, run, stage, iteration)
        with _reported(recipe, run):
            run_steps(recipe, run, ConsoleProgress(console), [step])
        facts = {k: v for k, v in run.metrics(step).items() if k != "settings"}
        print(f"{step}: " + ", ".join(f"{name}={value}" for name, value in facts.items()))


def write_report(folder: Path) -> Path:
    with recorded_run(folder, recipe_of) as (recipe, run):
        _report(recipe, run)
        return run.report


def _report(recipe: Recipe, run: Run) -> None:
    write_page(run_report(recipe, run), run.report)


@contextmanager
def _reported(recipe: Recipe, run: Run) -> Iterator[None]:
    """The report is there at the end, also of a run that was stopped: errors point to it.

    Settings that the run refuses leave its report as it is.
    """
    check_finished(recipe, run)
    try:
        yield
    except BaseException:
        with suppress(OSError, UserError):  # the disk may be what failed, and is named already
            _report(recipe, run)
        raise
    _report(recipe, run)


def summary(recipe: Recipe, run: Run) -> list[Table]:
    """Score and tokens by policy, and what else was measured."""
    table = Table(title=f"{recipe.title} on {recipe.settings.played}", box=None)
    done = [step for step in recipe.steps() if step.stage == "evaluate" and run.is_finished(step)]
    points = [evaluation(run.store, step.iteration) for step in done]
    labels = [f"{point.version}" if point.version else "base" for point in points]
    means = [point.means for point in points]
    names = beside(means)
    for title in ("policy", "score", "95% interval", "tokens", *map(in_words, names), "n"):
        table.add_column(title, justify="right")
    for policy, point in zip(labels, points, strict=True):
        table.add_row(
            policy,
            f"{point.score:.3f}",
            f"{point.low:.3f} to {point.high:.3f}",
            f"{point.tokens:.1f}",
            *(share(point.means, name) for name in names),
            f"{point.n}",
        )
    measured = [
        step for step in recipe.steps() if step.stage == "measure" and run.is_finished(step)
    ]
    if measured:
        return [table, _measures(run, measured)]
    more = means_table([f"policy {one}" if one.isdigit() else one for one in labels], means)
    return [table] if more is None else [table, more]


def _measures(run: Run, steps: Sequence[Step]) -> Table:
    """Return what was measured on held-out rows, a column for each policy."""
    table = Table(
        "held-out rows",
        *(f"policy {s.iteration}" if s.iteration else "base" for s in steps),
        box=None,
    )
    found = [run.metrics(step) for step in steps]
    for name in found[0]:
        if name not in ("settings", "seconds"):
            table.add_row(name, *(f"{float(one[name]):.4g}" for one in found))
    return table


def _wanted(recipe: Recipe, run: Run, stage: str, iteration: int | None) -> Step:
    if iteration is not None:
        return _step(recipe, stage, iteration)
    first = _step(recipe, stage, None)
    steps = [step for step in recipe.steps() if step.stage == first.stage]
    return next((step for step in steps if not run.is_finished(step)), steps[-1])


def _step(recipe: Recipe, stage: str, iteration: int | None) -> Step:
    names = dict.fromkeys(step.stage for step in recipe.steps())
    if stage not in names:
        raise UserError(f"{recipe.name} has no stage {stage!r}", f"use one of: {', '.join(names)}")
    steps = [step for step in recipe.steps() if step.stage == stage]
    for step in steps:
        if iteration in (None, step.iteration):
            return step
    raise UserError(
        f"--iteration {iteration} is out of range",
        f"{stage} has the iterations {', '.join(str(step.iteration) for step in steps)}",
    )


def _near(folder: Path) -> str:
    runs = [config.parent for config in folder.parent.glob("*/config.yaml")]
    near = nearest(folder.name, [run.name for run in runs])
    return f" (did you mean {folder.with_name(near)}?)" if near else ""


def plan_table(recipe: Recipe) -> Table:
    table = Table(title=f"plan of {recipe.title}", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for what, how_much in (*recipe.plan().lines(), *_tool_lines(recipe)):
        table.add_row(what, how_much)
    return table


def _tool_lines(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The tools that a run gives its agents, and how each role's model writes calls."""
    tools = recipe.settings.tools
    if tools.use:
        yield "tools", ", ".join(map(label, tools.use))
        for role in recipe.roles():
            syntax = load_renderer(role.model, recipe.settings.engine.template_args)[0].tools.syntax
            native = tools.calls == "native" and syntax is not None
            yield f"calls of {role.name}", syntax.name if native and syntax else "tags"
