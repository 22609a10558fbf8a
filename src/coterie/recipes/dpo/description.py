"""``dpo`` for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


def _settings() -> "tuple[type[RecipeSettings], ...]":
    from coterie.recipes.file_settings import DPOFileSettings

    return (DPOFileSettings,)


def _recipe(settings: "RecipeSettings") -> "Recipe":
    from coterie.recipes.dpo.recipe import DPOOnFile
    from coterie.recipes.file_settings import DPOFileSettings

    assert isinstance(settings, DPOFileSettings), "settings are given to their own recipe"
    return DPOOnFile(settings)


def _report(recipe: "Recipe", run: "Run") -> "RunReport":
    from coterie.recipes.file_report import training_report

    return training_report(recipe, run)


DESCRIPTION = RecipeDescription(
    name="dpo",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
)
