"""DensePolicy for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.data import RunReport
    from coterie.runs.folder import Run


def _settings() -> "tuple[type[RecipeSettings], ...]":
    from coterie.recipes.dense_tree.settings import (
        BabyAISettings,
        GSM8KSettings,
        MathSettings,
        TinySettings,
    )

    return (TinySettings, GSM8KSettings, MathSettings, BabyAISettings)


def _recipe(settings: "RecipeSettings") -> "Recipe":
    from coterie.recipes.dense_tree.recipe import DenseTree
    from coterie.recipes.dense_tree.settings import DenseTreeSettings

    assert isinstance(settings, DenseTreeSettings), "settings are given to their own recipe"
    return DenseTree(settings)


def _report(recipe: "Recipe", run: "Run") -> "RunReport":
    from coterie.recipes.dense_tree.recipe import DenseTree
    from coterie.recipes.dense_tree.report import dense_tree_report

    assert isinstance(recipe, DenseTree), "a run is reported by its own recipe"
    return dense_tree_report(recipe, run)


DESCRIPTION = RecipeDescription(
    name="dense_tree",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
)
