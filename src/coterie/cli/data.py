"""``coterie data``: the data sets that recipes use."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.errors import UserError
from coterie.terminal.console import notes, results
from coterie.terminal.progress import ConsoleProgress
from coterie.terminal.words import Words

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


@app.command("list")
def list_sets() -> None:
    """Show every data set: licence, splits, rows, and what of it is on this machine.

    Example:

        coterie data list
    """
    from coterie.config.home import home
    from coterie.datasets.catalogue import CATALOGUE, SPLITS
    from coterie.datasets.local import sample_rows
    from coterie.datasets.preferences import PREFERENCE_SETS
    from coterie.datasets.prepared import MANIFEST, folder_of, read_manifest

    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    widths = {"set": 16, "what": 0, "licence": 12, "upstream": 15}
    for title, width in (widths | {"rows": 7, "sample": 6, "ready": 7}).items():
        right = title in ("rows", "sample", "ready")
        table.add_column(title, justify="right" if right else "left", width=width or None)
    for name, entry in CATALOGUE.items():
        upstream = [
            (one.name, f"{one.first or one.rows:,}") if one else (f"{entry.share:g} of it", "")
            for one in map(entry.upstream, entry.splits)
        ]
        upstream = [("none", "")] * (len(SPLITS) - len(upstream)) + upstream
        prepared = ["no", ""]
        if (folder_of(entry) / MANIFEST).is_file():
            manifest = read_manifest(folder_of(entry))
            ready = [f"{known.rows:,}" for known in manifest.splits.values()]
            prepared = [""] * (len(SPLITS) - len(ready)) + ready
        table.add_row(
            name,
            entry.what,
            entry.licence,
            "\n".join(name for name, _ in upstream),
            "\n".join(rows for _, rows in upstream),
            "\n".join(str(sample_rows(entry, split)) for split in SPLITS),
            "\n".join(prepared),
        )
    for name, one in PREFERENCE_SETS.items():
        pairs = "no"
        if (folder_of(one) / MANIFEST).is_file():
            pairs = ", ".join(f"{k.rows:,}" for k in read_manifest(folder_of(one)).splits.values())
        rows = f"{one.train.rows:,}"
        table.add_row(name, one.what, one.licence, one.train.name, rows, "0", pairs)
    results().print(table)
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
    progress = ConsoleProgress(console)
    try:
        if isinstance(entry, PreferenceSet):
            manifest = download_preferences(entry, progress)
        else:
            manifest = fetch(entry, progress, examiner(entry, console))
    finally:
        progress.close()
    _say(manifest, console)
    print(folder_of(entry))


@app.command()
def prepare(
    name: Name,
    sources: Annotated[
        list[Path],
        typer.Option(
            "--from",
            help="Upstream's file (.jsonl, .json, .parquet), or a folder of them; repeatable. Its "
            "split is read from its name: train, or dev, test, validation, heldout. Sets in two files "
            "(Lumos: plans and actions) need both.",
        ),
    ],
    heldout: Annotated[
        float | None,
        typer.Option(help="The files are of one split: hold out this share of their questions."),
    ] = None,
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
    from coterie.datasets.prepared import prepare as make

    entry = _find(name)
    console = notes()
    progress = ConsoleProgress(console)
    try:
        if isinstance(entry, PreferenceSet):
            if heldout is not None:
                raise UserError("of preferences nothing is held out", "leave out --heldout")
            manifest = prepare_preferences(entry, sources, folder_of(entry), progress)
        else:
            manifest = make(
                *(entry, sources, folder_of(entry), progress),
                heldout=heldout,
                seed=seed,
                examine=examiner(entry, console),
            )
    finally:
        progress.close()
    _say(manifest, console)
    print(folder_of(entry))


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


class Talk(StrEnum):
    """Which agents the formats are for."""

    exchange = "exchange"
    debate = "debate"


@app.command("prompt-pool")
def prompt_pool(
    out: Annotated[Path, typer.Option(help="The JSONL file to write, or to continue.")],
    words: Words = None,
    count: Annotated[int, typer.Option(help="How many formats the file is to have.", min=1)] = 20,
    setting: Annotated[
        Talk, typer.Option(help="Agents that exchange what they know, or a debate's solver.")
    ] = Talk.exchange,
) -> None:
    """Ask a chat model for formats that agents may speak in, one at a time.

    The file is for `environment.format_pool_file`. A run that was cut goes on; formats that are nearly the same
    as one of the file or of the packaged pool are left out.

    Examples:

        coterie data prompt-pool --out pool.jsonl endpoint.url=http://127.0.0.1:8000/v1 endpoint.model=NAME

        coterie data prompt-pool --out solver.jsonl --setting debate --count 30
        endpoint.url=https://api.openai.com/v1 endpoint.model=NAME endpoint.key_variable=OPENAI_API_KEY
    """
    from coterie.cli.prompt_pool import write

    print(write(out, words or [], count, setting.value, notes()))


class Written(StrEnum):
    """What tasks can be written or drawn for."""

    colbench_code = "colbench-code"


@app.command()
def generate(
    what: Annotated[Written, typer.Argument(help="What the tasks are for.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write, or to continue.")],
    words: Words = None,
    count: Annotated[int, typer.Option(help="How many tasks the file is to have.", min=1)] = 100,
    excerpts: Annotated[
        Path | None,
        typer.Option(help="Texts to be inspired by: a line each, or .jsonl with `text`."),
    ] = None,
) -> None:
    """Ask a chat model for tasks, and keep those that nothing is wrong with.

    Each reference is run on its tests in the sandbox. The file is in ColBench's form, for
    `coterie data prepare colbench_code`. A run that was cut goes on.

    Examples:

        coterie data generate colbench-code --out tasks.jsonl --count 500
        endpoint.url=http://127.0.0.1:8000/v1 endpoint.model=NAME

        coterie data generate colbench-code --out tasks.jsonl --excerpts pages.jsonl
        endpoint.url=https://api.openai.com/v1 endpoint.model=NAME endpoint.key_variable=OPENAI_API_KEY
    """
    from coterie.cli.code_tasks import generate as write

    print(write(out, words or [], count, excerpts, notes()))


class Levels(StrEnum):
    """How hard the tasks are."""

    easy = "easy"
    personal = "personal"


@app.command()
def draw(
    what: Annotated[Written, typer.Argument(help="What the tasks are for.")],
    out: Annotated[Path, typer.Option(help="The folder for train.jsonl and heldout.jsonl.")],
    train: Annotated[int, typer.Option(help="Training tasks.", min=1)] = 1000,
    heldout: Annotated[int, typer.Option(help="Held-out tasks.", min=1)] = 500,
    level: Annotated[
        Levels,
        typer.Option(
            help="`personal`: several hidden choices, as in ColBench; `easy`: one line and one choice, for models "
            "of 100 million parameters."
        ),
    ] = Levels.personal,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
) -> None:
    """Draw tasks from kinds of function that come with coterie; no model is asked.

    The hidden choices, words and calls are drawn by the seed; the kinds of the splits are different ones. Each
    reference is run on its tests in the sandbox. The folder is for `dataset.source`.

    Examples:

        coterie data draw colbench-code --out tasks

        coterie data draw colbench-code --out easy --level easy --train 120 --heldout 60
    """
    from coterie.cli.code_tasks import draw as write

    print(write(out, train, heldout, level.value, seed, notes()))


@app.command("passages")
def passages(
    name: Name,
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")],
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            help="`prepared` (if none is given), `sample`, a folder with train.jsonl and heldout.jsonl, or a file; "
            "repeatable.",
        ),
    ] = None,
) -> None:
    """Write the passages of a set's questions, gold ones and distractors, as a corpus for `coterie data index`.

    Each title and text is written once. Sets with passages: hotpot_qa, 2wiki, musique, trivia_qa.

    Examples:

        coterie data passages 2wiki --out passages.jsonl

        coterie data passages musique --source musique_ans_v1.0_dev.jsonl --out passages.jsonl
    """
    from coterie.datasets.corpus import distinct_passages, rows_of, write_passages

    count = write_passages(distinct_passages(rows_of(name, sources or ["prepared"])), out)
    notes().print(f"{count:,} passages")
    print(out)


@app.command("index")
def index_pages(
    file: Annotated[
        Path,
        typer.Argument(
            help="A JSONL file (also .gz); its rows have `contents`, or `title` and `text`."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    bm25: Annotated[
        bool, typer.Option("--bm25/--no-bm25", help="Whether they can be searched by words.")
    ] = True,
    dense: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Also by meaning: a sentence encoder makes vectors."),
    ] = None,
    query_prefix: Annotated[
        str, typer.Option(help="Of the encoder: what stands before a query.")
    ] = "query: ",
    passage_prefix: Annotated[
        str, typer.Option(help="Of the encoder: what stands before a passage.")
    ] = "passage: ",
) -> None:
    """Index pages or passages, such as those of an encyclopedia, so that agents can search them.

    A row with `contents` (the title in quotes, then the text) is a passage; one with `title` and `text` is a page,
    whose text is cut at line ends. Needs the package bm25s (`pip install 'coterie[retrieval]'`), and faiss for
    vectors (`coterie[dense]`).

    Examples:

        coterie data index pages.jsonl pages

        coterie data index passages.jsonl.gz passages --dense intfloat/e5-base-v2
    """
    from coterie.tools.retrieval.index import build_index
    from coterie.tools.retrieval.settings import EncoderSettings

    encoder = None
    if dense:
        encoder = EncoderSettings(
            model=dense, query_prefix=query_prefix, passage_prefix=passage_prefix
        )
    console = notes()
    progress = ConsoleProgress(console)
    try:
        count = build_index(file, folder, bm25=bm25, encoder=encoder, progress=progress)
    finally:
        progress.close()
    console.print(f"{count:,} passages")
    print(folder)


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
