"""The recipe of each method of Optima, by its settings."""

from coterie.errors import UserError
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.optima.settings import METHODS, OptimaSettings
from coterie.recipes.settings import RecipeSettings


def optima(settings: RecipeSettings) -> Optima:
    """The recipe under its settings. Raises ``UserError`` for those of another recipe."""
    if isinstance(settings, OptimaSettings):
        return Optima(settings)
    names = ", ".join(method.recipe for method in METHODS)
    raise UserError(f"{settings.recipe} is not a method of Optima", f"use one of: {names}")
