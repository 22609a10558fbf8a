"""Optima for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


def _settings() -> "tuple[type[RecipeSettings], ...]":
    from coterie.recipes.optima.settings import METHODS

    return METHODS


def _recipe(settings: "RecipeSettings") -> "Recipe":
    from coterie.recipes.optima.methods import optima

    return optima(settings)


def _report(recipe: "Recipe", run: "Run") -> "RunReport":
    from coterie.recipes.optima.recipe import Optima
    from coterie.recipes.optima.report import optima_report

    assert isinstance(recipe, Optima), "a recipe is asked for by its own description"
    return optima_report(recipe, run)


DESCRIPTION = RecipeDescription(
    name="optima",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
    quickstart="optima/isft",
)
