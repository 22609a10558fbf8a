"""Recipes that are plug-ins: a ``Recipe`` subclass, or a description, of a file, a module or an entry point."""

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
    """What a plug-in says of itself, or what can be said of its class.

    Raises ``UserError`` for what is not a recipe, and for one that lacks something.
    """
    found = find(kind, name)
    if isinstance(found.thing, RecipeDescription):
        if is_spec(name):
            raise UserError(
                f"{found} is a description, whose methods have names of their own",
                "name the class of a recipe, or give the description to an entry point of coterie.recipes",
            )
        return found.thing
    from coterie.recipes.base import Recipe

    if not (isinstance(found.thing, type) and issubclass(found.thing, Recipe)):
        raise UserError(
            f"{found} is not a recipe",
            "derive a class from coterie.recipes.base.Recipe, or give a RecipeDescription",
        )
    lacking = sorted(found.thing.__abstractmethods__)
    if lacking:
        raise UserError(f"{found} has no {', '.join(lacking)}", "add what is missing")
    own = _settings(found)
    return RecipeDescription(found.name, "", lambda: (own,), found.thing, _report)


def _settings(found: Plugin) -> "type[RecipeSettings]":
    """The settings of a class, as those of a method that is called by the plug-in's name."""
    from pydantic import create_model

    from coterie.config.construct import settings_type_of
    from coterie.recipes.settings import RecipeSettings

    own = settings_type_of(found, RecipeSettings)
    made: type[RecipeSettings] = create_model(own.__name__, __base__=own, __module__=own.__module__)
    made.recipe = found.name
    return made


def _report(recipe: "Recipe", run: "Run") -> "Report":
    from coterie.recipes.plain_report import plain_report

    return plain_report(recipe, run)
