"""Recipes from plug-ins: a ``Recipe`` subclass or a description from a file, a module or an entry point."""

from functools import cache
from typing import TYPE_CHECKING

from coterie.config.plugins import Kind, Plugin, find, is_spec
from coterie.errors import UserError
from coterie.recipes.description import RecipeDescription

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.reports.page import Report
    from coterie.runs.folder import Run


@cache
def plugin(kind: Kind, name: str) -> RecipeDescription:
    """Return the description of a plug-in, or make one for its class.

    Raises ``UserError`` for an object that is not a recipe, and for a recipe with missing methods.
    """
    located = find(kind, name)
    if isinstance(located.thing, RecipeDescription):
        if is_spec(name):
            raise UserError(
                f"{located} is a description, which has several methods",
                "name the class of a recipe, or register the description as an entry point of coterie.recipes",
            )
        return located.thing
    from coterie.recipes.base import Recipe

    if not (isinstance(located.thing, type) and issubclass(located.thing, Recipe)):
        raise UserError(
            f"{located} is not a recipe",
            "derive a class from coterie.recipes.base.Recipe, or give a RecipeDescription",
        )
    missing = sorted(located.thing.__abstractmethods__)
    if missing:
        raise UserError(f"{located} has no {', '.join(missing)}", "define it")
    own = _settings(located)
    return RecipeDescription(located.name, "", lambda: (own,), located.thing, _report)


def _settings(located: Plugin) -> "type[RecipeSettings]":
    """Return the settings of a recipe class, with the plug-in's name as the name of the method."""
    from pydantic import create_model

    from coterie.config.plugins import settings_type_of
    from coterie.recipes.settings import RecipeSettings

    own = settings_type_of(located, RecipeSettings)
    settings: type[RecipeSettings] = create_model(
        own.__name__, __base__=own, __module__=own.__module__
    )
    settings.recipe = located.name
    return settings


def _report(recipe: "Recipe", run: "Run") -> "Report":
    from coterie.recipes.plain_report import plain_report

    return plain_report(recipe, run)
