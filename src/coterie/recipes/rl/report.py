"""What the page of an ``rl`` run shows besides what all runs have: its steps."""

from dataclasses import replace

from coterie.recipes.base import Recipe
from coterie.recipes.plain_report import plain_report
from coterie.recipes.reinforce_report import reinforce_sections
from coterie.reports.data import RunReport
from coterie.runs.folder import Run


def rl_report(recipe: Recipe, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    report = plain_report(recipe, run)
    return replace(report, sections=(*report.sections, *reinforce_sections(run, 0)))
