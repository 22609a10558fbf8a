"""``coterie data``: the data sets that recipes use."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.data_passages import index, passages
from coterie.cli.data_tasks import filter_, prompt_pool
from coterie.errors import UserError
from coterie.terminal.console import notes, results
from coterie.terminal.progress import ConsoleProgress

if TYPE_CHECKING:
    from coterie.datasets.catalogue import DataSet
    from coterie.datasets.preferences import PreferenceSet
    from coterie.datasets.prepared import Manifest

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Data sets: what there is, and how to get it here.",
)
Name = Annotated[str, typer.Argument(help="Such as gsm8k; `coterie data list` has them all.")]
Sources = Annotated[
    list[Path],
    typer.Option(
        "--from",
        help="Upstream's file (.jsonl, .json, .parquet), or a folder of them; repeatable. Its "
        "split is read from its name: train, or dev, test, validation, heldout. Sets in two files "
        "(Lumos: plans and actions) need both.",
    ),
]
Share = Annotated[
    float | None,
    typer.Option(help="The files are of one split: hold out this share of their questions."),
]


@app.command("list")
def list_sets() -> None:
    """Show every data set: licence, splits, rows, and what of it is on this machine.

    Example:

        coterie data list
    """
    from coterie.cli.data_table import data_table
    from coterie.config.home import home

    results().print(data_table())
    notes().print(
        "Of each set, the first line trains and the second is held out; of preferences nothing is. Sets that are "
        f"ready lie in {home() / 'data'}"
    )


@app.command()
def download(name: Name) -> None:
    """Download a data set from the Hugging Face hub and prepare it.

    A download that was cut is resumed by the same command.

    Example:

        coterie data download gsm8k
    """
    from coterie.cli.code_rows import examiner
    from coterie.datasets.download import download as fetch
    from coterie.datasets.download import download_preferences
    from coterie.datasets.preferences import PreferenceSet
    from coterie.datasets.prepared import folder_of

    entry = _find(name)
    console = notes()
    console.print(f"{name}: {entry.licence}, {entry.licence_url}")
    with closing(ConsoleProgress(console)) as progress:
        if isinstance(entry, PreferenceSet):
            manifest = download_preferences(entry, progress)
        else:
            manifest = fetch(entry, progress, examiner(entry, console))
    _say(manifest, console)
    print(folder_of(entry))


@app.command()
def prepare(
    name: Name,
    sources: Sources,
    heldout: Share = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw of --heldout.")] = 0,
) -> None:
    """Make a data set from files that you have.

    References of code are run on their tests in the sandbox, as `coterie data check` does; rows that can't be tasks are
    shown and left out. Of sets of preferences all pairs are for training.

    Examples:

        coterie data prepare gsm8k --from train.jsonl --from test.jsonl

        coterie data prepare hotpot_qa --from hotpot_dev_distractor_v1.json --heldout 0.3

        coterie data prepare lumos_maths --from plan_onetime.jsonl --from ground_onetime.jsonl

        coterie data prepare ultra_interact --from 0000_pair.parquet
    """
    from coterie.cli.code_rows import examiner
    from coterie.datasets.preference_files import prepare_preferences
    from coterie.datasets.preferences import PreferenceSet
    from coterie.datasets.prepared import folder_of
    from coterie.datasets.preparing import prepare as make

    entry = _find(name)
    console = notes()
    target = folder_of(entry)
    with closing(ConsoleProgress(console)) as progress:
        if isinstance(entry, PreferenceSet):
            if heldout is not None:
                raise UserError("of preferences nothing is held out", "leave out --heldout")
            manifest = prepare_preferences(entry, sources, target, progress)
        else:
            examine = examiner(entry, console)
            manifest = make(
                entry, sources, target, progress, heldout=heldout, seed=seed, examine=examine
            )
    _say(manifest, console)
    print(target)


@app.command()
def check(
    name: Name,
    source: Annotated[
        str,
        typer.Option(
            help="`prepared`, `sample`, a folder with train.jsonl and heldout.jsonl, or a file."
        ),
    ] = "prepared",
) -> None:
    """Show which rows are bad: of code, by running the references in the sandbox; of plans, by reading the actions.

    The last line is a JSON object with the numbers of the rows (the first is 1) by finding.

    Examples:

        coterie data check colbench_code

        coterie data check colbench_code --source backend_tasks/test.jsonl

        coterie data check lumos_maths
    """
    from coterie.cli.code_rows import check as check_code
    from coterie.cli.plan_check import check as check_plans
    from coterie.datasets.plan_rows import PlanRow
    from coterie.datasets.preferences import PreferenceSet

    entry = _find(name)
    if isinstance(entry, PreferenceSet):
        raise UserError(
            f"{name} has preferences, and no code to run or plans to read",
            "`coterie data prepare` says what was dropped, and why",
        )
    check_one = check_plans if issubclass(entry.row, PlanRow) else check_code
    check_one(entry, source, notes())


app.command("prompt-pool")(prompt_pool)
app.command("filter")(filter_)
app.command()(passages)
app.command("index")(index)


def _find(name: str) -> "DataSet | PreferenceSet":
    """The set of that name, of tasks or of preferences; ``UserError`` if there is none."""
    from coterie.datasets.catalogue import find
    from coterie.datasets.preferences import PREFERENCE_SETS

    return PREFERENCE_SETS[name] if name in PREFERENCE_SETS else find(name)


def _say(manifest: "Manifest", console: Console) -> None:
    for split, known in manifest.splits.items():
        dropped = f" ({known.dropped:,} dropped)" * bool(known.dropped)
        console.print(f"{split}: {known.rows:,} rows{dropped}")
    for reason, count in manifest.reasons.items():
        console.print(f"dropped, {count:,}: {reason}")
    for lack, count in manifest.lacks.items():
        console.print(f"kept, {count:,}: {lack}")
