"""``coterie data``: data sets of recipes, and corpora for search tools."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie.errors import UserError
from coterie.terminal import ConsoleProgress, Overrides, notes, results

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, download, check and filter data sets.",
)
Name = Annotated[str, typer.Argument(help="Such as gsm8k; `coterie data list` lists all names.")]


@app.command("list")
def list_sets() -> None:
    """List data sets with license, published rows and packaged rows.

    Example:

        coterie data list
    """
    from rich.table import Table

    from coterie.datasets.catalogue import CATALOGUE, PREFERENCE_SETS, TRAJECTORIES
    from coterie.datasets.load import load_rows

    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for title, width in (("set", 16), ("what", None), ("licence", 12)):
        table.add_column(title, width=width)
    for title, width in (("train", 7), ("held out", 8), ("sample", 7)):
        table.add_column(title, width=width, justify="right")
    for name, data_set in {**CATALOGUE, **PREFERENCE_SETS, **TRAJECTORIES}.items():
        train = "" if data_set.train is None else f"{data_set.train:,}"
        # Of some sets only the first rows of the held-out file are read.
        heldout = (
            "a share" if data_set.heldout is None else f"{data_set.first or data_set.heldout:,}"
        )
        shipped = load_rows(name, "sample").rows.values() if data_set.packaged else ()
        sample = " + ".join(str(len(rows)) for rows in shipped)
        table.add_row(name, data_set.what, data_set.licence, train, heldout, sample)
    results().print(table)


@app.command()
def download(name: Name) -> None:
    """Download a data set into the cache of the Hugging Face hub, and count its rows.

    Runs download their data automatically. This command prepares machines without a network.

    Example:

        coterie data download gsm8k
    """
    from coterie.datasets.catalogue import PREFERENCE_SETS, TRAJECTORIES
    from coterie.datasets.files import read_rows, trajectory_file
    from coterie.datasets.load import load_rows
    from coterie.datasets.published_preferences import published_pairs

    left_out = Counter[str]()
    if name in PREFERENCE_SETS:
        print(f"{sum(1 for _ in published_pairs(PREFERENCE_SETS[name], left_out)):,} pairs")
    elif name in TRAJECTORIES:
        trajectories = read_rows(trajectory_file(name), TRAJECTORIES[name].row)
        # Details in parentheses are no separate reasons.
        left_out = Counter(row.flaw.partition(" (")[0] for row in trajectories)
        print(f"train: {left_out.pop('', 0):,} rows")
    else:
        loaded = load_rows(name)
        left_out = loaded.left_out
        for split, rows in loaded.rows.items():
            print(f"{split}: {len(rows):,} rows")
            for lack, count in Counter(row.lack for row in rows if row.lack).items():
                notes().print(f"kept, {count:,}: {lack}")
    for reason, count in left_out.most_common():
        notes().print(f"left out, {count:,}: {reason}")


@app.command()
def check(
    name: Name,
    source: Annotated[
        str,
        typer.Option(help="Source as in `dataset.source`: `hub`, `sample`, a folder or a file."),
    ] = "hub",
    out: Annotated[Path | None, typer.Option(help="New folder for the usable rows.")] = None,
) -> None:
    """Run the references of ColBench's rows on their tests in the sandbox, and report problems.

    The last line is a JSON object with row numbers by finding. The first row of a split has number 1.

    Examples:

        coterie data check colbench_code --out checked

        coterie data check colbench_code --source backend_tasks/test.jsonl
    """
    from coterie.cli.data_rows import check as check_code
    from coterie.datasets.catalogue import find

    check_code(find(name), source, out, notes())


@app.command("filter")
def filter_(
    out: Annotated[Path, typer.Option(help="New folder, for `dataset.source`.")],
    benchmark: Annotated[
        str | None,
        typer.Argument(
            metavar="BENCHMARK",
            help="Benchmark as in `coterie evaluate`, such as gsm8k; leave out with --from.",
        ),
    ] = None,
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Run with reinforcement learning. The rate of a task is from the newest step that sampled it. Samples "
            "nothing, and keeps rows that the run has not sampled.",
        ),
    ] = None,
    least: Annotated[float, typer.Option(help="Lowest pass rate to keep.", min=0, max=1)] = 0.125,
    most: Annotated[float, typer.Option(help="Highest pass rate to keep.", min=0, max=1)] = 0.875,
    passing: Annotated[float, typer.Option(help="Minimum score of a passing dialogue.")] = 1.0,
    split: Annotated[Literal["train", "heldout"], typer.Option(help="Split to filter.")] = "train",
    store: Annotated[
        Path | None, typer.Option(help="Store of an earlier evaluation. Samples nothing.")
    ] = None,
) -> None:
    """Keep rows that a policy solves sometimes, but not always, in `samples` dialogues per row.

    Accepts the settings of `coterie evaluate`, where `tasks` is the number of rows, and can be resumed. `samples` is 8
    and `temperature` 1 by default. The folder has
    `train.jsonl` and `heldout.jsonl` for `dataset.source`; only the split of --split is filtered. Removed rows are in
    `too_easy.jsonl` and `too_hard.jsonl`. Rows without a graded dialogue are removed and counted; --from keeps them.

    Examples:

        coterie data filter gsm8k --out worth policy=smollm2 samples=8 temperature=1 tasks=1000

        coterie data filter mhqa --out hard --least 0 --most 0.3 dataset=2wiki tools.config=tools.yaml
        policy=runs/gap samples=32 temperature=1

        coterie data filter gsm8k --out worth --split heldout --store runs/evaluations/gsm8k-0123.sqlite

        coterie data filter --from runs/gap --out next
    """
    from coterie.cli.data_rows import RateRule, filter_rows, filter_run

    if run is not None:
        if benchmark or store or split != "train":
            problem = "--from reads a run and does not accept a benchmark, --store or --split"
            raise UserError(problem, "use: coterie data filter --from RUN --out FOLDER")
        filter_run(run, out, RateRule(least, most, passing, "kept"), notes())
    elif benchmark is None:
        fix = "such as: coterie data filter gsm8k --out FOLDER, or --from RUN"
        raise UserError("no benchmark is given", fix)
    else:
        rule = RateRule(least, most, passing)
        filter_rows(benchmark, overrides or [], out, rule, split, store, notes())
    print(out)


@app.command()
def passages(
    name: Annotated[str, typer.Argument(help="Data set with passages, such as 2wiki.")],
    out: Annotated[Path, typer.Option(help="JSONL file to write.")],
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            help="Source as in `dataset.source`: `hub`, `sample`, a folder or a file; repeatable.",
        ),
    ] = None,
) -> None:
    """Write the gold and distractor passages of a data set as a corpus for `coterie data index`.

    Writes each passage once. Data sets with passages: hotpot_qa, 2wiki, musique, trivia_qa.

    Examples:

        coterie data passages 2wiki --out passages.jsonl

        coterie data passages musique --source musique_ans_v1.0_dev.jsonl --out passages.jsonl
    """
    from coterie.datasets.load import distinct_passages, rows_of, write_passages

    count = write_passages(distinct_passages(rows_of(name, sources or ["hub"])), out)
    notes().print(f"{count:,} passages")
    print(out)


@app.command()
def index(
    file: Annotated[
        Path,
        typer.Argument(help="JSONL file, also .gz; rows have `contents`, or `title` and `text`."),
    ],
    folder: Annotated[Path, typer.Argument(help="New folder for the index.")],
    bm25: Annotated[bool, typer.Option("--bm25/--no-bm25", help="Index words for BM25.")] = True,
    dense: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Sentence encoder for dense vectors.")
    ] = None,
    query_prefix: Annotated[str, typer.Option(help="Encoder prefix of queries.")] = "query: ",
    passage_prefix: Annotated[str, typer.Option(help="Encoder prefix of passages.")] = "passage: ",
) -> None:
    """Index pages or passages, for example of an encyclopedia, for the search tools of agents.

    A row with `contents` (the title in quotes, then the text) is a passage. A row with `title` and `text` is a page,
    which is split into passages at line ends. Needs the package bm25s (`pip install -e '.[retrieval]'`), and faiss for
    vectors (`.[dense]`).

    Examples:

        coterie data index pages.jsonl pages

        coterie data index passages.jsonl.gz passages --dense intfloat/e5-base-v2
    """
    from coterie.tools.retrieval import EncoderSettings, build_index

    encoder = None
    if dense:
        encoder = EncoderSettings(
            model=dense, query_prefix=query_prefix, passage_prefix=passage_prefix
        )
    console = notes()
    with closing(ConsoleProgress(console)) as progress:
        count = build_index(file, folder, bm25=bm25, encoder=encoder, progress=progress)
    console.print(f"{count:,} passages")
    print(folder)
