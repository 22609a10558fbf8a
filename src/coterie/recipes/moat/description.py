"""Registry entry of MOAT."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    ".settings:MathsSettings",
    ".settings:ComplexQASettings",
    ".settings:WebSettings",
    recipe=".recipe:Moat",
    report=".report:moat_report",
)
