"""GAP for the commands."""

from typing import TYPE_CHECKING

from coterie.recipes.description import RecipeDescription
from coterie.recipes.gap.files.commands import export_files, import_files

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.description import Gate, Reproduce
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


def _claims() -> "Reproduce":
    from coterie.recipes.gap.claims import reproduce

    return reproduce


def _gate() -> "Gate":
    from coterie.recipes.gap.gate import gate

    return gate


def _rl_claims() -> "Reproduce":
    from coterie.recipes.gap.rl_claims import reproduce

    return reproduce


def _rl_gate() -> "Gate":
    from coterie.recipes.gap.rl_gate import gate

    return gate


DESCRIPTION = RecipeDescription(
    name="gap",
    package=__name__.rpartition(".")[0],
    settings=_settings,
    recipe=_recipe,
    report=_report,
    claims={"gap": _rl_claims, "gap-sft": _claims},
    gates={"gap": _rl_gate, "gap-sft": _gate},
    export_files=export_files,
    import_files=import_files,
)
