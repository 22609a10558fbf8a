"""``coterie export optima`` and ``coterie import optima``.

What the commands need is imported when they are called: every ``coterie --help`` reads this module.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.errors import UserError
from coterie.terminal.console import notes
from coterie.terminal.progress import ConsoleProgress
from coterie.terminal.words import Words

if TYPE_CHECKING:
    from coterie.recipes.optima.files.records import Lines


class OptimaFileKind(StrEnum):
    """What a file of Optima's released code holds."""

    raw = "raw"
    rewarded = "rewarded"
    dpo = "dpo"


def export_files(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    iteration: Annotated[
        int | None, typer.Option(help="Which iteration; default: all that are sampled.", min=0)
    ] = None,
) -> None:
    """Write a run's dialogues, rewards and pairs as the files of Optima's released code.

    The files hold right answers, as the originals do.

    Examples:

        coterie export optima runs/optima-isft --out files

        coterie export optima runs/optima-isft --out files --iteration 0
    """
    from coterie.recipes.optima.files.exporting import export_run
    from coterie.recipes.optima.methods import optima
    from coterie.recipes.recorded_run import recorded_run

    with recorded_run(folder, optima) as (own, run):
        for path in export_run(own, run, out, iteration):
            print(path)


def import_files(
    file: Annotated[Path, typer.Argument(help="A raw, rewarded, cleaned or *_dpo_format file.")],
    folder: Annotated[Path, typer.Option(help="Run folder to make.")],
    words: Words = None,
    kind: Annotated[
        OptimaFileKind | None,
        typer.Option(help="What the file holds; default: what its first line says."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="Recipe of the run.")] = "optima/isft",
) -> None:
    """Make a run of a file of Optima's released code, to go on from.

    Dialogues become the rollouts of iteration 0, rewards their rewards. A broken line is named by its
    number, and nothing is made.

    Examples:

        coterie import optima rewarded_iteration_0.jsonl --folder runs/theirs model=smollm2

        coterie import optima rewarded_iteration_0.jsonl --folder runs/anew --kind raw

        coterie import optima iteration_1_dpo_format.jsonl --folder runs/pairs dataset=hotpot_qa
    """
    from coterie.config.folders import check_new_folder
    from coterie.recipes.line_files import NEW
    from coterie.recipes.optima.files.records import Lines

    check_new_folder(folder, NEW)
    lines = Lines(file)
    found = kind.value if kind else lines.kind()
    if found == "dpo":
        _import_pairs(lines, folder, words or [], recipe)
    else:
        _import_dialogues(lines, folder, words or [], recipe, rewarded=found == "rewarded")
    print(folder)


def _import_dialogues(
    lines: "Lines", folder: Path, words: list[str], name: str, *, rewarded: bool
) -> None:
    from coterie.environments.registry import task_word
    from coterie.recipes.importing import ImportNotes
    from coterie.recipes.optima.files.importing import import_dialogues, survey
    from coterie.recipes.optima.methods import optima
    from coterie.recipes.registry import settings

    found = survey(lines, rewarded=rewarded)
    _check_dataset(lines.path, found.dataset, words)
    sizes = [f"rollout.tasks={found.tasks}", f"rollout.samples={found.samples}"]
    known = [task_word(found.dataset)] if found.dataset else []
    own = optima(settings(name, [*known, *sizes, *words]))
    console = notes()
    progress = ConsoleProgress(console)
    done = import_dialogues(lines, own, folder, progress, found=found, rewarded=rewarded)
    said = ImportNotes(console, folder, name)
    said.say(f"tasks: {done.tasks:,}, dialogues: {done.dialogues:,}")
    said.left_out("not whole, recorded as failed", done.failed)
    said.left_out("left out, for they are held out in this run", done.held_out, " tasks")
    said.go_on("select" if rewarded else "reward")


def _import_pairs(lines: "Lines", folder: Path, words: list[str], name: str) -> None:
    from coterie.recipes.optima.files.pairs import import_pairs
    from coterie.recipes.optima.methods import optima
    from coterie.recipes.registry import settings

    _check_dataset(lines.path, None, words)
    own = optima(settings(name, words))
    console = notes()
    count = import_pairs(lines, own, folder, ConsoleProgress(console))
    console.print(f"pairs: {count:,}")


def _check_dataset(path: Path, found: str | None, words: list[str]) -> None:
    """Refuse to guess a data set, and one other than the file's."""
    from coterie.environments.registry import Choice

    choice = Choice.among(words)
    asked = choice.dataset or choice.environment
    if found is None and asked is None:
        raise UserError(
            f"{path} does not say which data set it is of", "add it, such as dataset=hotpot_qa"
        )
    if found is not None and asked not in (None, found):
        raise UserError(f"{path} is of {found}, not of {asked}", f"leave {asked} out")
