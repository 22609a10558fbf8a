"""Registry entry of Optima."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    ".settings:OptimaSettings",
    ".settings:IDPOSettings",
    ".settings:ISFTDPOSettings",
    recipe=".recipe:Optima",
    report=".report:optima_report",
    quickstart="optima/isft",
)
