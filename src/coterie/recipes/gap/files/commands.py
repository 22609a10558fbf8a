"""``coterie export gap`` and ``coterie import gap``.

What the commands need is imported when they are called: every ``coterie --help`` reads this module.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.errors import UserError
from coterie.terminal.console import notes
from coterie.terminal.words import Words

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


def import_files(
    traces: Annotated[
        Path,
        typer.Argument(
            help="A file of traces that search for one thing after the other (SFT JSON)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The JSON file to write, for `traces=FILE`.")],
    words: Words = None,
) -> None:
    """Have a chat model rewrite sequential traces as parallel plans, as GAP's data was made.

    Replies are checked: the plan can be read and has no cycle, queries, results and answer are those of the original,
    no call is made before its turn, and nothing is said before it is known. A reply that fails is asked for again
    with the reason. Rows without a sound rewriting keep their trace, and are counted by the reason
    (`conversion_status`). A command that was cut goes on.

    Examples:

        coterie import gap sequential.json --out parallel.json model=gpt-4o url=https://api.openai.com/v1
        key_variable=OPENAI_API_KEY

        coterie import gap sequential.json --out parallel.json model=Qwen/Qwen2.5-7B-Instruct tries=5
    """
    from coterie.recipes.gap.files.rewriting_command import rewrite

    print(rewrite(traces, out, words or [], notes()))


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
