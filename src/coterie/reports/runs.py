"""The report of any run, by its recipe."""

from coterie.recipes.base import PolicyRecipe
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.sweet_rl.recipe import SweetRL
from coterie.reports.data import RunReport
from coterie.reports.optima import optima_report
from coterie.reports.sweet import sweet_report
from coterie.runs.folder import Run


def run_report(recipe: PolicyRecipe, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    if isinstance(recipe, SweetRL):
        return sweet_report(recipe, run)
    assert isinstance(recipe, Optima), "a recipe has its report above"
    return optima_report(recipe, run)
