"""Registry entry of DensePolicy."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    ".settings:TinySettings",
    ".settings:GSM8KSettings",
    ".settings:MathSettings",
    ".settings:BabyAISettings",
    recipe=".recipe:DenseTree",
    report=".report:dense_tree_report",
)
