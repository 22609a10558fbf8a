"""Registry entry of SWEET-RL."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    ".settings:SweetSettings",
    recipe=".recipe:SweetRL",
    report=".report:sweet_report",
    critic=".run_critic:sweet_critic",
)
