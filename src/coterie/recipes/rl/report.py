"""What the page of an ``rl`` run shows besides what all runs have: its steps."""

from coterie.recipes.base import Recipe
from coterie.recipes.plain_report import plain_report
from coterie.recipes.reinforce_report import with_steps
from coterie.reports.data import RunReport
from coterie.runs.folder import Run


def rl_report(recipe: Recipe, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    return with_steps(plain_report(recipe, run), run, 0)
