"""SWEET-RL for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.description import RunCritic
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


def _settings() -> "tuple[type[RecipeSettings], ...]":
    from coterie.recipes.sweet_rl.settings import SweetSettings

    return (SweetSettings,)


def _recipe(settings: "RecipeSettings") -> "Recipe":
    from coterie.recipes.sweet_rl.recipe import SweetRL
    from coterie.recipes.sweet_rl.settings import SweetSettings

    assert isinstance(settings, SweetSettings), "settings are given to their own recipe"
    return SweetRL(settings)


def _report(recipe: "Recipe", run: "Run") -> "RunReport":
    from coterie.recipes.sweet_rl.recipe import SweetRL
    from coterie.recipes.sweet_rl.report import sweet_report

    assert isinstance(recipe, SweetRL), "a recipe is asked for by its own description"
    return sweet_report(recipe, run)


def _critic(recipe: "Recipe") -> "RunCritic | None":
    from coterie.recipes.sweet_rl.recipe import SweetRL
    from coterie.recipes.sweet_rl.run_critic import SweetCritic

    assert isinstance(recipe, SweetRL), "a recipe is asked for by its own description"
    return SweetCritic(recipe) if recipe.settings.method == "sweet" else None


DESCRIPTION = RecipeDescription(
    name="sweet_rl",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
    critic=_critic,
)
