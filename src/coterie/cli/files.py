"""``coterie import`` and ``coterie export``: our own record, and the files of published systems."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from coterie.cli.console import notes
from coterie.cli.progress import ConsoleProgress
from coterie.cli.words import Words
from coterie.errors import UserError

if TYPE_CHECKING:
    from coterie.recipes.optima.files.records import Lines
    from coterie.recipes.settings import RecipeSettings
    from coterie.recipes.sweet_rl.recipe import SweetRL

RECORD = "record"


class _Group(TyperGroup):
    """A group that takes a first word which is none of its commands as its command ``record``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in front where it is left out."""
        first = next((arg for arg in args if not arg.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = [RECORD, *args]
        return super().parse_args(ctx, args)


export_app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write a run as JSONL: `coterie export RUN FILE`, or in another system's form.",
)
import_app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Read JSONL: `coterie import FILE STORE`, or files of another system.",
)
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


class OptimaFileKind(StrEnum):
    """What a file of Optima's released code holds."""

    raw = "raw"
    rewarded = "rewarded"
    dpo = "dpo"


@export_app.command(RECORD)
def export_record(
    folder: RunArgument,
    file: Annotated[Path, typer.Argument(help="JSONL file to write.")],
    secrets: Annotated[bool, typer.Option(help="Also write privileged fields.")] = False,
) -> None:
    """Write a run's record as JSONL. The word `record` can be left out.

    Example:

        coterie export runs/optima-isft record.jsonl
    """
    from coterie.trajectories.jsonl import export
    from coterie.trajectories.store import Store

    with Store.open(folder / "store.sqlite", read_only=True) as store:
        export(store, file, secrets=secrets)
    print(file)


@import_app.command(RECORD)
def import_record(
    file: Annotated[Path, typer.Argument(help="JSONL file to read.")],
    store: Annotated[Path, typer.Argument(help="Store to make, such as runs/mine/store.sqlite.")],
) -> None:
    """Make a store from JSONL; a broken line is named by its number and nothing is written. The word
    `record` can be left out.

    Example:

        coterie import record.jsonl imported.sqlite
    """
    from coterie.trajectories.jsonl import import_

    import_(file, store)
    print(store)


@export_app.command("optima")
def export_optima(
    folder: RunArgument,
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
    from coterie.recipes.registry import optima, settings
    from coterie.runs.folder import open_run, read_config

    name, stored = read_config(folder)
    own = optima(settings(name, (), stored))
    with open_run(folder, name, own.settings, write=False) as run:
        for path in export_run(own, run, out, iteration):
            print(path)


@import_app.command("optima")
def import_optima(
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
    console = notes()
    if found == "dpo":
        _import_pairs(lines, folder, words or [], recipe, console)
    else:
        _import_dialogues(lines, folder, words or [], recipe, console, rewarded=found == "rewarded")
    print(folder)


@export_app.command("sweet_rl")
def export_sweet_rl(
    folder: RunArgument,
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
) -> None:
    """Write a run's dialogues and pairs as the files of SWEET-RL's released code: `trajectories.jsonl`,
    `critic_preferences.jsonl` and `policy_preferences.jsonl`, as far as the run has got.

    The files hold the references, which no policy may see, as the originals do.

    Example:

        coterie export sweet_rl runs/sweet --out files
    """
    from coterie.recipes.registry import settings
    from coterie.recipes.sweet_rl.files.exporting import export_run
    from coterie.runs.folder import open_run, read_config

    name, stored = read_config(folder)
    own = _sweet_rl(settings(name, (), stored))
    with open_run(folder, name, own.settings, write=False) as run:
        done = export_run(own, run, out)
    console = notes()
    console.print(f"tasks: {done.tasks:,}")
    if done.incomplete:
        console.print(f"left out, for some of their dialogues failed: {done.incomplete:,} tasks")
    for path in done.files:
        print(path)


@import_app.command("sweet_rl")
def import_sweet_rl(
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
    from coterie.recipes.registry import settings

    check_new_folder(folder, NEW)
    if preferences:
        if repeats is not None:
            raise UserError("preferences have no repeats", "leave out --repeats")
        _import_preferences(file, folder, words or [])
        return
    from coterie.recipes.sweet_rl.files.importing import import_trajectories, survey
    from coterie.recipes.sweet_rl.files.records import Trajectories

    rows = Trajectories(file)
    found = survey(rows, repeats)
    sizes = [f"rollout.tasks={found.tasks}", f"rollout.repeats={found.repeats}"]
    own = _sweet_rl(settings("sweet_rl/backend", ["dataset=colbench_code", *sizes, *(words or [])]))
    console = notes()
    done = import_trajectories(rows, own, folder, ConsoleProgress(console), found=found)
    console.print(f"tasks: {done.tasks:,}, dialogues: {done.dialogues:,}")
    if found.without_reward:
        console.print(f"without a reward, graded here: {found.without_reward:,}")
    if done.failed:
        console.print(f"recorded as failed: {done.failed:,}")
    if done.held_out:
        console.print(f"left out, for they are held out in this run: {done.held_out:,} tasks")
    console.print(
        f"continue with: coterie select {folder}, or coterie run {own.name} --folder {folder}"
    )
    print(folder)


def _import_preferences(file: Path, folder: Path, words: list[str]) -> None:
    from coterie.recipes.registry import settings
    from coterie.recipes.sweet_rl.files.preferences import import_preferences

    own = _sweet_rl(settings("sweet_rl/backend", ["dataset=colbench_code", *words]))
    console = notes()
    done = import_preferences(file, own, folder, ConsoleProgress(console))
    console.print(f"pairs: {done.pairs:,}")
    if done.held_out:
        console.print(f"left out, for their tasks are held out in this run: {done.held_out:,}")
    console.print(
        f"continue with: coterie train {folder} --iteration 1, or coterie run {own.name} --folder {folder}"
    )
    print(folder)


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


def _import_dialogues(
    lines: "Lines",
    folder: Path,
    words: list[str],
    name: str,
    console: Console,
    *,
    rewarded: bool,
) -> None:
    from coterie.recipes.optima.files.importing import import_dialogues, survey
    from coterie.recipes.registry import optima, settings

    found = survey(lines, rewarded=rewarded)
    _check_dataset(lines.path, found.dataset, words)
    sizes = [f"rollout.tasks={found.tasks}", f"rollout.samples={found.samples}"]
    known = [f"dataset={found.dataset}"] if found.dataset else []
    own = optima(settings(name, [*known, *sizes, *words]))
    progress = ConsoleProgress(console)
    done = import_dialogues(lines, own, folder, progress, found=found, rewarded=rewarded)
    console.print(f"tasks: {done.tasks:,}, dialogues: {done.dialogues:,}")
    if done.failed:
        console.print(f"not whole, recorded as failed: {done.failed:,}")
    if done.held_out:
        console.print(f"left out, for they are held out in this run: {done.held_out:,} tasks")
    following = "select" if rewarded else "reward"
    console.print(
        f"continue with: coterie {following} {folder}, or coterie run {name} --folder {folder}"
    )


def _import_pairs(
    lines: "Lines", folder: Path, words: list[str], name: str, console: Console
) -> None:
    from coterie.recipes.optima.files.pairs import import_pairs
    from coterie.recipes.registry import optima, settings

    _check_dataset(lines.path, None, words)
    own = optima(settings(name, words))
    count = import_pairs(lines, own, folder, ConsoleProgress(console))
    console.print(f"pairs: {count:,}")


def _check_dataset(path: Path, found: str | None, words: list[str]) -> None:
    """Refuse to guess a data set, and one other than the file's."""
    asked = next((w.partition("=")[2] for w in reversed(words) if w.startswith("dataset=")), None)
    if found is None and asked is None:
        raise UserError(
            f"{path} does not say which data set it is of", "add it, such as dataset=hotpot_qa"
        )
    if found is not None and asked not in (None, found):
        raise UserError(f"{path} is of {found}, not of {asked}", f"leave out dataset={asked}")
