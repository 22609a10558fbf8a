"""``coterie data passages|index``: corpora that agents search."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from coterie.terminal.console import notes
from coterie.terminal.progress import ConsoleProgress

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        help="`prepared` (if none is given), `sample`, a folder with train.jsonl and heldout.jsonl, or a file; "
        "repeatable.",
    ),
]
Rows = Annotated[
    Path,
    typer.Argument(
        help="A JSONL file (also .gz); its rows have `contents`, or `title` and `text`."
    ),
]
ByWords = Annotated[
    bool, typer.Option("--bm25/--no-bm25", help="Whether they can be searched by words.")
]
Encoder = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Also by meaning: a sentence encoder makes vectors."),
]


def passages(
    name: Annotated[str, typer.Argument(help="A set with passages, such as 2wiki.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")],
    sources: Sources = None,
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


def index(
    file: Rows,
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    bm25: ByWords = True,
    dense: Encoder = None,
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
