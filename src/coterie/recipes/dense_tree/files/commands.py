"""``coterie export dense_tree`` and ``coterie import dense_tree``.

What the commands need is imported when they are called: every ``coterie --help`` reads this module.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.errors import UserError
from coterie.terminal.console import notes
from coterie.terminal.progress import ConsoleProgress
from coterie.terminal.words import Words

if TYPE_CHECKING:
    from coterie.recipes.dense_tree.recipe import DenseTree
    from coterie.recipes.settings import RecipeSettings


def export_files(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    iteration: Annotated[
        int | None, typer.Option(help="Which iteration; default: the last one that has pairs.")
    ] = None,
) -> None:
    """Write an iteration's selected pairs for DensePolicy's released code and LLaMA-Factory (`pairs.json` and
    `dataset_info.json`), and for TRL (`preferences.jsonl`).

    Outside sets (`mix.sets`) are not in the files.

    Example:

        coterie export dense_tree runs/dense --out files
    """
    from coterie.recipes.dense_tree.files.exporting import export_run
    from coterie.recipes.recorded_run import recorded_run

    with recorded_run(folder, _dense_tree) as (own, run):
        selects = [step for step in own.steps() if step.stage == "select" and run.is_finished(step)]
        last = max((step.iteration for step in selects), default=0)
        done = export_run(own, run, out, last if iteration is None else iteration)
    console = notes()
    console.print(f"pairs: {done.pairs:,}")
    if done.left_out:
        console.print(f"left out, for their sides say nothing different: {done.left_out:,} pairs")
    for path in done.files:
        print(path)


def import_files(
    file: Annotated[
        Path, typer.Argument(help="*tree_pairs_result.csv, merged_all_pairs_*.csv, training JSON.")
    ],
    folder: Annotated[Path, typer.Option(help="Run folder to make.")],
    words: Words = None,
    recipe: Annotated[str, typer.Option(help="Recipe of the run.")] = "dense_tree/math",
) -> None:
    """Make a run of pairs of DensePolicy's released code, to train on.

    The selected pairs become those of iteration 0, so that training comes next. Pairs of tasks that the run holds
    out are left out and counted: the original sampled its trees on tasks that it evaluates. A broken line is named, and
    nothing is made.

    Examples:

        coterie import dense_tree math.merge.csvmc_value_8_0.5_tree_pairs_result.csv --folder runs/theirs
        dataset.source=sample

        coterie import dense_tree Tree_DPO.json --folder runs/babyai --recipe dense_tree/babyai model=MODEL
    """
    from coterie.config.folders import check_new_folder
    from coterie.recipes.dense_tree.files.importing import import_pairs
    from coterie.recipes.importing import ImportNotes
    from coterie.recipes.line_files import NEW
    from coterie.recipes.registry import settings

    check_new_folder(folder, NEW)
    own = _dense_tree(settings(recipe, words or []))
    console = notes()
    done = import_pairs(file, own, folder, ConsoleProgress(console))
    said = ImportNotes(console, folder, own.name)
    said.say(f"pairs: {done.pairs:,}, tasks: {done.tasks:,}")
    said.left_out("not selected in the file", done.not_selected)
    said.left_out("left out, for their tasks are held out in this run", done.held_out)
    said.go_on("train")
    print(folder)


def _dense_tree(settings: "RecipeSettings") -> "DenseTree":
    """The recipe; ``UserError`` for settings of another one."""
    from coterie.recipes.dense_tree.recipe import DenseTree
    from coterie.recipes.dense_tree.settings import DenseTreeSettings

    if not isinstance(settings, DenseTreeSettings):
        raise UserError(
            f"this is a run of {settings.recipe}, not of dense_tree",
            "`coterie export RUN FILE` writes any run",
        )
    return DenseTree(settings)
