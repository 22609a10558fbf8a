"""MOAT for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


def _settings() -> "tuple[type[RecipeSettings], ...]":
    from coterie.recipes.moat.settings import ComplexQASettings, MathsSettings, WebSettings

    return (MathsSettings, ComplexQASettings, WebSettings)


def _recipe(settings: "RecipeSettings") -> "Recipe":
    from coterie.recipes.moat.recipe import Moat
    from coterie.recipes.moat.settings import MoatSettings

    assert isinstance(settings, MoatSettings), "settings are given to their own recipe"
    return Moat(settings)


def _report(recipe: "Recipe", run: "Run") -> "RunReport":
    from coterie.recipes.moat.recipe import Moat
    from coterie.recipes.moat.report import moat_report

    assert isinstance(recipe, Moat), "a run is reported by its own recipe"
    return moat_report(recipe, run)


DESCRIPTION = RecipeDescription(
    name="moat",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
)
