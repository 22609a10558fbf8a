"""``coterie data prompt-pool|filter``: formats that a model writes, and the rows that a policy learns from."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import UserError
from coterie.terminal.console import notes
from coterie.terminal.words import Words


class Talk(StrEnum):
    """Which agents the formats are for."""

    exchange = "exchange"
    debate = "debate"


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


class Divided(StrEnum):
    """Which rows are filtered."""

    train = "train"
    heldout = "heldout"


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
        typer.Option(
            help="Dialogues that were played before: the store of an evaluation, or a run's store.sqlite. Then nothing "
            "is played."
        ),
    ] = None,
    stage: Annotated[str, typer.Option(help="Of --store: which dialogues.")] = "evaluate",
    iteration: Annotated[
        int | None, typer.Option(help="Of --store: of which iteration; by default the last.")
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

        coterie data filter hotpot_qa --out worth --store runs/optima/store.sqlite --stage rollout

        coterie data filter --from runs/gap --out next
    """
    from coterie.cli.data_filter import Stored, filter_rows, filter_run
    from coterie.datasets.filtering import RateRule

    rule = RateRule(least, most)
    if run is not None:
        if benchmark or store or (stage, split) != ("evaluate", Divided.train):
            raise UserError(
                "--from reads what a run says of its own training rows: it takes no benchmark or words, nor --store, "
                "--stage or --split",
                "leave them out: coterie data filter --from RUN --out FOLDER",
            )
        print(filter_run(run, out, rule, passing, iteration, notes()))
        return
    if benchmark is None:
        raise UserError(
            "no benchmark is given",
            "such as: coterie data filter gsm8k --out FOLDER, or --from RUN",
        )
    known = None if store is None else Stored(store, stage, iteration)
    print(filter_rows(benchmark, words or [], out, rule, passing, split.value, known, notes()))
