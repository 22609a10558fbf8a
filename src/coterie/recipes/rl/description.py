"""Reinforcement learning for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


def _settings() -> "tuple[type[RecipeSettings], ...]":
    from coterie.recipes.rl.settings import DapoSettings, GrpoSettings, PpoSettings

    return (GrpoSettings, DapoSettings, PpoSettings)


def _recipe(settings: "RecipeSettings") -> "Recipe":
    from coterie.recipes.rl.recipe import Reinforce
    from coterie.recipes.rl.settings import GrpoSettings

    assert isinstance(settings, GrpoSettings), "settings are given to their own recipe"
    return Reinforce(settings)


def _report(recipe: "Recipe", run: "Run") -> "RunReport":
    from coterie.recipes.rl.report import rl_report

    return rl_report(recipe, run)


DESCRIPTION = RecipeDescription(
    name="rl",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
)
