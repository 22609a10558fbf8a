"""GAP for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


def _settings() -> "tuple[type[RecipeSettings], ...]":
    from coterie.recipes.gap.settings import (
        CodeSettings,
        MhqaSettings,
        TinySettings,
        WebSettings,
    )

    return (TinySettings, MhqaSettings, WebSettings, CodeSettings)


def _recipe(settings: "RecipeSettings") -> "Recipe":
    from coterie.recipes.gap.recipe import Gap
    from coterie.recipes.gap.settings import GapSettings

    assert isinstance(settings, GapSettings), "settings are given to their own recipe"
    return Gap(settings)


def _report(recipe: "Recipe", run: "Run") -> "RunReport":
    from coterie.recipes.gap.report import gap_report

    return gap_report(recipe, run)


DESCRIPTION = RecipeDescription(
    name="gap",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
)
