"""Registry entry of reinforcement learning."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    ".settings:GrpoSettings",
    ".settings:DapoSettings",
    ".settings:PpoSettings",
    recipe=".recipe:Reinforce",
    report=".report:rl_report",
)
