"""``coterie export sweet_rl`` and ``coterie import sweet_rl``.

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
    from coterie.recipes.settings import RecipeSettings
    from coterie.recipes.sweet_rl.recipe import SweetRL


def export_files(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
) -> None:
    """Write a run's dialogues and pairs as the files of SWEET-RL's released code: `trajectories.jsonl`,
    `critic_preferences.jsonl` and `policy_preferences.jsonl`, as far as the run has got.

    The files hold the references, which no policy may see, as the originals do.

    Example:

        coterie export sweet_rl runs/sweet --out files
    """
    from coterie.recipes.recorded_run import recorded_run
    from coterie.recipes.sweet_rl.files.exporting import export_run

    with recorded_run(folder, _sweet_rl) as (own, run):
        done = export_run(own, run, out)
    console = notes()
    console.print(f"tasks: {done.tasks:,}")
    if done.incomplete:
        console.print(f"left out, for some of their dialogues failed: {done.incomplete:,} tasks")
    for path in done.files:
        print(path)


def import_files(
    file: Annotated[Path, typer.Argument(help="A file of trajectories, or of --preferences.")],
    folder: Annotated[Path, typer.Option(help="Run folder to make.")],
    words: Words = None,
    repeats: Annotated[
        int | None, typer.Option(help="Dialogues of each task; default: as the file shows.", min=1)
    ] = None,
    preferences: Annotated[
        bool, typer.Option("--preferences", help="The file has the policy's pairs of turns.")
    ] = False,
) -> None:
    """Make a run of a file of trajectories of SWEET-RL's released code, or of its policy's preferences, to go
    on from.

    Its dialogues become those of round 0, so that the critic comes next. Dialogues without a `reward` are
    graded in the sandbox. With `--preferences`, its pairs of turns become those of round 1, so that the training
    of the policy comes next. A broken line is named by its number, and nothing is made. The person who is
    named is for the evaluation.

    Examples:

        coterie import sweet_rl colbench_code_offline_15k_llama8b.jsonl --folder runs/theirs user_simulator=MODEL

        coterie import sweet_rl random_pairs.jsonl --preferences --folder runs/pairs model=MODEL user_simulator=MODEL
    """
    from coterie.config.folders import check_new_folder
    from coterie.recipes.line_files import NEW

    check_new_folder(folder, NEW)
    if preferences:
        if repeats is not None:
            raise UserError("preferences have no repeats", "leave out --repeats")
        _import_preferences(file, folder, words or [])
    else:
        _import_trajectories(file, folder, words or [], repeats)
    print(folder)


def _import_trajectories(file: Path, folder: Path, words: list[str], repeats: int | None) -> None:
    from coterie.recipes.importing import ImportNotes
    from coterie.recipes.sweet_rl.files.importing import import_trajectories, survey
    from coterie.recipes.sweet_rl.files.records import Trajectories

    rows = Trajectories(file)
    found = survey(rows, repeats)
    own = _of_words([f"rollout.tasks={found.tasks}", f"rollout.repeats={found.repeats}", *words])
    console = notes()
    done = import_trajectories(rows, own, folder, ConsoleProgress(console), found=found)
    said = ImportNotes(console, folder, own.name)
    said.say(f"tasks: {done.tasks:,}, dialogues: {done.dialogues:,}")
    said.left_out("without a reward, graded here", found.without_reward)
    said.left_out("recorded as failed", done.failed)
    said.left_out("left out, for they are held out in this run", done.held_out, " tasks")
    said.go_on("select")


def _import_preferences(file: Path, folder: Path, words: list[str]) -> None:
    from coterie.recipes.importing import ImportNotes
    from coterie.recipes.sweet_rl.files.preferences import import_preferences

    own = _of_words(words)
    console = notes()
    done = import_preferences(file, own, folder, ConsoleProgress(console))
    said = ImportNotes(console, folder, own.name)
    said.say(f"pairs: {done.pairs:,}")
    said.left_out("left out, for their tasks are held out in this run", done.held_out)
    said.go_on("train", "--iteration 1")


def _of_words(words: list[str]) -> "SweetRL":
    """The recipe on ColBench, as far as the words don't say otherwise."""
    from coterie.recipes.registry import settings
    from coterie.recipes.sweet_rl.settings import SweetSettings

    return _sweet_rl(settings(SweetSettings.recipe, ["dataset=colbench_code", *words]))


def _sweet_rl(settings: "RecipeSettings") -> "SweetRL":
    """The recipe; ``UserError`` for settings of another one."""
    from coterie.recipes.sweet_rl.recipe import SweetRL
    from coterie.recipes.sweet_rl.settings import SweetSettings

    if not isinstance(settings, SweetSettings):
        raise UserError(
            f"this is a run of {settings.recipe}, not of {SweetSettings.recipe}",
            "`coterie export RUN FILE` writes any run",
        )
    return SweetRL(settings)
