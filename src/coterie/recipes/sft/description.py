"""Registry entry of ``sft``."""

from coterie.recipes.description import describe

DESCRIPTION = describe(
    __name__.rpartition(".")[0],
    "coterie.recipes.file_settings:SFTFileSettings",
    recipe=".recipe:SFTOnFile",
    report="coterie.recipes.file_report:training_report",
)
