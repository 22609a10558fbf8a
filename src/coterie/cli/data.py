"""``coterie data``: the data sets that recipes use, and the corpora that agents search."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import UserError
from coterie.terminal import ConsoleProgress, Words, notes, results

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Data sets: what there is, and how to get it here.",
)
Name = Annotated[str, typer.Argument(help="Such as gsm8k; `coterie data list` has them all.")]


class Talk(StrEnum):
    """Agents that formats are for."""

    exchange = "exchange"
    debate = "debate"


class Divided(StrEnum):
    """Splits that can be filtered."""

    train = "train"
    heldout = "heldout"


@app.command("list")
def list_sets() -> None:
    """Show every data set: licence, published rows, and rows that ship with coterie.

    Example:

        coterie data list
    """
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for title, width in (("set", 16), ("what", None), ("licence", 12)):
        table.add_column(title, width=width)
    for title, width in (("train", 7), ("held out", 8), ("sample", 7)):
        table.add_column(title, width=width, justify="right")
    for row in _table():
        table.add_row(*row)
    results().print(table)


def _table() -> Iterator[tuple[str, ...]]:
    from coterie.datasets.catalogue import CATALOGUE
    from coterie.datasets.load import load
    from coterie.datasets.preferences import PREFERENCE_SETS

    for name, one in CATALOGUE.items():
        train = "" if one.train is None else f"{one.train:,}"
        heldout = "a share" if one.heldout is None else f"{one.first or one.heldout:,}"
        shipped = load(name, "sample").rows.values() if one.packaged else ()
        sample = " + ".join(str(len(rows)) for rows in shipped)
        yield name, one.what, one.licence, train, heldout, sample
    for name, pairs in PREFERENCE_SETS.items():
        yield name, pairs.what, pairs.licence, f"{pairs.train:,}", "", ""


@app.command()
def download(name: Name) -> None:
    """Download a data set into the cache of the Hugging Face hub, and count its rows.

    Runs download what they need by themselves: this is for machines that will have no network.

    Example:

        coterie data download gsm8k
    """
    from coterie.datasets.load import load
    from coterie.datasets.preferences import PREFERENCE_SETS

    left_out = Counter[str]()
    if name in PREFERENCE_SETS:
        print(f"{sum(1 for _ in PREFERENCE_SETS[name].pairs(left_out)):,} pairs")
    else:
        loaded = load(name)
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
        str, typer.Option(help="As `dataset.source`: `hub`, `sample`, a folder or a file.")
    ] = "hub",
    out: Annotated[
        Path | None, typer.Option(help="Write the usable rows into a new folder of this name.")
    ] = None,
) -> None:
    """Run the references of ColBench's rows on their tests in the sandbox, and show what is wrong.

    The last line is a JSON object with the numbers of the rows (the first of a split is 1) by finding.

    Examples:

        coterie data check colbench_code --out checked

        coterie data check colbench_code --source backend_tasks/test.jsonl
    """
    from coterie.cli.code_rows import check as check_code
    from coterie.datasets.catalogue import find

    check_code(find(name), source, out, notes())


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
    from coterie.config.resolve import resolve
    from coterie.engines.endpoint import Endpoint
    from coterie.engines.protocol import EngineError
    from coterie.environments.formats import FormatPoolSettings, write_pool

    where = "`coterie data prompt-pool --help` has examples"
    settings = resolve(FormatPoolSettings, [], words or [], where=where)
    tell = notes().print

    async def ask() -> str:
        async with Endpoint(settings.endpoint) as endpoint:
            await write_pool(endpoint, out, count, setting.value, settings.temperature, tell)
            return str(endpoint.usage)

    try:
        tell(asyncio.run(ask()))
    except EngineError as error:
        raise UserError(
            f"no more formats: {error}", f"what came is in {out}; the same command goes on"
        ) from error
    print(out)


@app.command("filter")
def filter_(
    out: Annotated[Path, typer.Option(help="The folder to make, for `dataset.source`.")],
    benchmark: Annotated[
        str | None,
        typer.Argument(
            metavar="BENCHMARK",
            help="As for `coterie evaluate`, such as gsm8k; with --from that of the run.",
        ),
    ] = None,
    words: Words = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="A run with reinforcement learning: each task counts by the newest step that sampled it. Nothing is "
            "played, and rows that the run has not sampled are kept.",
        ),
    ] = None,
    least: Annotated[float, typer.Option(help="Lowest rate that is kept.", min=0, max=1)] = 0.125,
    most: Annotated[float, typer.Option(help="Highest rate that is kept.", min=0, max=1)] = 0.875,
    passing: Annotated[float, typer.Option(help="A dialogue passes with this score.")] = 1.0,
    split: Annotated[Divided, typer.Option(help="Which rows are filtered.")] = Divided.train,
    store: Annotated[
        Path | None,
        typer.Option(help="The store of an evaluation that was played before. Nothing is played."),
    ] = None,
) -> None:
    """Keep the rows that a policy solves neither always nor never, by `samples` dialogues of each.

    Words are those of `coterie evaluate`; `tasks` says how many rows are played. It resumes as an evaluation does. The
    folder has `train.jsonl` and `heldout.jsonl` for `dataset.source`, of which one is filtered, and the rows that are
    left out as `too_easy.jsonl` and `too_hard.jsonl`. Rows that were not played, or of which no dialogue could be
    graded, are left out and counted (kept, with --from).

    Examples:

        coterie data filter gsm8k --out worth policy=smollm2 samples=8 temperature=1 tasks=1000

        coterie data filter mhqa --out hard --least 0 --most 0.3 dataset=2wiki tools.config=tools.yaml
        policy=runs/gap samples=32 temperature=1

        coterie data filter gsm8k --out worth --split heldout --store runs/evaluations/gsm8k-0123.sqlite

        coterie data filter --from runs/gap --out next
    """
    from coterie.cli.data_filter import RateRule, filter_rows, filter_run

    if run is not None:
        if benchmark or store or split != Divided.train:
            raise UserError(
                "--from reads the run's own training rows: it takes no benchmark or words, nor --store or --split",
                "leave them out: coterie data filter --from RUN --out FOLDER",
            )
        filter_run(run, out, RateRule(least, most, passing, "kept"), notes())
    elif benchmark is None:
        raise UserError(
            "no benchmark is given",
            "such as: coterie data filter gsm8k --out FOLDER, or --from RUN",
        )
    else:
        rule = RateRule(least, most, passing)
        filter_rows(benchmark, words or [], out, rule, split.value, store, notes())
    print(out)


@app.command()
def passages(
    name: Annotated[str, typer.Argument(help="A set with passages, such as 2wiki.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")],
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--source", help="As `dataset.source`: `hub`, `sample`, a folder or a file; repeatable."
        ),
    ] = None,
) -> None:
    """Write the passages of a set's questions, gold ones and distractors, as a corpus for `coterie data index`.

    Each title and text is written once. Sets with passages: hotpot_qa, 2wiki, musique, trivia_qa.

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
    whose text is cut at line ends. Needs the package bm25s (`pip install -e '.[retrieval]'`), and faiss for
    vectors (`.[dense]`).

    Examples:

        coterie data index pages.jsonl pages

        coterie data index passages.jsonl.gz passages --dense intfloat/e5-base-v2
    """
    from coterie.tools.retrieval.index import EncoderSettings, build_index

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
