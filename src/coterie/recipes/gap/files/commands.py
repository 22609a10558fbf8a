"""``coterie export gap``. What it needs is imported when it is called: every ``coterie --help`` reads this module."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.errors import UserError
from coterie.terminal.console import notes

if TYPE_CHECKING:
    from coterie.recipes.gap.recipe import Gap
    from coterie.recipes.settings import RecipeSettings


def export_files(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
) -> None:
    """Write the traces that a run learns from for GAP's released code and LLaMA-Factory (`sft.json` and
    `dataset_info.json`), and its training questions (`prompts.parquet`).

    `coterie run gap/mhqa traces=FILE` learns from such a file.

    Example:

        coterie export gap runs/gap --out files
    """
    from coterie.recipes.gap.files.exporting import export_run
    from coterie.recipes.recorded_run import recorded_run

    with recorded_run(folder, _gap) as (own, run):
        done = export_run(own, run, out)
    console = notes()
    console.print(f"traces: {done.traces:,}, questions: {done.prompts:,}")
    for path in done.files:
        print(path)


def _gap(settings: "RecipeSettings") -> "Gap":
    """The recipe; ``UserError`` for settings of another one."""
    from coterie.recipes.gap.recipe import Gap
    from coterie.recipes.gap.settings import GapSettings

    if not isinstance(settings, GapSettings):
        raise UserError(
            f"this is a run of {settings.recipe}, not of gap",
            "`coterie export RUN FILE` writes any run",
        )
    return Gap(settings)
