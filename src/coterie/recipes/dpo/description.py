"""Registry entry of ``dpo``."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    "coterie.recipes.file_settings:DPOFileSettings",
    recipe=".recipe:DPOOnFile",
    report="coterie.recipes.file_report:training_report",
)
