"""Registry entry of GAP."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    ".settings:TinySettings",
    ".settings:MhqaSettings",
    ".settings:WebSettings",
    ".settings:CodeSettings",
    recipe=".recipe:Gap",
    report=".report:gap_report",
)
