"""Report of an ``rl`` run: its steps and groups."""

from coterie.recipes.plain_report import plain_report
from coterie.recipes.reinforce_report import step_sections
from coterie.recipes.rl.recipe import Reinforce
from coterie.reports.page import Report
from coterie.runs.folder import Run


def rl_report(recipe: Reinforce, run: Run) -> Report:
    """Return the report of a run, finished or not."""
    return plain_report(recipe, run, step_sections(recipe, recipe.settings, run, 0))
