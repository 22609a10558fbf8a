"""``coterie export``: rows, pairs, trajectories, tasks and weights of a run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Export the training data or the model of a run for other programs.",
)


@app.command()
def data(
    folder: RunArgument,
    to: Annotated[
        Literal["jsonl", "trl", "llamafactory", "verl"], typer.Option(help="Format of the files.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to make; default: RUN/export/FORM.")
    ] = None,
    iteration: Annotated[int | None, typer.Option(help="Iteration; default: all.", min=0)] = None,
    role: Annotated[
        str | None, typer.Option(help="Only training data of this model; default: all models.")
    ] = None,
    secrets: Annotated[
        bool,
        typer.Option("--secrets", help="With jsonl: include privileged fields of trajectories."),
    ] = False,
) -> None:
    """Write the training rows, preference pairs, trajectories or tasks of a run.

    `jsonl`: rows with exact tokens, pairs, and all trajectories (for `coterie import`). `trl` and `llamafactory`: rows
    and pairs as chats. `verl`: tasks with their right answers.

    Examples:

        coterie export data runs/optima-isft --to trl

        coterie export data runs/optima-isft --to verl --out tasks
    """
    from coterie.cli.export_run import export_data

    written, counts = export_data(folder, to, out, iteration=iteration, role=role, secrets=secrets)
    for name, count in counts.items():
        typer.echo(f"{name}: {count:,}", err=True)
    print(written)


@app.command()
def model(
    folder: RunArgument,
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge a LoRA adapter into its base model.")
    ] = False,
    role: Annotated[
        str | None, typer.Option(help="Role of the model; default: the policy.")
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(help="Version at the start of this iteration; default: the newest."),
    ] = None,
) -> None:
    """Write the weights and the tokenizer of a run's policy, with a model card.

    coterie (`model=FOLDER`) and Transformers load the folder; PEFT loads an adapter. `hf upload OWNER/NAME FOLDER`
    uploads it to the Hugging Face hub.

    Examples:

        coterie export model runs/optima-isft --out mine

        coterie export model runs/lora --out mine --merge
    """
    from coterie.cli.export_run import export_model

    export_model(folder, out, merge=merge, role=role, iteration=iteration)
    print(out)
