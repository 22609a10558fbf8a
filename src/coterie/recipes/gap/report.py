"""What the page of a ``gap`` run shows besides what all runs have: the traces, and why some are not learned from."""

from dataclasses import replace

from coterie.recipes.base import Recipe
from coterie.recipes.gap.data import LEFT_OUT, WITHOUT
from coterie.recipes.plain_report import plain_report
from coterie.recipes.reinforce_report import with_steps
from coterie.reports.data import RunReport
from coterie.reports.sections import Section
from coterie.runs.folder import Run, Step


def gap_report(recipe: Recipe, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    report = plain_report(recipe, run)
    traces = _traces(run)
    own = (traces,) if traces.rows else ()
    report = replace(report, sections=(*report.sections, *own))
    for iteration in (0, 1):
        report = with_steps(report, run, iteration)
    return report


def _traces(run: Run) -> Section:
    found = [
        run.metrics(step)
        for step in (Step(0, "rollout"), Step(0, "select"), Step(0, "train"))
        if run.is_finished(step)
    ]
    rows = [("written", str(found[0].get("n", 0)))] if found else []
    for metrics in found:
        rows += [
            (name, str(value))
            for name, value in metrics.items()
            if name.startswith((WITHOUT, LEFT_OUT)) or name in ("selected", "dropped")
        ]
    return Section(
        "traces",
        "Traces",
        "Trajectories that the policy learns from. Those that are dropped are too long.",
        ("what", "traces"),
        tuple(rows),
    )
